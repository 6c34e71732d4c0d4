"""Which kernel a library chooses for a product that no table has, learnt from millions of its choices.

Candidates are the kernels and slices of k that the library chose for any problem of the same category
(`categories`). The *shortlist net* sees the problem alone, gives each candidate a likelihood and keeps the
`SHORTLISTED` likeliest ones. The *ranking net* sees what a library weighs of each of these (`weighing`), also compared
with the least among them, and what was learnt of each kernel. The candidate of the largest worth is chosen.
`tileprof.harvest.products.product_ranker` trains both nets, by the same features.

A table of nets has a row per candidate, ``(group, number)``::

    recipes     [candidates, 13] int32     what is launched
    kernel      [candidates] int16         candidates that differ in slices of k alone are one kernel
    category<g>, eligible<g>               per group: its categories, and packed bits of their candidates
    <name><g>   int8, float32              per group: parameters (`SCALES`, `NUMBERS`, `SHORTLIST`, `RANKING`)
    <name>_step<g>  [outputs] float32      what 1 stands for in each column of a matrix of int8

A difference of worth below `_SAME` counts as none, so that rounding does not decide; `_ALONE` is the lead of an only
candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tileprof.record.model.tables.product_entries import KINDS, RECIPE, Recipe
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products import weighing
from tileprof.record.model.tiles.products.fitting import NAMELESS, fitted
from tileprof.record.model.tiles.products.weighing import Shapes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.record.model.tables import Table
    from tileprof.record.model.tiles.products.problem import Problem

GROUPS: Final = {problems.FP32: 0, problems.TF32: 1, problems.FP16: 2, problems.BF16: 2}
"""Types whose kernels are told apart by the same nets."""
ODD: Final = 3
"""The group of products of 16 bits in which rows of an operand begin between multiples of 16 bytes: they get kernels of
CUTLASS instead of nvjet's, which nets of their own tell apart."""
SHORTLISTED: Final = 16
SCALES: Final = ("problem_mean", "problem_width", "tile_mean", "tile_width")
"""Mean and width of the features of problems and of candidates."""
SHORTLIST: Final = ("shortlist0", "shortlist1", "shortlist2", "shortlist")
"""Layers of the shortlist net, inputs first; each has a weight ``[inputs, outputs]`` and a ``_bias``."""
RANKING: Final = ("trunk0", "trunk1", "problem", "cross", "tile", "scale", "shift", "second", "last")
"""Layers of the ranking net: two that see the problem, what it adds to the first layer of candidates and to what is
learnt of each kernel; the first layer, how a kernel scales and shifts it, and the layers behind."""
NUMBERS: Final = ("of_kernel", "cost", "worth", "prior")
"""What is learnt of each kernel; logarithms of its prices (`weighing.modelled_times`) in four ways; a worth of each
candidate; the weight of the shortlist net's likelihood."""
COST_WAYS: Final = 4
FARTHEST: Final = 8.0
"""The largest distance to the least cost, in factors of two or of e."""
NEAREST: Final = 1e-4
"""What is added to distances to the least time, whose roots tell near ones apart."""
UNLIKELIEST: Final = -30.0
"""The least logarithm of a likelihood."""
PRIOR_UNIT: Final = 4.0
"""Logarithms of likelihoods per unit that the ranking net sees."""
SURE, SURE_OF_NVJET = 1.0, 5.0
"""Leads from which on what is chosen counts as known: nvjet's kernels are known better by NVIDIA's library below."""
EVEN: Final = 7
"""The alignments in a category in which all rows begin at multiples of 16 bytes, which nvjet kernels ask for."""
_OP_BITS: Final = 5
"""Bits of a category below its operation: layouts and alignments."""
_SAME, _ALONE = 1e-4, 1e3
_KIND, _POST, _THREADS, _REGISTERS, _SHARED = (
    RECIPE.index(name) for name in ("kind", "post", "threads", "registers", "shared_bytes")
)
_SHAPE: Final = [RECIPE.index(name) for name in ("m", "n", "cluster_m", "cluster_n", "split")]
_IS_NAMELESS: Final = np.array([kind in NAMELESS for kind in KINDS])
_SM_THREADS, _SM_REGISTERS, _SM_BYTES, _SM_BLOCKS, _BLOCK_BYTES = 2048, 65536, 232448, 32, 1024
"""What an SM has, and what it keeps per block."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Candidates of a group, and its nets.

    ``last`` holds the shortlist net's last layer for the candidates of a category; ``of_kernel``, per kernel, what the
    ranking net's first layer scales and shifts by, and the prices of `weighing.modelled_times`.
    """

    recipes: NDArray[np.int32]
    kernel: NDArray[np.int64]
    shapes: Shapes
    nameless: NDArray[np.bool_]
    categories: dict[int, NDArray[np.int64]]
    net: dict[str, NDArray[np.float32]]
    of_kernel: tuple[NDArray[np.float32], ...]
    last: dict[int, tuple[NDArray[np.float32], NDArray[np.float32]]] = field(default_factory=dict)


Shape = tuple[int, ...]
"""A kernel's tile, cluster and slices of k: m, n, blocks of a cluster along m and along n, slices."""


class Expected(NamedTuple):
    """A kernel as it would be launched, and how far its worth is above that of any other: a logarithm of odds."""

    recipe: Recipe
    lead: float
    deficits: dict[Shape, float] = {}  # noqa: RUF012 - a default that nothing changes
    """How far each candidate's worth is below the largest, by tile, cluster and slices of k."""

    @property
    def sure(self) -> bool:
        """Whether the kernel counts as known."""
        return self.lead >= (SURE_OF_NVJET if self.recipe.kind == "nvjet" else SURE)


def choose(problem: Problem, nets: Table, sms: int) -> Expected | None:
    """Return the kernel that a library is expected to launch for a problem on a GPU of ``sms`` SMs; None for problems
    like which the nets have seen none.
    """
    key = np.array([problem.twin.key], np.int64)
    number = int(groups(key)[0])
    if f"category{number}" not in nets.columns:
        return None
    group = _group_of(nets, number)
    keys, category = key.astype(np.float32), int(categories(key)[0])
    some = group.categories.get(category)
    if some is None or not len(some):
        return None
    problem_inputs = _standard(weighing.problem_features(np, keys)[0], group.net, "problem")
    some, prior = _likeliest(problem_inputs, group, category, some)
    worth = _worth(keys, problem_inputs, group, some, prior)
    best = int(np.flatnonzero(worth >= worth.max() - _SAME)[0])
    lead = float(worth[best] - np.delete(worth, best).max()) if len(worth) > 1 else _ALONE
    rising = np.argsort(worth, kind="stable")  # of kernels of one shape the best one counts
    shapes = map(tuple, group.recipes[some[rising]][:, _SHAPE].tolist())
    deficits = dict(zip(shapes, (worth.max() - worth[rising]).tolist(), strict=True))
    return Expected(fitted(Recipe.of(group.recipes[some[best]]), problem, sms), max(0.0, lead), deficits)


def is_uneven(kind: str, n: int) -> bool:
    """Return whether only near entries tell how many rows the blocks of a kernel take: nets have seen few vectors."""
    return kind == "dot_kernel" or (kind == "gemv" and n == 1)


def menu(problem: Problem, nets: Table) -> dict[tuple[int, ...], Recipe]:
    """Return the nvjet kernels that products of 16 bits with or without a bias may get, by tile and cluster."""
    number, biased = GROUPS.get(problem.dtype), problem.op == problems.BIAS
    if number is None or f"category{number}" not in nets.columns:
        return {}
    key = ("menu", number, biased)
    if key not in nets.derived:
        group = _group_of(nets, number)
        some = [own for category, own in group.categories.items() if (category >> _OP_BITS == problems.BIAS) == biased]
        recipes = [Recipe.of(row) for row in group.recipes[np.unique(np.concatenate(some)).astype(int)]]
        nets.derived[key] = {(own.m, own.n, *own.cluster): own for own in reversed(recipes) if own.kind == "nvjet"}
    kernels: dict[tuple[int, ...], Recipe] = nets.derived[key]
    return kernels


def categories(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number per problem ``[problems, 8]``: kernels that are chosen for one of a category may be for another.

    Operation, layouts, and whether rows of each operand begin at multiples of 16 bytes.
    """
    op, dtype, column_a, column_b, _, m, n, k = keys.T
    unit = np.where(dtype < problems.FP16, 4, 8)
    number = (op * 2 + column_a) * 2 + column_b
    for size in (np.where(column_a == 1, m, k), np.where(column_b == 1, k, n), n):
        number = number * 2 + (size % unit == 0)
    return np.asarray(number)


def groups(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the group of nets of each problem ``[problems, 8]``; -1 for types that have none."""
    of_type = np.array([GROUPS.get(dtype, -1) for dtype in range(problems.FP8 + 1)])
    even = categories(keys) % (EVEN + 1) == EVEN
    number = of_type[keys[:, 1]]
    return np.where((number == GROUPS[problems.FP16]) & ~even, ODD, number)


def shapes_of(recipes: NDArray[np.int32], group: int) -> Shapes:
    """Return recipes as nets see them, arrays of float32."""
    threads, registers, shared = (np.maximum(recipes[:, i], 1) for i in (_THREADS, _REGISTERS, _SHARED))
    resident = np.minimum.reduce([
        _SM_THREADS // threads, _SM_REGISTERS // (-(-registers // 8) * 8 * threads),
        _SM_BYTES // (shared + _BLOCK_BYTES), np.full(len(recipes), _SM_BLOCKS),
    ])  # fmt: skip
    # cuBLAS keeps partial sums of CUTLASS's kernels in the type of the results.
    halves = (recipes[:, _KIND] == KINDS.index("cutlass")) & np.isin(group, (GROUPS[problems.FP16], ODD))
    columns = [*recipes[:, _SHAPE].T, np.maximum(resident, 1), recipes[:, _POST], np.where(halves, 2, 4)]
    return Shapes(*(column.astype(np.float32) for column in columns))


def nameless(recipes: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return which kernels' names tell no tile: these share a side evenly among as few blocks as cover it."""
    return np.asarray(_IS_NAMELESS[recipes[:, _KIND]])


def _group_of(nets: Table, number: int) -> _Group:
    if number not in nets.derived:
        nets.derived[number] = _group(nets, number)
    group: _Group = nets.derived[number]
    return group


def _group(nets: Table, number: int) -> _Group:
    rows, columns = nets.members({0: number}), nets.columns
    recipes = columns["recipes"][rows]
    eligible = np.unpackbits(columns[f"eligible{number}"], axis=1, count=len(rows)).astype(bool)
    names = [*SCALES, *NUMBERS, *SHORTLIST, *RANKING, *(f"{name}_bias" for name in (*SHORTLIST, *RANKING))]
    net = {name: _parameter(columns, name, number) for name in names}
    return _Group(
        recipes,
        columns["kernel"][rows].astype(np.int64),
        shapes_of(recipes, number),
        nameless(recipes),
        {int(word): np.flatnonzero(own) for word, own in zip(columns[f"category{number}"], eligible, strict=True)},
        net,
        (1 + _layer(net["of_kernel"], net, "scale"), _layer(net["of_kernel"], net, "shift"), np.exp(net["cost"])),
    )


def _parameter(columns: dict[str, NDArray[np.generic]], name: str, number: int) -> NDArray[np.float32]:
    values = columns[f"{name}{number}"].astype(np.float32)
    step = columns.get(f"{name}_step{number}")
    return values if step is None else values * step.astype(np.float32)


def _standard(values: NDArray[np.float32], net: dict[str, NDArray[np.float32]], scale: str) -> NDArray[np.float32]:
    return np.asarray((values - net[f"{scale}_mean"]) / net[f"{scale}_width"], np.float32)


def _layer(values: NDArray[np.float32], net: dict[str, NDArray[np.float32]], name: str) -> NDArray[np.float32]:
    return np.asarray(values @ net[name] + net[f"{name}_bias"], np.float32)


def _likeliest(
    problem_inputs: NDArray[np.float32], group: _Group, category: int, some: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the likeliest of the candidates ``some``, in their order, and logarithms of their likelihoods."""
    hidden, net = problem_inputs, group.net
    for name in SHORTLIST[:-1]:
        hidden = _layer(np.maximum(hidden, 0) if name != SHORTLIST[0] else hidden, net, name)
    if category not in group.last:
        group.last[category] = np.ascontiguousarray(net[SHORTLIST[-1]][:, some]), net[f"{SHORTLIST[-1]}_bias"][some]
    weight, bias = group.last[category]
    likely = hidden @ weight + bias
    most = likely.max()
    total = most + np.log(np.exp(likely - most).sum())
    if len(some) > SHORTLISTED:
        best = np.sort(np.argpartition(-likely, SHORTLISTED)[:SHORTLISTED])
        some, likely = some[best], likely[best]
    return some, np.maximum(likely - total, UNLIKELIEST).astype(np.float32)


def _worth(
    keys: NDArray[np.float32], problem: NDArray[np.float32], group: _Group, some: NDArray[np.int64],
    prior: NDArray[np.float32],
) -> NDArray[np.float32]:  # fmt: skip
    """Return the ranking net's value of each candidate."""
    net, shapes, kernel = group.net, group.shapes.take(some), group.kernel[some]
    even = group.nameless[some]
    if even.any():
        tiles = [
            np.where(even, np.ceil(size / np.ceil(size / tile)), tile)
            for size, tile in ((keys[0, 5], shapes.m), (keys[0, 6], shapes.n))
        ]
        shapes = shapes._replace(m=tiles[0], n=tiles[1])
    tile_inputs = weighing.tile_features(np, keys, shapes)[0]
    scale, shift, prices = (values[kernel] for values in group.of_kernel)
    prices = prices.reshape(1, len(some), COST_WAYS, weighing.PRICES)
    times = weighing.modelled_times(np, keys, shapes, prices)[0]
    costs, times = (np.minimum(v - v.min(axis=0), FARTHEST) for v in (tile_inputs[:, weighing.COSTS], times))
    likely = np.stack([prior, prior - prior.max()], axis=1) / PRIOR_UNIT
    near_ones = np.sqrt(times + NEAREST)
    inputs = np.concatenate([_standard(tile_inputs, net, "tile"), costs, times, near_ones, likely], axis=1)
    whole = np.maximum(_layer(np.maximum(_layer(problem, net, "trunk0"), 0), net, "trunk1"), 0)
    first = _layer(inputs, net, "tile") * scale + (shift + _layer(whole, net, "problem"))
    last = _layer(np.maximum(_layer(np.maximum(first, 0), net, "second"), 0), net, "last")[:, 0]
    crossed = net["of_kernel"][kernel] @ _layer(whole, net, "cross")
    return np.asarray(last + net["worth"][some] + crossed + net["prior"][0] * prior, np.float32)
