"""Whether a proposal of NVIDIA's library or what the nets expect is believed, where the two differ.

Both are right about nearly all nvjet kernels, but not about the same problems: the library knows close decisions
better, the nets products with a k of many thousands and batches of small products. Boosted trees, which
`tileprof.harvest.products.product_arbiter` grows, see how sure the nets are, and the problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tables.trees import worth
from tileprof.record.model.tiles.products.product_nets import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.record.model.tables import Table
    from tileprof.record.model.tiles.products.problem import Problem
    from tileprof.record.model.tiles.products.product_nets import Expected

FEATURES: Final = 9
_FARTHEST: Final = 60.0
"""The lead of a choice, and the deficit of a candidate, that are told apart from larger ones; also for a candidate that
the nets did not consider."""


def believes_library(problem: Problem, expected: Expected, proposed: Shape, trees: Table) -> bool:
    """Return whether the kernel ``proposed`` is likelier than the ``expected`` one, which differs."""
    return bool(worth(features(problem, expected, proposed)[None], trees, 0)[0] > 0)


def features(problem: Problem, expected: Expected, proposed: Shape) -> NDArray[np.float32]:
    """Return what the trees see, ``[FEATURES]``."""
    deficit = expected.deficits.get(proposed, _FARTHEST)
    twin = problem.twin
    return np.array(
        [min(expected.lead, _FARTHEST), min(deficit, _FARTHEST), twin.m, twin.n, twin.k, twin.batch, twin.op,
         proposed[-1], expected.recipe.split],
        np.float32,
    )  # fmt: skip
