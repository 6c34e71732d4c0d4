"""What PyTorch would launch for a product, without a launch: ``python -m tileprof.harvest.products.product_captures``.

`tileprof.harvest.graph_captures` says how.

A worker captures its share of the cases that were launched, too (`launched_cases`), then those that `drawn_cases`
lists again from ``--seed``, its number, and the options that say what is drawn (`Drawn`). The files hold, in the order
of the cases::

    asked      [6] int64              how many cases of the harvest, how many drawn, and the flags of `Drawn`
    recipe     [cases] int32          place in ``recipes``; -1 where the call failed, or its launches tell no recipe
    recipes    [recipes, 13] int32    `tileprof.record.model.tables.product_entries.RECIPE`
    count, name, grid                 launches of the cases of the harvest: how many, places in ``names``, grids
    names      [names] text;          resources  [names, 3] int32: registers, threads, bytes of shared memory
    about      text                   JSON: GPU and versions
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.errors import UserError
from tileprof.harvest.capture_workers import batches, option_parser, start
from tileprof.harvest.graph_captures import Captures, Launch
from tileprof.harvest.products.product_cases import Case, Drawn, Dtype, Op, captured, harvested, held_out
from tileprof.harvest.products.product_recipes import Entry, entries
from tileprof.harvest.slices import Harvested, machine
from tileprof.record.model.tables.product_entries import RECIPE
from tileprof.record.model.tiles.products.problem import KEY

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from numpy.typing import NDArray

OPS: Final = (Op.MM, Op.ADDMM, Op.ADDMM_MATRIX, Op.BMM, Op.BADDBMM)
MOST_BYTES: Final = 1 << 30
"""Bytes of an operand."""
_CALLS: Final = 96
"""Calls of one capture."""
_ITEMSIZE: Final = {Dtype.FP32: 4, Dtype.TF32: 4, Dtype.FP16: 2, Dtype.BF16: 2}


class ProductCaptures(Captures):
    """Captures products."""

    def __init__(self) -> None:
        super().__init__()
        torch = self._torch
        self._operands = {}
        self._results = {}
        operands, results = (torch.zeros(MOST_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
        types = {Dtype.FP32: torch.float32, Dtype.FP16: torch.float16, Dtype.BF16: torch.bfloat16}
        for dtype, kind in (types | {Dtype.TF32: torch.float32}).items():
            self._operands[dtype] = operands.view(kind)
            self._results[dtype] = results.view(kind)
        with torch.cuda.stream(self._stream):  # makes the handles and workspaces of the stream
            for case in ((op, dtype, 0, 1, 1 + 3 * (op >= Op.BMM), 64, 64, 64, 0) for op in OPS for dtype in types):
                self._call(case)
        torch.cuda.synchronize()

    def _call(self, case: Case) -> None:
        torch = self._torch
        op, dtype, column_a, column_b, batch, m, n, k, _ = case
        stacked = batch if op in (Op.BMM, Op.BADDBMM) else 0
        pool, results = self._operands[Dtype(dtype)], self._results[Dtype(dtype)]
        a, b = _matrix(pool, stacked, m, k, column_a), _matrix(pool, stacked, k, n, column_b)
        out = _matrix(results, stacked, m, n, 0)
        torch.backends.cuda.matmul.allow_tf32 = dtype == Dtype.TF32
        if op == Op.MM:
            torch.mm(a, b, out=out)
        elif op == Op.ADDMM:
            torch.addmm(pool[:n], a, b, out=out)
        elif op == Op.ADDMM_MATRIX:
            torch.addmm(_matrix(pool, 0, m, n, 0), a, b, out=out)
        elif op == Op.BMM:
            torch.bmm(a, b, out=out)
        else:
            torch.baddbmm(_matrix(pool, stacked, m, n, 0), a, b, out=out)


def _matrix(pool: Any, batch: int, rows: int, columns: int, column: int) -> Any:
    strides = (1, rows) if column else (columns, 1)
    if batch:
        return pool.as_strided((batch, rows, columns), (rows * columns, *strides))
    return pool.as_strided((rows, columns), strides)


def fits(case: Case) -> bool:
    """Return whether a case is of the operations, types and sizes that are captured."""
    op, dtype, _, _, batch, m, n, k, _ = case
    if op not in OPS or dtype not in _ITEMSIZE:
        return False
    return batch * max(m * k, k * n, m * n) * _ITEMSIZE[Dtype(dtype)] <= MOST_BYTES


def launched_cases(count: int) -> NDArray[np.int64]:
    """Return those of the first ``count`` harvested cases that fit: captures of them are compared with launches."""
    away = len(held_out())
    cases = harvested(max(0, count - away))
    return cases[[fits(tuple(case)) for case in cases.tolist()]]


def drawn_cases(seed: int, worker: int, drawn: Drawn = Drawn()) -> Iterator[Case]:  # noqa: B008 - immutable
    """Yield the cases that a worker captures, without end."""
    random = Random(seed * 1000 + worker)  # noqa: S311 - a list of shapes
    return filter(fits, captured(random, drawn))


@dataclass(frozen=True, slots=True)
class Answers:
    """What was captured: keys of problems ``[cases, 8]``, and the place of each one's recipe in ``recipes``
    ``[recipes, 13]``; cases without a recipe are left out.
    """

    keys: NDArray[np.int32]
    recipe: NDArray[np.int32]
    recipes: NDArray[np.int32]


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("captures-*.npz"))
    if not files:
        raise UserError(f"{folder} has no captures: python -m tileprof.harvest.products.product_captures -o {folder}")
    return files


def read(folder: Path, launched: int, seed: int, processes: int = 1) -> Answers:
    """Return what the files of a folder hold, with the cases that ``launched`` and ``seed`` list again."""
    files = _files(folder)
    calls = [(path, number, len(files), launched, seed) for number, path in enumerate(files)]
    if processes > 1:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            parts = pool.starmap(_part, calls)
    else:
        parts = [_part(*call) for call in calls]
    if not any(len(part.keys) for part in parts):
        raise UserError(f"{folder} has captures of no product: capture again, with more --seconds")
    places: dict[tuple[int, ...], int] = {}
    recipe = []
    for part in parts:
        place = np.array([places.setdefault(tuple(row), len(places)) for row in part.recipes.tolist()], np.int32)
        recipe.append(place[part.recipe])
    return Answers(
        np.concatenate([part.keys for part in parts]), np.concatenate(recipe), np.array(list(places), np.int32)
    )


def about(folder: Path) -> dict[str, Any]:
    """Return what the captures of a folder hold for, in words of tables."""
    with np.load(_files(folder)[0]) as file:
        own = json.loads(str(file["about"]))
    return {
        "gpu": own["gpu"], "architecture": own["architecture"], "sms": own["sms"], "library": "cublas",
        "version": own["cublas"], "torch": own["torch"], "cuda": own["cuda"],
    }  # fmt: skip


def _part(path: Path, worker: int, workers: int, launched: int, seed: int) -> Answers:
    with np.load(path) as file:
        request, recipe, recipes = (file[name] for name in ("asked", "recipe", "recipes"))
    first, more, *flags = request.tolist()
    drawn = Drawn(*map(bool, flags))  # files of earlier versions have fewer flags
    some = launched_cases(launched)[worker::workers][:first, : len(KEY)].astype(np.int32)
    drawn_ones = np.empty((more, len(KEY)), np.int32)
    for row, case in enumerate(itertools.islice(drawn_cases(seed, worker, drawn), more)):
        drawn_ones[row] = case[: len(KEY)]
    there = recipe >= 0
    return Answers(np.concatenate([some, drawn_ones])[there], recipe[there], recipes)


class _LaunchColumns:
    """Launches of cases, in columns."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.names: dict[str, int] = {}
        self.resources: list[tuple[int, int, int]] = []
        self.count: list[int] = []
        self.name: list[int] = []
        self.grid: list[tuple[int, int, int]] = []

    def add(self, cases: list[Case], captured: list[list[Launch] | None]) -> None:
        self.cases += cases
        for launches in captured:
            self.count.append(-1 if launches is None else len(launches))
            for launch in launches or ():
                place = self.names.setdefault(launch.name, len(self.names))
                if place == len(self.resources):
                    self.resources.append(launch.resources)
                self.name.append(place)
                self.grid.append(launch.grid)

    def arrays(self, first: int, drawn: Drawn) -> dict[str, NDArray[Any]]:
        """Return what a file holds; raw launches of the ``first`` cases alone."""
        recipes: dict[tuple[int, ...], int] = {}
        entries = self._entries()
        places = [-1 if one is None else recipes.setdefault(one.recipe, len(recipes)) for one in entries]
        rows = sum(max(count, 0) for count in self.count[:first])
        return {
            "asked": np.array([first, len(self.cases) - first, *drawn], np.int64),
            "recipe": np.array(places, np.int32),
            "recipes": np.array(list(recipes), np.int32).reshape(-1, len(RECIPE)),
            "count": np.array(self.count[:first], np.int8),
            "name": np.array(self.name[:rows], np.int16),
            "grid": np.array(self.grid[:rows], np.int32).reshape(-1, 3),
            "names": np.array(list(self.names), str),
            "resources": np.array(self.resources, np.int32).reshape(-1, 3),
        }

    def _entries(self) -> list[Entry | None]:
        """Return what the launches of each case say; kernels of PyTorch itself are never the main one."""
        count = np.maximum(np.array(self.count, np.int64), 0)
        name = np.array(self.name, np.int64)
        resources = np.array(self.resources, np.int32).reshape(-1, 3)[name]
        own = np.array(["native" in word and "at" in word for word in self.names], bool)
        block = np.ones((len(name), 3), np.int32)
        block[:, 0] = resources[:, 1]
        return entries(
            Harvested(
                about={}, cases=np.array(self.cases, np.int64), error=np.array([""] * len(self.cases)),
                case=np.repeat(np.arange(len(count)), count), name=name.astype(np.int32),
                grid=np.array(self.grid, np.int32).reshape(-1, 3), block=block, cluster=np.ones_like(block),
                registers=resources[:, 0], shared_bytes=resources[:, 2],
                ns=np.where(own[name], 0.5, 1.0).astype(np.float32), names=list(self.names),
            )
        )  # fmt: skip


def _work(worker: int, end: float, options: Namespace) -> None:
    captures, columns = ProductCaptures(), _LaunchColumns()
    launched = map(tuple, launched_cases(options.launched)[worker :: options.workers].tolist())
    for batch in batches(captures, launched, _CALLS, end):
        columns.add(*batch)
    first = len(columns.cases)
    drawn = Drawn(options.wide, options.single_precision, options.half_precision, options.odd, options.pairs)
    for batch in batches(captures, drawn_cases(options.seed, worker, drawn), _CALLS, end):
        columns.add(*batch)
    arrays = columns.arrays(first, drawn)
    about = np.array(json.dumps(machine()))
    np.savez_compressed(options.output / f"captures-{worker:02d}.npz", allow_pickle=False, about=about, **arrays)
    sys.stderr.write(
        f"worker {worker}: {first:,} cases of the harvest, {len(columns.cases) - first:,} drawn, "
        f"{columns.count.count(-1):,} failed, {int((arrays['recipe'] < 0).sum()):,} without a recipe\n"
    )


def main(words: list[str] | None = None) -> int:
    """Capture from several processes at once, for a time."""
    parser = option_parser("products.product_captures", "capture products, without launches")
    parser.add_argument("--launched", type=int, default=0, help="number of cases of the harvest to capture first")
    parser.add_argument("--wide", action="store_true", help="draw most widths freely, not from models")
    parser.add_argument("--single-precision", action="store_true", help="draw products of float32 alone")
    parser.add_argument("--half-precision", action="store_true", help="draw products of 16 bits alone")
    parser.add_argument("--odd", action="store_true", help="draw only rows that do not begin at multiples of 16 bytes")
    parser.add_argument("--pairs", action="store_true", help="pair widths of models, most of the time")
    return start(_work, parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())
