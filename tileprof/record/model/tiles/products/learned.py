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
    sieve: Parameters
    nets: tuple[Parameters, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What nets see: kernels of candidates, `weighing.tile_features` of each, what is of the problem, and
    `weighing.work` of each.
    """

    kernel: NDArray[np.int64]
    tile: NDArray[np.float32]
    whole: NDArray[np.float32]
    work: NDArray[np.float32]

    def of(self, some: NDArray[np.int64]) -> _Seen:
        """Return what nets see of some of the candidates."""
        return _Seen(self.kernel[some], self.tile[some], self.whole, self.work[some])


def choose(problem: Problem, nets: Table, sms: int) -> Recipe | None:
    """Return the kernel that a library is expected to launch for a problem on a GPU of so many SMs, as launched; None
    for problems like which the nets have seen none.
    """
    known: dict[tuple[Problem, int], Recipe | None] = nets.derived.setdefault("chosen", {})
    if (problem, sms) not in known:
        known[problem, sms] = _chosen(problem, nets, sms)
    return known[problem, sms]


def _chosen(problem: Problem, nets: Table, sms: int) -> Recipe | None:
    number = GROUPS.get(problem.dtype)
    if number is None:
        return None
    key = ("group", number)
    if key not in nets.derived:
        nets.derived[key] = _group(nets, number)
    group: _Group = nets.derived[key]
    some = group.categories.get(int(weighing.categories(np, np.array([problem.key]))[0]))
    if some is None or not len(some):
        return None
    seen = _seen(problem, group, some)
    if len(some) > KEPT:
        kept = np.sort(np.argpartition(-_worth(group.sieve, seen), KEPT)[:KEPT])
        some, seen = some[kept], seen.of(kept)
    worth = np.mean([_worth(net, seen) for net in group.nets], axis=0)
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
        sieve,
        tuple({name: values[net] for name, values in parameters.items()} for net in range(len(parameters["last"]))),
    )


def _seen(problem: Problem, group: _Group, some: NDArray[np.int64]) -> _Seen:
    keys = np.array([problem.key], np.float32)
    shapes = [group.shapes[some, i] for i in range(5)]
    tile = as_launched(np, keys, shapes, group.nameless[some], group.cuts[some])
    tile = [np.broadcast_to(size, (1, len(some))) for size in tile]
    return _Seen(
        group.kernel[some],
        np.concatenate(weighing.tile_features(np, keys, tile)).T,
        np.concatenate(weighing.problem_features(np, keys), axis=1)[0],
        np.concatenate(weighing.work(np, keys, tile)).T,
    )


def _worth(net: Parameters, seen: _Seen) -> NDArray[np.float64]:
    """Return what one net says of each candidate."""
    costs = seen.tile[:, weighing.COSTS]
    costs = np.minimum(costs - costs.min(axis=0), FARTHEST)
    cost = np.exp(net["cost"][seen.kernel])
    starts = 4 * np.arange(1, COST_WAYS + 1, dtype=np.float32)
    once = np.log(seen.work[:, 3:] * cost[:, ::2] + starts * cost[:, 1::2])
    times = (once[:, :, None] + np.log(seen.work[:, None, :3])).reshape(len(once), -1)
    times = np.minimum(times - times.min(axis=0), FARTHEST)
    known = np.concatenate([(seen.tile - net["mean"]) / net["width"], costs, times], axis=1)
    whole = (seen.whole - net["whole_mean"]) / net["whole_width"]
    own = net["kernel"][seen.kernel]
    first = (known @ net["tile"]) * (1 + own @ net["to_scale"]) + own @ net["to_shift"]
    first += whole @ net["problem"] + net["bias"]
    second = np.maximum(np.maximum(first, 0) @ net["second"] + net["second_bias"], 0)
    return np.asarray(second @ net["last"] + net["last_bias"] + net["worth"][seen.kernel], np.float64)
