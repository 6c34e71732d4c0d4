"""What PyTorch would launch for a convolution, without a launch: ``python -m
tileprof.harvest.convolutions.convolution_captures``.

`tileprof.harvest.graph_captures` says how. A worker captures its share of calls of the package's table first
(`table_cases`), so that captures and launches can be compared (``check``), then those that
`convolution_cases.captured` lists again from ``--seed`` and its number. The files hold, in the order of the cases::

    asked      [3] int64              how many cases of the table, how many drawn, how many workers
    kind, digest  text                of the drawn cases: the kind of layer that was asked for, "" if any
    count      [cases] int16          launches of a case; -1 where it failed
    kernel     [launches] int32       rows of ``name`` and ``shape``
    grid       [launches, 3] int32
    name       [kernels] text;        shape  [kernels, 8] int32: block, cluster, registers, bytes of shared memory
    about      text                   JSON: GPU and versions
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.devices import get
from tileprof.errors import UserError
from tileprof.harvest.capture_workers import batches, option_parser, start
from tileprof.harvest.convolutions.convolution_calls import Convolutions
from tileprof.harvest.convolutions.convolution_cases import CAPTURED_KINDS, captured
from tileprof.harvest.graph_captures import Captures, Launch
from tileprof.harvest.readable_names import readable
from tileprof.harvest.slices import digest, machine
from tileprof.record.model import tables
from tileprof.record.model.tiles.convolutions import convolution_table
from tileprof.record.model.tiles.convolutions.library_kernels import parse_name

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Case = tuple[int, ...]

MOST_REPEATED: Final = 3000
_SEED: Final = 20261128
_POOL: Final = 1 << 29
_CALLS: Final = 32
"""Calls of one capture."""
_MOST_RESERVED: Final = 3 << 30
"""Bytes that PyTorch may keep of results and workspaces."""
_WRITE_S: Final = 30.0
_FIRST: Final = (2, 0, 1, 2, 64, 64, 1, 8, 8, 1, 3, 3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0)
"""The layer that makes handles, before anything is captured."""


class ConvolutionCaptures(Captures):
    """Captures convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self._family = Convolutions(_POOL)
        self._family.prepare()
        with self._torch.cuda.stream(self._stream):
            for what, dtype in itertools.product(range(3), range(4)):
                self._call((what, dtype, 0, *_FIRST))
        self._torch.cuda.synchronize()

    def launches(self, cases: Any) -> list[list[Launch] | None]:
        """Return the launches of each case, and give memory back where much was needed."""
        captures = super().launches(cases)
        if self._torch.cuda.memory_reserved() > _MOST_RESERVED:
            self._torch.cuda.empty_cache()
        return captures

    def _call(self, case: Case) -> None:
        self._family.call(case)()


def table_cases() -> NDArray[np.int64]:
    """Return calls of the package's table, drawn by a seed."""
    table = tables.table(convolution_table.FAMILY, get("H200"))
    if table is None:
        return np.empty((0, len(_FIRST) + 3), np.int64)
    return table.keys[np.random.default_rng(_SEED).permutation(len(table))[:MOST_REPEATED]]


def drawn_cases(seed: int, worker: int, kind: str | None = None) -> Iterator[Case]:
    """Yield the cases that a worker captures, without end."""
    return captured(Random(seed * 1000 + worker), kind)  # noqa: S311 - a list of shapes


class _LaunchColumns:
    """Launches of cases, in columns."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.kernels: dict[tuple[str, tuple[int, ...]], int] = {}
        self.count: list[int] = []
        self.kernel: list[int] = []
        self.grid: list[tuple[int, int, int]] = []

    def add(self, cases: list[Case], captured: list[list[Launch] | None]) -> None:
        self.cases += cases
        for launches in captured:
            self.count.append(-1 if launches is None else len(launches))
            for one in launches or ():
                shape = (*one.block, *one.cluster, one.resources[0], one.resources[2])
                self.kernel.append(self.kernels.setdefault((one.name, shape), len(self.kernels)))
                self.grid.append(one.grid)

    def write(self, path: Path, first: int, workers: int, kind: str | None, about: str) -> None:
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            np.savez_compressed(
                file, allow_pickle=False, about=np.array(about),
                asked=np.array([first, len(self.cases) - first, workers], np.int64),
                kind=np.array(kind or ""), digest=np.array(digest(np.array(self.cases[first:], np.int64))),
                count=np.array(self.count, np.int16), kernel=np.array(self.kernel, np.int32),
                grid=np.array(self.grid, np.int32).reshape(-1, 3), name=np.array([name for name, _ in self.kernels]),
                shape=np.array([shape for _, shape in self.kernels], np.int32).reshape(-1, 8),
            )  # fmt: skip
        temporary.replace(path)


@dataclass(frozen=True, slots=True)
class Answers:
    """Cases that were captured, and the launches of each: name, shape (block, cluster, registers, bytes) and grid."""

    cases: NDArray[np.int64]
    launches: list[tuple[tuple[str, tuple[int, ...], tuple[int, int, int]], ...]]


def read(path: Path, seed: int, *, again: bool = False) -> Answers:
    """Return what one file of a folder holds: drawn cases, or with ``again`` those of the table; failed ones are left
    out. Raises UserError where the cases are not those that ``seed`` lists.
    """
    worker = int(path.stem.rpartition("-")[2])
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    first, more, workers = columns["asked"].tolist()
    if again:
        cases = table_cases()[worker::workers][:first]
        rows = slice(0, first)
    else:
        random_cases = drawn_cases(seed, worker, str(columns["kind"]) or None)
        cases = np.array(list(itertools.islice(random_cases, more)), np.int64)
        rows = slice(first, first + more)
        if digest(cases) != str(columns["digest"]):
            raise UserError(f"{path} holds other cases than seed {seed} lists for worker {worker}")
    names, shapes = columns["name"].tolist(), [tuple(shape) for shape in columns["shape"].tolist()]
    count = columns["count"].astype(np.int64)
    begins = np.cumsum(np.r_[0, np.maximum(count, 0)])
    launches, there = [], []
    kernel, grid = columns["kernel"].tolist(), columns["grid"].tolist()
    for row in range(len(count))[rows]:
        if count[row] > 0:
            own = range(int(begins[row]), int(begins[row + 1]))
            launches.append(tuple((names[kernel[at]], shapes[kernel[at]], tuple(grid[at])) for at in own))
            there.append(row - rows.start)
    return Answers(cases[there], launches)


def check(folder: Path, seed: int) -> Iterator[str]:
    """Yield how captures of calls compare with the launches of the package's table, and which kernels differ."""
    table = tables.table(convolution_table.FAMILY, get("H200"))
    assert table is not None
    same: Counter[str] = Counter()
    for path in sorted(folder.glob("captures-*.npz")):
        answers = read(path, seed, again=True)
        short = readable(sorted({name for some in answers.launches for name, *_ in some}))
        for case, some in zip(answers.cases.tolist(), answers.launches, strict=True):
            entry = convolution_table.entry_of(table, tuple(case), get("H200"))
            assert entry is not None
            own = entry.launches
            same["calls"] += 1
            same["roles, tiles"] += [parse_name(name) for name, *_ in some] == [parse_name(one.name) for one in own]
            names = [short[name] for name, *_ in some] == [one.name for one in own]
            same["names"] += names
            same["names, grids"] += names and [grid for *_, grid in some] == [one.grid for one in own]
            shapes = [(*one.block, *one.cluster, one.registers, one.shared_bytes) for one in own]
            same["names, shapes"] += names and [shape for _, shape, _ in some] == shapes
            if not names:
                same[f"{[n[:50] for n, *_ in some]} instead of {[one.name[:50] for one in own]}"] += 1
    for words, number in same.most_common(30):
        yield f"{number:6d} {words}"


def _work(worker: int, end: float, options: Namespace) -> None:
    began = time.time()
    captures, columns = ConvolutionCaptures(), _LaunchColumns()
    path, about = options.output / f"captures-{worker:02d}.npz", json.dumps(machine())
    table = map(tuple, table_cases()[worker :: options.workers].tolist())
    for batch in batches(captures, table, _CALLS, end):
        columns.add(*batch)
    first, random_cases = len(columns.cases), drawn_cases(options.seed, worker, options.kind)
    columns.write(path, first, options.workers, options.kind, about)
    ready = written = time.time()
    for batch in batches(captures, itertools.islice(random_cases, max(0, options.most - first)), _CALLS, end):
        columns.add(*batch)
        if time.time() > written + _WRITE_S:
            columns.write(path, first, options.workers, options.kind, about)
            written = time.time()
    columns.write(path, first, options.workers, options.kind, about)
    sys.stderr.write(
        f"worker {worker}: {first:,} cases of the table after {ready - began:.0f} s, {len(columns.cases) - first:,} "
        f"drawn in {time.time() - ready:.0f} s, {columns.count.count(-1):,} failed, {len(columns.kernels):,} kernels\n"
    )


def main(words: list[str] | None = None) -> int:
    """Capture from several processes at once, for a time, or compare with the table."""
    parser = option_parser("convolutions.convolution_captures", "capture convolutions, without launches")
    parser.add_argument("--kind", choices=CAPTURED_KINDS, help="layers of one kind alone")
    parser.add_argument("--most", type=int, default=1 << 20, help="the most cases of a worker")
    parser.add_argument("--check", action="store_true", help="compare captures in DIR with the table of the package")
    options = parser.parse_args(words)
    if options.check:
        sys.stdout.write("".join(f"{line}\n" for line in check(options.output, options.seed)))
        return 0
    return start(_work, options)


if __name__ == "__main__":
    sys.exit(main())
