"""Trees that LightGBM or scikit-learn grew, written as `tileprof.record.model.tables.trees` walks them."""

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


def of_lightgbm(model: Any) -> list[Node]:
    """Return the roots of the trees of a LightGBM model."""
    return [tree["tree_structure"] for tree in model.dump_model()["tree_info"]]


def of_boosting(model: Any) -> list[Node]:
    """Return the roots of the trees of scikit-learn's `GradientBoostingClassifier` of two classes, whose sum is a
    logarithm of odds; the first is what the model says of all.
    """
    share = model.init_.class_prior_[1]
    trees = [tree.tree_ for tree in model.estimators_[:, 0]]
    return [
        {"leaf_value": float(np.log(share / (1 - share)))},
        *(_grown(tree, 0, model.learning_rate) for tree in trees),
    ]


def _grown(tree: Any, place: int, rate: float) -> Node:
    low, high = int(tree.children_left[place]), int(tree.children_right[place])
    if low == high:
        return {"leaf_value": float(rate * tree.value[place, 0, 0])}
    return {
        "split_feature": int(tree.feature[place]), "threshold": float(tree.threshold[place]), "decision_type": "<=",
        "left_child": _grown(tree, low, rate), "right_child": _grown(tree, high, rate),
    }  # fmt: skip


def write_trees(path: Path, about: dict[str, Any], grown: dict[int, list[Node]], made: str) -> int:
    """Write the trees of all groups, by their roots; return the bytes of the file. ``made``: the command that grew
    them.
    """
    keys: list[tuple[int, int]] = []
    roots: list[int] = []
    rows: list[tuple[int, float, int, int]] = []
    for group, trees in grown.items():
        for number, tree in enumerate(trees):
            keys.append((group, number))
            roots.append(len(rows))
            rows += list(nodes(tree))
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
