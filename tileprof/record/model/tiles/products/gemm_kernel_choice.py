"""Which kernels a product gets, and how that is known: dictated, measured, proposed, learnt, like a measured one, or by
rule.

In this order: what the user dictates; the entry of exactly this problem in the table of the GPU; the kernel that the
library is expected to choose (`kernel_trees` with float32, `product_nets` with 16 bits), but for an nvjet kernel of
Hopper NVIDIA's library, where it is installed (`library_heuristic`), has another one that the `arbiter` believes, of
which only kernels that were seen for the type and epilogue count; the nearest entry; tileprof's rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tileprof.record.model import tables
from tileprof.record.model.tables.product_entries import Recipe, recipe_of, time_ns
from tileprof.record.model.tiles.foundations.overrides import dictated
from tileprof.record.model.tiles.products import (
    arbiter,
    gemm_tile_rule,
    kernel_trees,
    library_heuristic,
    neighbours,
    nvjet,
    product_nets,
)
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.gemm_tile_rule import Tile
from tileprof.trace.sources import ShapeSource, TimeSource

if TYPE_CHECKING:
    from tileprof.devices import Device
    from tileprof.record.model.tables import Table
    from tileprof.record.model.tiles.products.problem import Problem

_NEAR: Final = 64
"""How many near entries say which kernel is expected."""
_CLEARING_NS, _ADDING_NS = 750.0, 1900.0
"""Medians, on an H200, of a launch that clears a counter, and of one that adds slices up."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A product's kernels: the main one's tile, what comes before and behind it, and times in ns (0: unknown).

    ``post`` as in `tileprof.record.model.tables.product_entries.POSTS`; "" where tileprof's rule decides.
    """

    tile: Tile
    source: ShapeSource
    cleared: bool = False
    post: str = ""
    main_ns: float = 0.0
    rest_ns: float = 0.0
    time_source: TimeSource = TimeSource.ROOFLINE
    kind: str = ""
    """The library of the kernel, as `tileprof.record.model.tables.product_entries.KINDS`; "" where a rule decides."""


def choose(
    problem: Problem | None,
    sizes: tuple[int, int, int],
    batch: int,
    *,
    itemsize: int,
    out_itemsize: int,
    rate: str,
    device: Device,
) -> Choice:
    """Return the choice for a product of ``sizes`` m, n, k, ``batch`` times; ``problem`` is None for what no table
    has.
    """
    options: dict[str, Any] = {"itemsize": itemsize, "out_itemsize": out_itemsize, "rate": rate, "device": device}
    if dictated("gemm", sizes) is not None:
        return Choice(gemm_tile_rule.choose("gemm", sizes, batch, **options), ShapeSource.DICTATED)
    table = tables.table("products", device) if problem is not None else None
    if problem is not None and table is not None:
        choice = measured(problem, table, device) or _of_another_layout(problem, table, device)
        if choice is not None:
            return choice
    elif problem is not None and device.architecture == nvjet.ARCHITECTURE and _aligned(problem):
        proposed = library_proposal(problem, None, device)
        if proposed is not None:
            return _of_recipe(proposed, problem, ShapeSource.HEURISTIC)
    tile = nvjet.choose(sizes, batch, **options) or gemm_tile_rule.choose("gemm", sizes, batch, **options)
    return Choice(tile, ShapeSource.RULE)


def measured(problem: Problem, table: Table, device: Device, *, exact: bool = True) -> Choice | None:
    """Return the choice that a table tells; None where it has nothing like the problem.

    ``exact`` False leaves the entry of this very problem out, as leave-one-out tests ask for.
    """
    row = table.row(problem.key)
    if row is not None and exact:
        columns = table.columns
        recipe, measured_ns = recipe_of(table, row), time_ns(int(columns["main_time"][row]))
        if not measured_ns:  # an answer of the library, as it would launch it
            recipe = fitted(recipe, problem, device.sms)
            return _with_time(_of_recipe(recipe, problem, ShapeSource.TABLE), problem, table, recipe, row)
        return replace(
            _of_recipe(recipe, problem, ShapeSource.TABLE),
            main_ns=measured_ns,
            rest_ns=time_ns(int(columns["rest_time"][row])),
            time_source=TimeSource.CALIBRATED,
        )
    twin = table.row(problem.twin.key) if row is None and exact else None
    if twin is not None:
        recipe = fitted(recipe_of(table, twin), problem, device.sms)
        return _with_time(_of_recipe(recipe, problem, ShapeSource.TABLE), problem, table, recipe, row)
    key = ("like", problem, row, device.name)
    if key not in table.derived:
        table.derived[key] = _like(problem, table, device, row)
    like: tuple[Recipe, ShapeSource, product_nets.Expected | None] | None = table.derived[key]
    if like is None:
        return None
    recipe, source, expected = like
    if recipe.kind == "nvjet":
        proposed = library_proposal(problem, table, device)
        if proposed is not None and _believes_library(problem, expected, proposed, device):
            recipe, source = proposed, ShapeSource.HEURISTIC
    return _with_time(_of_recipe(recipe, problem, source), problem, table, recipe, row)


def _of_another_layout(problem: Problem, table: Table, device: Device) -> Choice | None:
    """Return the choice for the same sizes with rows of a in memory, where the table has nothing with columns of both:
    cuBLAS's kernels for either have the same tiles and slices (recorded: Mamba in float32).
    """
    if not (problem.column_a and problem.column_b):
        return None
    choice = measured(replace(problem, column_a=0), table, device)
    exact = choice is not None and choice.source == ShapeSource.TABLE
    return replace(choice, source=ShapeSource.NEIGHBOUR) if choice is not None and exact else choice


def _with_time(choice: Choice, problem: Problem, table: Table, recipe: Recipe, row: int | None) -> Choice:
    """Return the choice with the time that near problems have, of which the entry ``row`` is none."""
    total = neighbours.times(problem, table, recipe, without=row)
    if not total:
        return choice
    rest = min(_CLEARING_NS * choice.cleared + _ADDING_NS * (choice.post not in ("none", "inside")), total / 2)
    return replace(choice, main_ns=total - rest, rest_ns=rest, time_source=TimeSource.INTERPOLATED)


def _believes_library(
    problem: Problem, expected: product_nets.Expected | None, proposed: Recipe, device: Device
) -> bool:
    """Return whether NVIDIA's library proposes another kernel than the nets expect, and is likelier to be right."""
    if expected is None:
        return True
    shapes = [(own.m, own.n, *own.cluster, own.split) for own in (expected.recipe, proposed)]
    trees = tables.table("product-arbiter", device)
    if shapes[0] == shapes[1] or trees is None:
        return False
    return arbiter.believes_library(problem, expected, shapes[1], trees)


def _like(
    problem: Problem, table: Table, device: Device, row: int | None
) -> tuple[Recipe, ShapeSource, product_nets.Expected | None] | None:
    """Return the recipe that a library is expected to choose, and how sure that is, or the nearest entry's; None where
    no entry is near. The entry ``row`` is left out.
    """
    expected = _expected(problem, device)
    if expected is not None and not product_nets.is_uneven(expected.recipe.kind, problem.n):
        return expected.recipe, ShapeSource.LEARNED, expected
    near, _ = neighbours.nearest(problem, table, _NEAR, without=row)
    alike = table.columns["recipes"][table.columns["recipe"][near]]
    if expected is None:
        return (fitted(Recipe.of(alike[0]), problem, device.sms), ShapeSource.NEIGHBOUR, None) if len(near) else None
    # only near entries tell how many rows a block of these takes
    recipe = expected.recipe
    own = neighbours.of_vector(problem, table, recipe.kind, without=row) if problem.n == 1 else None
    own = own or next((r for r in map(Recipe.of, alike) if r.kind == recipe.kind), None)
    return (recipe if own is None else fitted(own, problem, device.sms)), ShapeSource.LEARNED, expected


def _expected(problem: Problem, device: Device) -> product_nets.Expected | None:
    """Return what trees tell of the problem, else what nets tell."""
    trees, nets = (tables.table(family, device) for family in ("product-trees", "product-nets"))
    recipe = None if trees is None else kernel_trees.choose(problem, trees, device.sms)
    if recipe is not None:
        return product_nets.Expected(recipe, product_nets.SURE)
    return None if nets is None else product_nets.choose(problem, nets, device.sms)


def _aligned(problem: Problem) -> bool:
    """Return whether rows of all operands begin at multiples of 16 bytes, which nvjet kernels ask for."""
    rows = (problem.m if problem.column_a else problem.k, problem.k if problem.column_b else problem.n, problem.n)
    return all(size % 8 == 0 for size in rows)


def library_proposal(problem: Problem, table: Table | None, device: Device) -> Recipe | None:
    """Return what NVIDIA's library proposes: its first, or, for products with a bias, which fewer kernels serve, the
    first of those that were seen with one.
    """
    nets = tables.table("product-nets", device)
    menu = {} if table is None else neighbours.menu(problem, table)
    menu |= {} if nets is None else product_nets.menu(problem, nets)
    for proposal in library_heuristic.proposals(problem, device):
        shape = (proposal.m, proposal.n, *proposal.cluster)
        if table is not None and problem.op == problems.BIAS and shape not in menu:
            continue
        together = proposal.cluster[0] * proposal.cluster[1]
        clusters = -(-problem.m // (proposal.m * proposal.cluster[0]))
        clusters *= -(-problem.n // (proposal.n * proposal.cluster[1])) * problem.batch * proposal.split
        itemsize = 1 if problem.dtype == problems.FP8 else 2
        recipe = menu.get(shape) or Recipe(
            "nvjet", proposal.m, proposal.n, proposal.k, proposal.stages, proposal.cluster, 1, cleared=False,
            post="none", threads=nvjet.THREADS, registers=nvjet.REGISTERS,
            shared_bytes=itemsize
            * (proposal.stages * (proposal.m + proposal.n) * proposal.k + proposal.m * proposal.n),
        )  # fmt: skip
        return replace(
            recipe,
            split=proposal.split,
            cleared=clusters > device.sms // together and proposal.split == 1,
            post="reduce" if proposal.split > 1 else "none",
        )
    return None


def _of_recipe(recipe: Recipe, problem: Problem, source: ShapeSource) -> Choice:
    depth = recipe.k or min(problem.k, 64)
    tile = Tile(
        recipe.m, recipe.n, depth, recipe.split, max(recipe.stages, 1), recipe.threads, recipe.registers,
        recipe.shared_bytes, recipe.cluster,
    )  # fmt: skip
    return Choice(tile, source, recipe.cleared, recipe.post, kind=recipe.kind)
