"""Trees that rank candidates, as a table of nodes.

A node is a row of ``feature``, ``at``, ``low`` and ``high``: where the feature is at most ``at``, the way goes on at
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


def worth(seen: NDArray[np.float32], trees: Table, group: int) -> NDArray[np.float64]:
    """Return the sum of a group's trees for each candidate of ``seen`` ``[candidates, features]``."""
    nodes = trees.columns
    root = nodes["root"][trees.members({0: group})].astype(np.int64)[None, :]
    at = np.broadcast_to(root, (len(seen), root.shape[1])).copy()
    candidate = np.arange(len(seen))[:, None]
    for _ in range(_DEEPEST):
        feature = nodes["feature"][at]
        inner = feature != LEAF
        if not inner.any():
            break
        low = seen[candidate, np.where(inner, feature, 0)] <= nodes["at"][at]
        at = np.where(inner, root + np.where(low, nodes["low"][at], nodes["high"][at]), at)
    return np.asarray(nodes["at"][at].astype(np.float64).sum(axis=1))
