"""What the nets of products learn from: captured and measured products, their candidates, and the layers left out.

`tileprof.harvest.products.product_ranker` trains with these, `tileprof.harvest.products.product_trees` grows trees.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.errors import UserError
from tileprof.harvest.products import product_captures
from tileprof.harvest.products.product_cases import are_held_out, of_held_out_layers
from tileprof.record.model.tables import read
from tileprof.record.model.tables.product_entries import KINDS, POSTS, RECIPE
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products import product_nets

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

HELD_OUT_EVERY: Final = 25
LEAST, SHARE = 3, 2000
"""A kernel becomes a candidate of a category if it is chosen often enough for problems of the category, and with its
slices for problems of any category: once per `SHARE` problems, once at least; `LEAST` times are always enough."""
_KIND, _M, _N, _SPLIT, _POST = (RECIPE.index(name) for name in ("kind", "m", "n", "split", "post"))
_CLUSTER: Final = [RECIPE.index(name) for name in ("cluster_m", "cluster_n")]
_GEMV: Final = KINDS.index("gemv")
_SLICED: Final = [POSTS.index(post) for post in ("reduce", "inside")]


@dataclass(frozen=True, slots=True)
class Problems:
    """Captured or measured products: ``keys [problems, 8]``, as tables have them; the place of each one's recipe in
    ``recipes [recipes, 13]``.
    """

    keys: NDArray[np.int32]
    recipe: NDArray[np.int32]
    recipes: NDArray[np.int32]

    def of_group(self, group: int) -> NDArray[np.int64]:
        """Return the places of the problems of a group (`product_nets.groups`)."""
        return np.flatnonzero(product_nets.groups(self.keys.astype(np.int64)) == group)


def parser(module: str, description: str) -> ArgumentParser:
    """Return the command line of a program that learns: where lessons are, and where its result goes."""
    words = ArgumentParser(f"python -m tileprof.harvest.products.{module}", description=description)
    words.add_argument("sources", type=Path, nargs="+", metavar="SOURCE",
                       help="folders of captures (`product_captures`), and tables of products")  # fmt: skip
    words.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    words.add_argument("--seed", type=int, nargs="+", default=[1], help="as for each folder of captures")
    words.add_argument("--processes", type=int, default=1, help="that list the cases again")
    return words


def concluded(module: str, work: Callable[[], None]) -> int:
    """Return the exit code of ``work``; what a user can mend is a sentence on stderr."""
    try:
        work()
    except UserError as error:
        sys.stderr.write(f"tileprof.harvest.products.{module}: {error}\n")
        return error.exit_code
    return 0


def say(facts: dict[str, Any]) -> None:
    """Write facts at once, a line: a run that is cut has said what it knew."""
    sys.stdout.write(f"{json.dumps(facts)}\n")
    sys.stdout.flush()


def gathered(sources: list[Path], seeds: list[int], processes: int = 1) -> tuple[Problems, dict[str, Any]]:
    """Return the problems of folders of captures (a seed each) and of tables, each once, and what the first source
    holds for; of a problem that several have the first one's answer. Held-out products and layers are left out.

    Raises `UserError` for a source that is not there.
    """
    remaining = iter(seeds)
    keys: list[NDArray[np.int32]] = []
    recipe: list[NDArray[np.int32]] = []
    recipes: list[NDArray[np.int32]] = []
    abouts: list[dict[str, Any]] = []
    for source in sources:
        if not source.exists():
            raise UserError(f"there is no {source}: name folders of captures, and tables of products")
        if source.is_dir():
            about, answers = (
                product_captures.about(source),
                product_captures.read(source, 0, next(remaining), processes),
            )
            own = answers.keys, answers.recipe, answers.recipes
        else:
            table = read(source)
            about = {name: value for name, value in table.about.items() if name not in ("key", "digest", "made")}
            some = np.isin(table.keys[:, 0], product_captures.OPS) & np.isin(
                table.keys[:, 1], list(product_nets.GROUPS)
            )
            own = table.keys[some].astype(np.int32), table.columns["recipe"][some], table.columns["recipes"]
        abouts.append(about)
        keys.append(own[0])
        recipe.append(own[1].astype(np.int32) + sum(len(some) for some in recipes))
        recipes.append(own[2].astype(np.int32))
    every = np.ascontiguousarray(np.concatenate(keys))
    _, once = np.unique(every.view(np.dtype((np.void, every.itemsize * every.shape[1])))[:, 0], return_index=True)
    once = once[~of_held_out_layers(every[once]) & ~are_held_out(every[once])]
    return Problems(every[once], np.concatenate(recipe)[once], np.concatenate(recipes)), abouts[0]


def layer(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a word for the layer of each problem: its two widths, or the batch and sizes of attention."""
    batch, m, n, k = (keys[:, i] for i in (4, 5, 6, 7))
    one = np.where(keys[:, 2] == 1, m, k)
    low, high = np.minimum(one, n), np.maximum(one, n)
    return np.where(batch > 1, (batch * 131 + m) * 1000003 + n * 131 + k, low * 2654435761 + high * 40503 * 7919)


def held_out_layers(words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which layers (`layer`) nets are judged by."""
    return np.asarray((words % 1000003 * 7919 + 13) % 1009 % HELD_OUT_EVERY == 0)


def of_whole_blocks(every: Problems) -> Problems:
    """Return the problems with recipes in which matrix-vector kernels have the tile that they were made for.

    What is seen of one is the rows of a block, ``n / ceil(n / tile)``: the tile is the next power of two where that
    gives what was seen, which holds for 99.6% of those with several blocks. A kernel of one block has the tile that it
    has most often elsewhere, of those that are large enough.
    """
    of_kind = np.flatnonzero((every.recipes[:, _KIND] == _GEMV)[every.recipe])
    if not len(of_kind):
        return every
    own = every.recipes[every.recipe[of_kind]].astype(np.int64)
    kernel = np.unique(own[:, -3:], axis=0, return_inverse=True)[1].reshape(-1)
    for column, size in ((_M, every.keys[of_kind, 5]), (_N, every.keys[of_kind, 6])):
        block_rows, sizes = own[:, column], size.astype(np.int64)
        tile = 1 << np.ceil(np.log2(block_rows)).astype(np.int64)
        tile = np.where(-(-sizes // -(-sizes // tile)) == block_rows, tile, block_rows)
        several = block_rows < sizes
        for one in np.unique(kernel[~several & (sizes > 1)]).tolist():
            alone = np.flatnonzero((kernel == one) & ~several & (sizes > 1))
            tiles, times = np.unique(tile[(kernel == one) & several], return_counts=True)
            if len(tiles):
                fits = np.where(tiles >= sizes[alone, None], times, 0)
                tile[alone] = np.where(fits.any(axis=1), tiles[fits.argmax(axis=1)], tile[alone])
        own[:, column] = tile
    more, place = np.unique(own.astype(np.int32), axis=0, return_inverse=True)
    recipe = every.recipe.copy()
    recipe[of_kind] = len(every.recipes) + place.reshape(-1)
    return Problems(every.keys, recipe, np.concatenate([every.recipes, more]))


def kernels_of(recipes: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the kernel of each recipe, and recipes whose kernels without a tile in their name have the largest one
    seen.

    Kernels differ in kind, tile and cluster, and in whether another launch adds up their slices; where no name tells a
    tile, in threads, registers and shared memory instead, and those of matrix and vector (`of_whole_blocks`) in both.
    """
    nameless = product_nets.nameless(recipes)
    even = nameless & (recipes[:, _KIND] != _GEMV)
    tile_shapes = np.where(even[:, None], 0, recipes[:, [_M, _N]])
    own = np.where(nameless[:, None], recipes[:, -3:], 0)
    post = np.where(np.isin(recipes[:, _POST], _SLICED), 0, recipes[:, _POST])
    words = np.column_stack([recipes[:, [_KIND, *_CLUSTER]], post, tile_shapes, own])
    _, kernel = np.unique(words, axis=0, return_inverse=True)
    kernel = kernel.reshape(-1)
    largest = recipes.copy()
    for column in (_M, _N):
        most = np.zeros(kernel.max() + 1, np.int32)
        np.maximum.at(most, kernel, recipes[:, column])
        largest[:, column] = np.where(even, most[kernel], recipes[:, column])
    return kernel, largest


@dataclass(frozen=True, slots=True)
class Menu:
    """Candidates of a group: their recipes and kernels, categories, and which candidates each has."""

    recipes: NDArray[np.int32]
    kernel: NDArray[np.int64]
    categories: NDArray[np.int64]
    eligible: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Lesson:
    """Problems of a group: ``keys [problems, 8]`` without matrices to add, category and candidate (-1: none has it);
    the rows to train with and those to test with.
    """

    keys: NDArray[np.int64]
    category: NDArray[np.int64]
    candidate: NDArray[np.int64]
    training_rows: NDArray[np.int64]
    test_rows: NDArray[np.int64]


def prepared(every: Problems, group: int) -> tuple[Menu, Lesson]:
    """Return candidates and problems of a group of types."""
    inside = every.of_group(group)
    keys, place = problems.twins(every.keys[inside]), every.recipe[inside]
    kernel, recipes = kernels_of(every.recipes)
    away = held_out_layers(layer(keys))
    often = np.bincount(place[~away], minlength=len(recipes))
    words = np.column_stack([kernel, recipes[:, [_SPLIT, _POST]]])
    some, same = np.unique(words, axis=0, return_inverse=True)
    same = same.reshape(-1)
    first = np.zeros(len(some), np.int64)  # the recipe of a candidate: the one that is seen most
    order = np.argsort(often, kind="stable")
    first[same[order]] = order
    categories, category = np.unique(product_nets.categories(keys), return_inverse=True)
    category = category.reshape(-1)
    times = np.zeros((len(categories), len(some)), np.int64)
    np.add.at(times, (category[~away], same[place[~away]]), 1)
    of_kernel = np.zeros((some[:, 0].max() + 1, len(categories)), np.int64)
    np.add.at(of_kernel, some[:, 0], times.T)
    every_time, least = times.sum(axis=0), np.clip(times.sum(axis=1, keepdims=True) // SHARE, 1, LEAST)
    eligible = (least <= of_kernel[some[:, 0]].T) & (every_time >= np.clip(every_time.sum() // SHARE, 1, LEAST))
    menu_rows = np.flatnonzero(eligible.any(axis=0))
    eligible = eligible[:, menu_rows]
    of_candidate = np.unique(some[menu_rows, 0], return_inverse=True)[1].reshape(-1)
    renamed = np.full(len(some), -1)
    renamed[menu_rows] = np.arange(len(menu_rows))
    candidate = renamed[same][place]
    there = (candidate >= 0) & eligible[category, candidate]
    test_rows = np.flatnonzero(away)
    return (
        Menu(recipes[first[menu_rows]], of_candidate, categories, eligible),
        Lesson(keys, category, np.where(there, candidate, -1), np.flatnonzero(~away & there), test_rows),
    )
