"""Trees that LightGBM grew, written as `tileprof.record.model.tables.trees` walks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.record.model.tables import write
from tileprof.record.model.tables.trees import LEAF

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Node = dict[str, Any]


def nodes(root: Node) -> Iterator[tuple[int, float, int, int]]:
    """Yield the nodes of a tree: feature, threshold or value, and where both ways from the node lead."""
    order: list[Node] = [root]
    for node in order:  # grows while it is walked
        if "split_feature" in node:
            assert node["decision_type"] == "<="
            yield node["split_feature"], node["threshold"], len(order), len(order) + 1
            order += [node["left_child"], node["right_child"]]
        else:
            yield LEAF, node["leaf_value"], 0, 0


def write_trees(path: Path, about: dict[str, Any], grown: dict[int, Any], made: str) -> int:
    """Write the trees of all groups; return the bytes of the file. ``made``: the command that grew them."""
    keys: list[tuple[int, int]] = []
    roots: list[int] = []
    rows: list[tuple[int, float, int, int]] = []
    for group, model in grown.items():
        for number, tree in enumerate(model.dump_model()["tree_info"]):
            keys.append((group, number))
            roots.append(len(rows))
            rows += list(nodes(tree["tree_structure"]))
    feature, at, low, high = (np.array(column) for column in zip(*rows, strict=True))
    assert max(low.max(), high.max()) <= np.iinfo(np.uint8).max
    columns: dict[str, NDArray[Any]] = {
        "root": np.array(roots, np.int32), "feature": feature.astype(np.uint8), "at": at.astype(np.float32),
        "low": low.astype(np.uint8), "high": high.astype(np.uint8),
    }  # fmt: skip
    origin = {name: about[name] for name in ("gpu", "architecture", "sms", "library", "version", "torch", "cuda")}
    origin["made"] = made
    write(path, origin, ("group", "tree"), np.array(keys, np.int64), columns)
    return path.stat().st_size
