"""Which kernel a library chooses for a product that no table has, learnt from millions of its choices.

Candidates are the kernels and slices of k that the library chose for any problem of the same category
(`weighing.categories`). A small net, the sieve, leaves the best `KEPT` of them, among which larger nets choose. A net
sees of each how many blocks its tile makes of the problem, how full they and the last wave are, what an SM computes and
loads, what a step and a start of this kernel cost (numbers per kernel that were learnt, too), and how far each cost is
above the least among the candidates. The candidate of the largest worth is chosen.
`tileprof.harvest.product_ranker` trains the nets, by the same features.

A table of nets has a row per candidate, ``(group, number)``::

    recipes     [candidates, 13] int32     what is launched, slices of k as the library was asked for
    kernel      [candidates] int16         candidates that differ in slices of k alone are one kernel
    category<g>, eligible<g>               per group: its categories, and packed bits of their candidates
    <name><g>   [nets, ...] float          per group: parameters of nets (`PARAMETERS`), whose worths are averaged
    sieve_<name><g>  [...] float           per group: parameters of its sieve

A difference of worth below `_SAME` counts as none, so that rounding does not decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tables.product_entries import KINDS, RECIPE, Recipe
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products import weighing
from tileprof.record.model.tiles.products.fitting import NAMELESS, as_launched, cuts_at_lines, fitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.record.model.tables import Table
    from tileprof.record.model.tiles.products.problem import Problem

GROUPS: Final = {problems.FP32: 0, problems.TF32: 1, problems.FP16: 2, problems.BF16: 2}
"""Types whose kernels are told apart by the same nets."""
SCALES: Final = ("mean", "width", "whole_mean", "whole_width")
"""Of what nets see of candidates and of problems."""
PARAMETERS: Final = (
    *SCALES, "tile", "problem", "bias", "kernel", "to_scale", "to_shift", "cost", "worth", "second", "second_bias",
    "last", "last_bias",
)  # fmt: skip
"""Of a net, inputs first: weights of what candidates and problems have, and their bias; what is learnt of a kernel, and
how it scales and shifts the first layer; logarithms of a kernel's costs of a step and a start in four ways, and a worth
of its own; the layers behind."""
COST_WAYS: Final = 4
KEPT: Final = 64
FARTHEST: Final = 8.0
"""The largest distance to the least cost, in factors of two."""
_SAME: Final = 1e-4
_KIND, _POST = RECIPE.index("kind"), RECIPE.index("post")
_SHAPE: Final = [RECIPE.index(name) for name in ("m", "n", "cluster_m", "cluster_n", "split")]
_NAMELESS: Final = [KINDS.index(kind) for kind in sorted(NAMELESS)]


Parameters = dict[str, "NDArray[np.float32]"]


@dataclass(frozen=True, slots=True)
class _Group:
    """Candidates of a group, and the nets that choose among them."""

    recipes: NDArray[np.int32]
    kernel: NDArray[np.int64]
    shapes: NDArray[np.float32]
    nameless: NDArray[np.bool_]
    cuts: NDArray[np.bool_]
    categories: dict[int, NDArray[np.int64]]
    sieve: tuple[Parameters, ...]
    nets: tuple[Parameters, ...]


def choose(problem: Problem, nets: Table, sms: int) -> Recipe | None:
    """Return the kernel that a library is expected to launch for a problem on a GPU of so many SMs, as launched; None
    for problems like which the nets have seen none.
    """
    number = GROUPS.get(problem.dtype)
    if number is None:
        return None
    key = ("group", number)
    if key not in nets.derived:
        nets.derived[key] = _group(nets, number)
    group: _Group = nets.derived[key]
    some = group.categories.get(int(weighing.categories(np, np.array([problem.key]))[0]))
    if some is None:
        return None
    if len(some) > KEPT:
        worth = _worths(problem, group, some, group.sieve)
        some = some[np.sort(np.argpartition(-worth, KEPT)[:KEPT])]
    worth = _worths(problem, group, some, group.nets)
    best = int(some[np.flatnonzero(worth >= worth.max() - _SAME)[0]])
    return fitted(Recipe.of(group.recipes[best]), problem, sms)


def _group(nets: Table, number: int) -> _Group:
    rows = nets.members({0: number})
    columns = nets.columns
    recipes = columns["recipes"][rows]
    eligible = np.unpackbits(columns[f"eligible{number}"], axis=1, count=len(rows)).astype(bool)
    sieve, parameters = (
        {name: columns[f"{prefix}{name}{number}"].astype(np.float32) for name in PARAMETERS}
        for prefix in ("sieve_", "")
    )
    return _Group(
        recipes,
        columns["kernel"][rows].astype(np.int64),
        recipes[:, _SHAPE].astype(np.float32),
        np.isin(recipes[:, _KIND], _NAMELESS),
        cuts_at_lines(recipes[:, _KIND], recipes[:, _POST]),
        {int(word): np.flatnonzero(own) for word, own in zip(columns[f"category{number}"], eligible, strict=True)},
        (sieve,),
        tuple({name: values[net] for name, values in parameters.items()} for net in range(len(parameters["last"]))),
    )


def _worths(
    problem: Problem, group: _Group, some: NDArray[np.int64], nets: Sequence[Parameters]
) -> NDArray[np.float64]:
    """Return the worth of each of some candidates for a problem: the mean of what nets say."""
    keys = np.array([problem.key], np.float32)
    shapes = [group.shapes[some, i] for i in range(5)]
    tile = [size[0] for size in as_launched(np, keys, shapes, group.nameless[some], group.cuts[some])]
    seen = np.stack([column[0] for column in weighing.tile_features(np, keys, [size[None] for size in tile])], -1)
    whole = np.stack([column[0, 0] for column in weighing.problem_features(np, keys)])
    costs = seen[:, weighing.COSTS]
    work = [column[0] for column in weighing.work(np, keys, [size[None] for size in tile])]
    costs = np.minimum(costs - costs.min(axis=0), FARTHEST)
    return np.mean([_worth(net, group.kernel[some], seen, costs, whole, work) for net in nets], axis=0)


def _worth(
    net: Parameters,
    kernel: NDArray[np.int64],
    seen: NDArray[np.float32],
    costs: NDArray[np.float32],
    whole: NDArray[np.float32],
    work: list[NDArray[np.float32]],
) -> NDArray[np.float64]:
    """Return what one net says: ``seen`` and ``costs`` are of each candidate, ``whole`` of the problem, and ``work`` is
    `weighing.work`.
    """
    *repeats, steps = work
    cost = np.exp(net["cost"][kernel])
    times = np.stack([
        np.log(steps * cost[:, 2 * way] + 4 * (way + 1) * cost[:, 2 * way + 1]) + np.log(repeat)
        for way in range(COST_WAYS) for repeat in repeats
    ], -1)  # fmt: skip
    times = np.minimum(times - times.min(axis=0), FARTHEST)
    known = np.concatenate([(seen - net["mean"]) / net["width"], costs, times], axis=1)
    whole = (whole - net["whole_mean"]) / net["whole_width"]
    own = net["kernel"][kernel]
    first = (known @ net["tile"]) * (1 + own @ net["to_scale"]) + own @ net["to_shift"]
    first += whole @ net["problem"] + net["bias"]
    second = np.maximum(np.maximum(first, 0) @ net["second"] + net["second_bias"], 0)
    return np.asarray(second @ net["last"] + net["last_bias"] + net["worth"][kernel], np.float64)
