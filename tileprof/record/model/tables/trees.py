"""Trees that rank candidates, as a table of nodes.

A node is a row of ``feature``, ``at``, ``low`` and ``high``: where the feature is at most ``at``, the way continues at
``low``, counted from the tree's root, else at ``high``. A leaf has the feature `LEAF`, and its value in ``at``. A key
is a group of trees and a number in it; ``root`` is the tree's first node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.record.model.tables.file import Table

LEAF: Final = 255
_DEEPEST: Final = 256


def worth(features: NDArray[np.float32], trees: Table, group: int) -> NDArray[np.float64]:
    """Return the sum of a group's trees for each candidate of ``seen`` ``[candidates, features]``."""
    feature, limit, low, high = (trees.columns[name] for name in ("feature", "at", "low", "high"))
    root = trees.columns["root"][trees.members({0: group})].astype(np.int64)
    place = np.tile(root, len(features))
    active = np.arange(len(place))  # ways that have not come to a leaf
    for _ in range(_DEEPEST):
        node = place[active]
        inner = feature[node] != LEAF
        active, node = active[inner], node[inner]
        if not len(active):
            break
        candidate, tree = np.divmod(active, len(root))
        below = features[candidate, feature[node]] <= limit[node]
        place[active] = root[tree] + np.where(below, low[node], high[node])
    return np.asarray(limit[place].astype(np.float64).reshape(len(features), len(root)).sum(axis=1))
