"""From a harvest of products to the table that the model recorder reads: ``python -m tileprof.harvest.product_table``.

A *recipe* is what products of many sizes share: the main kernel's tile, pipeline, cluster, slices of k and resources,
and what is launched beside it. `RECIPE` names its numbers. An entry of the table is a problem, its recipe and two
durations: of the main kernel, and of all other launches of the call. Held-out cases are left out.
"""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest.kernel_names import KernelName, parse
from tileprof.harvest.library_choices import ATTRIBUTES, more_cases
from tileprof.harvest.product_cases import COLUMNS, Dtype, Op, harvested, held_out
from tileprof.harvest.slices import Harvested, load
from tileprof.record.model.tables import write
from tileprof.record.model.tables.product_entries import KINDS, POSTS, RECIPE, time_code
from tileprof.record.model.tiles.products.fitting import NAMELESS
from tileprof.record.model.tiles.products.problem import KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_HELPERS: Final = ("memset", "memcpy", "splitKreduce", "globalKernel")
_AUXILIARY: Final = ("scal_kernel", "scal_64addr", "prepare_grouped_gemm_data")


class Entry:
    """One harvested case: its recipe, and durations in ns."""

    __slots__ = ("main_ns", "recipe", "rest_ns")

    def __init__(self, recipe: tuple[int, ...], main_ns: float, rest_ns: float) -> None:
        self.recipe = recipe
        self.main_ns = main_ns
        self.rest_ns = rest_ns


def entries(harvested: Harvested) -> list[Entry | None]:
    """Return an entry per case; None for cases that failed, or whose slices of k no name and no grid tells."""
    names = [parse(name) for name in harvested.names]
    helper = np.array(
        [
            n.family in _HELPERS or any(w in full for w in _AUXILIARY)
            for n, full in zip(names, harvested.names, strict=True)
        ]
    )
    bounds = np.searchsorted(harvested.case, np.arange(len(harvested.cases) + 1))
    return [
        _entry(harvested, names, helper, harvested.cases[i], range(int(bounds[i]), int(bounds[i + 1])))
        for i in range(len(harvested.cases))
    ]


def _entry(
    h: Harvested, names: list[KernelName], helper: NDArray[np.bool_], case: NDArray[np.int64], rows: range
) -> Entry | None:
    mains = [row for row in rows if not helper[h.name[row]]]
    if not mains:
        return None
    of_row = [names[h.name[row]] for row in rows]
    two = len(mains) == 2 and names[h.name[mains[1]]].split and names[h.name[mains[1]]].family == "xmma"
    main = mains[0] if two else max(mains, key=lambda row: h.ns[row])
    name = names[h.name[main]]
    batch, m, n = (int(case[i]) for i in (4, 5, 6))
    grid = [int(size) for size in h.grid[main]]
    cleared = any(one.family == "memset" for one in of_row)
    reduced = any(one.family == "splitKreduce" for one in of_row)
    post = "tiles" if two else "reduce" if reduced else "none"
    if any(one.family == "globalKernel" for one in of_row):
        post = "epilogue"
    tile = (name.m, name.n) if name.m else _from_grid(grid, m, n, batch)
    split = 1
    if name.family == "nvjet":
        tiles = -(-m // (name.m * name.cluster[0])) * -(-n // (name.n * name.cluster[1])) * batch
        clusters = grid[0] * grid[1] * grid[2] // (name.cluster[0] * name.cluster[1])
        if name.split:
            split = clusters // tiles
            if clusters % tiles or split < 2:
                return None
    elif (reduced or two or (cleared and "sm90" not in h.names[h.name[main]])) and grid[2] >= batch:
        split = max(1, grid[2] // batch)
    if split > 1 and post == "none":
        post = "inside"
    threads = int(np.prod(h.block[main]))
    kind = KINDS.index(name.family) if name.family in KINDS else 0
    recipe = (
        kind, *tile, name.k, name.stages, *name.cluster, split, int(cleared), POSTS.index(post), threads,
        int(h.registers[main]), int(h.shared_bytes[main]),
    )  # fmt: skip
    total = float(h.ns[rows.start : rows.stop].sum())
    return Entry(recipe, float(h.ns[main]), total - float(h.ns[main]))


def _from_grid(grid: list[int], m: int, n: int, batch: int) -> tuple[int, int]:
    """Return the tile of a kernel whose name does not tell it: x runs along n or, alone, along both."""
    x, y, z = grid
    if x * y * z == batch or not (x and y):
        return m, n
    if y == 1 and z in (1, batch):  # one axis of blocks: along the longer side
        return (m, max(1, -(-n // x))) if n >= m else (max(1, -(-m // x)), n)
    return max(1, -(-m // y)), max(1, -(-n // x))


_ANSWERED: Final = (Op.MM, Op.ADDMM, Op.BMM)
_TRUSTED: Final = 0.8
"""An algorithm of cuBLASLt stands for a kernel where at least this share of its launches had that one."""
_BIAS_WORKSPACE: Final = 1 << 20
"""Bytes that PyTorch gives cuBLASLt, which it calls for products with a bias, for partial sums of float32."""
_NAMELESS: Final = frozenset(KINDS.index(kind) for kind in NAMELESS)
_KIND, _M, _N, _SPLIT, _POST = (RECIPE.index(name) for name in ("kind", "m", "n", "split", "post"))
_ASKED_SPLIT: Final = ATTRIBUTES.index("split_k")
_MOST_SPLIT: Final = 1 << 16


def answered(
    folder: Path, launched: dict[tuple[int, ...], Entry], count: int, seed: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield problems and recipes of ``count`` answers of cuBLASLt (`library_choices`), as launched cases explain them.

    Recipes have the slices of k that were asked for, and of kernels whose names tell no tile the largest one that was
    seen (`tileprof.record.model.tiles.products.fitting` makes of both what is launched). Products with a bias are left
    out in float32, where PyTorch's launches are not what the library answers, and where partial sums need more memory
    than PyTorch gives.
    """
    files = sorted(folder.glob("choices-*.npz"))
    parts = []
    for path in files:
        with np.load(path) as part:
            parts.append({name: part[name] for name in part.files})
    meaning = _meanings(parts, launched)
    for worker, part in enumerate(parts):
        first = int(part["asked"][0])
        answers = part["answer"][first : first + count // len(parts)].tolist()
        for case, answer in zip(more_cases(seed * 1000 + worker), answers, strict=False):
            if answer < 0 or case[0] not in _ANSWERED or (case[0] == Op.ADDMM and case[1] <= Dtype.TF32):
                continue
            row = part["algorithms"][answer]
            meant = meaning.get(_algorithm(case, row))
            if meant is None:
                continue
            split = int(row[_ASKED_SPLIT]) if meant[_SPLIT] > 1 else 1
            too_large = case[0] == Op.ADDMM and split > 1 and 4 * split * case[5] * case[6] > _BIAS_WORKSPACE
            if split <= _MOST_SPLIT and not too_large:
                yield tuple(int(n) for n in case[:8]), (*meant[:_SPLIT], split, *meant[_SPLIT + 1 :])


def _meanings(
    parts: Sequence[dict[str, NDArray[np.int64]]], launched: dict[tuple[int, ...], Entry]
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the recipe of each algorithm that was both answered and launched, mostly as one kernel."""
    total = int(sum(part["asked"][0] for part in parts))
    known = np.concatenate([held_out(), harvested(total - len(held_out()))])
    votes: dict[tuple[int, ...], Counter[tuple[int, ...]]] = defaultdict(Counter)
    for worker, part in enumerate(parts):
        for case, answer in zip(known[worker :: len(parts)].tolist(), part["answer"].tolist(), strict=False):
            entry = launched.get(tuple(case[:8]))
            if entry is not None and answer >= 0:
                votes[_algorithm(case, part["algorithms"][answer])][entry.recipe] += 1
    meaning = {}
    for algorithm, recipes in votes.items():
        kernels: Counter[tuple[int, ...]] = Counter()
        for recipe, number in recipes.items():
            kernels[kernel(recipe)] += number
        best, most = kernels.most_common(1)[0]
        if most < _TRUSTED * sum(kernels.values()):
            continue
        own = {recipe: number for recipe, number in recipes.items() if kernel(recipe) == best}
        common = max(own, key=lambda recipe: own[recipe])
        if common[_KIND] in _NAMELESS:
            common = (common[0], *(max(recipe[i] for recipe in own) for i in (_M, _N)), *common[_N + 1 :])
        meaning[algorithm] = common
    return meaning


def kernel(recipe: Sequence[int]) -> tuple[int, ...]:
    """Return what tells kernels apart: kind, tile where the name tells it, k, cluster, whether k is sliced, and how
    slices are added up.
    """
    kind, m, n, k, _, cluster_m, cluster_n, split, _, post = (int(number) for number in recipe[:10])
    tile = (0, 0) if kind in _NAMELESS else (m, n)
    return (kind, *tile, k, cluster_m, cluster_n, int(split > 1), post)


def _algorithm(case: Sequence[int], row: NDArray[np.int64]) -> tuple[int, ...]:
    """Return what tells algorithms apart: operation, type, layouts, and the algorithm, of slices whether it has."""
    numbers = [int(number) for number in row]
    numbers[_ASKED_SPLIT] = min(numbers[_ASKED_SPLIT], 2)
    return (*(int(n) for n in case[:4]), *numbers)


def gathered(folders: Sequence[Path]) -> tuple[dict[tuple[int, ...], Entry], dict[str, Any]]:
    """Return the entries of all launched cases in ``folders`` that are not held out, by problem, and what they hold
    for.
    """
    parts = [load(folder, "products") for folder in folders]
    away = set(map(tuple, held_out().tolist()))
    rows: dict[tuple[int, ...], Entry] = {}
    for part in parts:
        for case, entry in zip(part.cases.tolist(), entries(part), strict=True):
            if entry is not None and tuple(case) not in away:
                rows[tuple(case[:8])] = entry
    return rows, dict(parts[0].about)


def build(
    folders: Sequence[Path], path: Path, choices: Path | None = None, count: int = 0, seed: int = 1
) -> dict[str, Any]:
    """Write the table of all slices in ``folders``, and of ``count`` answers in ``choices``; a summary."""
    rows, about = gathered(folders)
    measured = len(rows)
    if choices is not None:
        for key, recipe in answered(choices, dict(rows), count, seed):
            rows.setdefault(key, Entry(recipe, 0.0, 0.0))
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
            "made": "python -m tileprof.harvest.product_table",
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


def write_held_out(folders: Sequence[Path], path: Path) -> int:
    """Write what the held-out cases launched, as CSV; how many they are."""
    away = {tuple(case) for case in held_out().tolist()}
    rows: dict[tuple[int, ...], tuple[object, ...]] = {}
    for part in (load(folder, "products") for folder in folders):
        for case, entry in zip(part.cases.tolist(), entries(part), strict=True):
            if tuple(case) in away and entry is not None:
                words = dict(zip(RECIPE, entry.recipe, strict=True))
                known = [words[name] for name in ("m", "n", "cluster_m", "cluster_n", "split", "cleared")]
                kind, post = KINDS[words["kind"]], POSTS[words["post"]]
                rows[tuple(case)] = (*case, kind, *known, post, round(entry.main_ns), round(entry.rest_ns))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, "kind", "tile_m", "tile_n", "cluster_m", "cluster_n", "split", "cleared", "post",
                         "main_ns", "rest_ns"])  # fmt: skip
        writer.writerows(rows[tuple(case)] for case in held_out().tolist() if tuple(case) in rows)
    return len(rows)


def main(words: list[str] | None = None) -> int:
    """Make the table."""
    parser = ArgumentParser("python -m tileprof.harvest.product_table", description="make the table of products")
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="folders of slices")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--held-out", type=Path, metavar="CSV", help="write what held-out cases launched, too")
    parser.add_argument("--choices", type=Path, metavar="DIR", help="answers of tileprof.harvest.library_choices")
    parser.add_argument("--count", type=int, default=300_000, help="how many of them (default: %(default)s)")
    options = parser.parse_args(words)
    sys.stdout.write(f"{build(options.folders, options.output, options.choices, options.count)}\n")
    if options.held_out is not None:
        sys.stdout.write(f"{write_held_out(options.folders, options.held_out)} held-out cases\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
