"""Random graphs with few vertices of many edges."""

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
    """Return ``2 ** scale`` vertices (Chakrabarti, Zhan and Faloutsos, "R-MAT: a recursive model for graph mining",
    2004); vertices are shuffled, and edges may repeat, as in Graph500.
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


def kronecker(scale: int, seed: int = 0) -> Graph:
    """Return R-MAT with 48 edges per vertex, both ways, without loops and repeats: so the graphs kron_g500-logn16 to 21
    of the 10th DIMACS challenge were made.
    """
    g = rmat(scale, 48, seed)
    n = len(g.degree)
    source = np.repeat(np.arange(n), g.degree)
    apart = source != g.target
    source, target = source[apart], g.target[apart]
    edge = np.unique(np.concatenate([source * n + target, target * n + source]))
    return _csr(n, edge // n, edge % n)


def power_law(vertices: int, edges_per_vertex: float = 16, exponent: float = 2.2, seed: int = 0) -> Graph:
    """Return degrees drawn from a power law of that exponent, scaled to the mean; a node with more edges out has as
    many more edges in.
    """
    random = np.random.default_rng(seed)
    weight = (1.0 - random.random(vertices)) ** (-1.0 / (exponent - 1.0))
    degree = np.minimum(np.rint(weight * edges_per_vertex / weight.mean()), vertices - 1).astype(np.int64)
    source = np.repeat(np.arange(vertices), degree)
    return _csr(vertices, source, random.permutation(source))


def citation(scale: int, seed: int = 0) -> Graph:
    """Return a power law with the mean degree (9.1) and the tail exponent (2.73) of the CiteSeer citations (KONECT's
    figures for 384,413 publications), without its directions and its clustering.
    """
    return power_law(1 << scale, 9.1, 2.73, seed)


def _csr(n: int, source: NDArray[np.int64], target: NDArray[np.int64]) -> Graph:
    order = np.argsort(source, kind="stable")
    counts = np.bincount(source, minlength=n)
    return Graph(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), target[order].astype(np.int64))
