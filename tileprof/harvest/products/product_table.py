"""From a harvest of products to the table that the model recorder reads: ``python -m
tileprof.harvest.products.product_table``.

An entry of the table is a problem, its recipe (`product_recipes`) and two durations: of the main kernel, and of all
other launches of the call; captured cases, which were not launched, have none. Held-out cases are left out.
"""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest.products.product_captures import Answers, read
from tileprof.harvest.products.product_cases import COLUMNS, Dtype, Op, are_held_out, held_out
from tileprof.harvest.products.product_recipes import Entry, entries
from tileprof.harvest.slices import load
from tileprof.record.model.tables import write
from tileprof.record.model.tables.product_entries import KINDS, POSTS, RECIPE, time_code
from tileprof.record.model.tiles.products.fitting import NAMELESS, as_launched, cuts_at_lines
from tileprof.record.model.tiles.products.problem import KEY, twins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.record.model.tables import Table

_RARE: Final = (Op.ADDMM_MATRIX, Op.BADDBMM)
_RESOURCES: Final = RECIPE.index("registers")
_KIND, _CLEARED, _POST = (RECIPE.index(name) for name in ("kind", "cleared", "post"))
_SHAPE: Final = [RECIPE.index(name) for name in ("m", "n", "cluster_m", "cluster_n", "split")]


def gathered(folders: Sequence[Path]) -> tuple[dict[tuple[int, ...], Entry], dict[str, Any]]:
    """Return the entries of all launched cases in ``folders`` that are not held out, by problem, and what they hold
    for.
    """
    parts = [load(folder, "products") for folder in folders]
    rows: dict[tuple[int, ...], Entry] = {}
    for part in parts:
        away = are_held_out(part.cases).tolist()
        for case, entry, is_away in zip(part.cases.tolist(), entries(part), away, strict=True):
            if entry is not None and not is_away:
                rows[tuple(case[:8])] = entry
    return rows, dict(parts[0].about)


def chosen(keys: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """Return the places of about ``count`` captured problems, drawn with a fixed seed.

    Problems in float32, whose kernels vary most with sizes, and rare operations are taken more often.
    """
    weight = np.where(keys[:, 1] <= Dtype.TF32, 1.4, 1.0) * np.where(np.isin(keys[:, 0], _RARE), 2.0, 1.0)
    return np.flatnonzero(np.random.default_rng(0).random(len(keys)) < weight * count / weight.sum())


def build(
    folders: Sequence[Path], path: Path, answers: Answers | None = None, count: int | None = None
) -> dict[str, Any]:
    """Write the table of all slices in ``folders``, and of about ``count`` captured ``answers``, or of all; a
    summary.
    """
    rows, about = gathered(folders)
    measured = len(rows)
    if answers is not None:
        shared = {entry.recipe[:-1]: entry.recipe[-1] for entry in rows.values()}
        recipes = [tuple(row) for row in answers.recipes.tolist()]
        recipes = [(*recipe[:-1], shared.get(recipe[:-1], recipe[-1])) for recipe in recipes]
        places = np.arange(len(answers.keys)) if count is None else chosen(answers.keys, count)
        places = places[~are_held_out(answers.keys[places])]
        for key, place in zip(answers.keys[places].tolist(), answers.recipe[places].tolist(), strict=True):
            rows.setdefault(tuple(key), Entry(recipes[place], 0.0, 0.0))
    # Resources differ a little between layouts of one tile: a recipe has the most common ones.
    common: dict[tuple[int, ...], Counter[tuple[int, ...]]] = defaultdict(Counter)
    for entry in rows.values():
        common[entry.recipe[:-3]][entry.recipe[-3:]] += 1
    recipes = sorted(common, key=lambda recipe: -sum(common[recipe].values()))
    place = {recipe: number for number, recipe in enumerate(recipes)}
    keys = np.array(sorted(rows), np.int64)
    ordered = [rows[tuple(key)] for key in keys.tolist()]
    write(
        path,
        {
            "gpu": about["gpu"], "architecture": about["architecture"], "sms": about["sms"], "library": "cublas",
            "version": about["cublas"], "torch": about["torch"], "cuda": about["cuda"],
            "made": "python -m tileprof.harvest.products.product_table",
        },
        KEY,
        keys,
        {
            "recipes": np.array([(*recipe, *common[recipe].most_common(1)[0][0]) for recipe in recipes], np.int32),
            "recipe": np.array([place[entry.recipe[:-3]] for entry in ordered], np.uint16),
            "main_time": time_code(np.array([entry.main_ns for entry in ordered])),
            "rest_time": time_code(np.array([entry.rest_ns for entry in ordered])),
        },
    )  # fmt: skip
    assert len(RECIPE) == len(recipes[0]) + 3
    return {"entries": len(keys), "measured": measured, "recipes": len(recipes), "bytes": path.stat().st_size}


def launched(recipes: NDArray[np.int32], keys: NDArray[np.int64], sms: int) -> NDArray[np.int32]:
    """Return each recipe as it is launched for the problem of its row: `fitting.fitted` of many."""
    fit = recipes.copy()
    kind, post = (recipes[:, column].astype(np.int64) for column in (_KIND, _POST))
    nameless = np.array([name in NAMELESS for name in KINDS])[kind]
    cuts = cuts_at_lines(kind, post)
    shapes = recipes[:, None, _SHAPE].astype(np.int64)
    fit[:, _SHAPE] = as_launched(keys, shapes, nameless[:, None], cuts[:, None])[:, 0]
    m, n, cluster_m, cluster_n, split = fit[:, _SHAPE].T.astype(np.int64)
    clusters = -(-keys[:, 5] // (m * cluster_m)) * -(-keys[:, 6] // (n * cluster_n)) * keys[:, 4]
    dealt = (split == 1) & (clusters > sms // (cluster_m * cluster_n))
    fit[:, _CLEARED] = np.where(kind == KINDS.index("nvjet"), dealt, fit[:, _CLEARED])
    fit[:, _POST] = np.where((split > 1) | (recipes[:, _SHAPE[-1]] == 1), post, POSTS.index("none"))
    return fit


def _words(keys: NDArray[np.int64]) -> NDArray[np.void]:
    """Return a value per key that compares as the key does."""
    keys = np.ascontiguousarray(keys)
    return keys.view(np.dtype((np.void, keys.itemsize * keys.shape[1])))[:, 0]


def thin(source: Table, sure_recipes: NDArray[np.int32], path: Path) -> dict[str, int]:
    """Write a table without the captured entries that nets tell; a summary.

    ``sure_recipes`` is ``[entries, 13]``: the recipe that nets surely choose for each entry, as it would be launched,
    or -1. An entry is left out if that is the launches of its own, but for registers and bytes of shared memory.
    """
    columns = source.columns
    own = launched(columns["recipes"][columns["recipe"]], source.keys, source.about["sms"])
    same = (own[:, :_RESOURCES] == sure_recipes[:, :_RESOURCES]).all(axis=1)
    remaining = (columns["main_time"] > 0) | ~same
    # A product with a matrix to add is looked up as one without: what stands for that one must not answer for it.
    twin = twins(source.keys)
    remaining |= (twin != source.keys).any(axis=1) & np.isin(_words(twin), _words(source.keys[remaining]))
    rows = np.flatnonzero(remaining)
    used, recipe = np.unique(columns["recipe"][rows], return_inverse=True)
    about = {name: value for name, value in source.about.items() if name not in ("key", "digest")}
    write(
        path, about, KEY, source.keys[rows],
        {
            "recipes": columns["recipes"][used], "recipe": recipe.reshape(-1).astype(np.uint16),
            "main_time": columns["main_time"][rows], "rest_time": columns["rest_time"][rows],
        },
    )  # fmt: skip
    return {"entries": len(rows), "left out": len(source) - len(rows), "bytes": path.stat().st_size}


def write_held_out(folders: Sequence[Path], path: Path) -> int:
    """Write what the held-out cases launched, as CSV; how many they are."""
    away = {tuple(case) for case in held_out().tolist()}
    rows: dict[tuple[int, ...], tuple[object, ...]] = {}
    for part in (load(folder, "products") for folder in folders):
        for case, entry in zip(part.cases.tolist(), entries(part), strict=True):
            if tuple(case) in away and entry is not None:
                words = dict(zip(RECIPE, entry.recipe, strict=True))
                kernel_facts = [words[name] for name in ("m", "n", "cluster_m", "cluster_n", "split", "cleared")]
                kind, post = KINDS[words["kind"]], POSTS[words["post"]]
                rows[tuple(case)] = (*case, kind, *kernel_facts, post, round(entry.main_ns), round(entry.rest_ns))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, "kind", "tile_m", "tile_n", "cluster_m", "cluster_n", "split", "cleared", "post",
                         "main_ns", "rest_ns"])  # fmt: skip
        writer.writerows(rows[tuple(case)] for case in held_out().tolist() if tuple(case) in rows)
    return len(rows)


def main(words: list[str] | None = None) -> int:
    """Make the table."""
    parser = ArgumentParser(
        "python -m tileprof.harvest.products.product_table", description="make the table of products"
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="folders of slices")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--held-out", type=Path, metavar="CSV", help="write what held-out cases launched, too")
    parser.add_argument("--captures", type=Path, metavar="DIR", help="of tileprof.harvest.products.product_captures")
    parser.add_argument("--launched", type=int, default=0, help="as for the captures")
    parser.add_argument("--seed", type=int, default=1, help="as for the captures")
    parser.add_argument("--count", type=int, help="about how many captured problems (default: all)")
    options = parser.parse_args(words)
    answers = None if options.captures is None else read(options.captures, options.launched, options.seed)
    sys.stdout.write(f"{build(options.folders, options.output, answers, options.count)}\n")
    if options.held_out is not None:
        sys.stdout.write(f"{write_held_out(options.folders, options.held_out)} held-out cases\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
