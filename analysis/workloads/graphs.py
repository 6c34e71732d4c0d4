"""Random directed graphs with few vertices of many edges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RMAT = (0.57, 0.19, 0.19)
"""Probabilities of three of the four quadrants, as Graph500 has them."""


class Graph(NamedTuple):
    """Edges by source: those of vertex v are ``target[indptr[v]:indptr[v + 1]]``."""

    indptr: NDArray[np.int64]
    target: NDArray[np.int64]

    @property
    def degree(self) -> NDArray[np.int64]:
        return np.diff(self.indptr)


def rmat(scale: int, edges_per_vertex: int = 16, seed: int = 0) -> Graph:
    """``2 ** scale`` vertices (Chakrabarti, Zhan and Faloutsos, "R-MAT: a recursive model for graph mining", 2004); vertices are
    shuffled, and edges may repeat, as in Graph500.
    """
    random = np.random.default_rng(seed)
    n, m = 1 << scale, edges_per_vertex << scale
    source, target = np.zeros(m, np.int64), np.zeros(m, np.int64)
    a, b, c = RMAT
    for _ in range(scale):
        draw = random.random(m)
        source = 2 * source + (draw >= a + b)
        target = 2 * target + (((draw >= a) & (draw < a + b)) | (draw >= a + b + c))
    names = random.permutation(n)
    return _csr(n, names[source], names[target])


def power_law(vertices: int, edges_per_vertex: int = 16, exponent: float = 2.2, seed: int = 0) -> Graph:
    """Out-degrees drawn from a power law of that exponent, scaled to the mean, targets uniform."""
    random = np.random.default_rng(seed)
    weight = (1.0 - random.random(vertices)) ** (-1.0 / (exponent - 1.0))
    degree = np.minimum(np.rint(weight * edges_per_vertex / weight.mean()), vertices - 1).astype(np.int64)
    source = np.repeat(np.arange(vertices), degree)
    return _csr(vertices, source, random.integers(0, vertices, len(source)))


def _csr(n: int, source: NDArray[np.int64], target: NDArray[np.int64]) -> Graph:
    order = np.argsort(source, kind="stable")
    counts = np.bincount(source, minlength=n)
    return Graph(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), target[order].astype(np.int64))
