"""Kernel times as other profilers write them: ``nsys export --type sqlite`` and torch.profiler's Chrome trace.

Schemas: ``CUPTI_ACTIVITY_KIND_KERNEL`` (start, end in ns, demangledName and shortName as ids of ``StringIds``) of the
Nsight Systems user guide, "SQLite Schema Reference"; events of category ``kernel`` (ts, dur in us) and ``cpu_op`` with
equal ``External id`` of Kineto's Chrome trace.
"""

from __future__ import annotations

import gzip
import io
import sqlite3
import zlib
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.named_file import read_named
from tileprof.nesting import parse_json

if TYPE_CHECKING:
    from collections.abc import Sequence

_SQLITE: Final = b"SQLite format 3\0"
_GZIP: Final = b"\x1f\x8b"
_MOST_BYTES: Final = 1 << 30
_MOST_KERNELS: Final = 5_000_000
_MOST_STEPS: Final = 2_000_000_000
"""Most steps of SQLite's machine: the largest file takes a fourth, and a view that joins or recurs without end takes
all.
"""
_STEPS_AT_ONCE: Final = 1_000_000
_MOST_NS: Final = float(1 << 62)

_QUERY: Final = """
    select coalesce(d.value, s.value, ''), k.start, k."end" from CUPTI_ACTIVITY_KIND_KERNEL k
    left join StringIds d on d.id = k.demangledName left join StringIds s on s.id = k.shortName
    order by k.start limit ?
"""


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Kernels of one file in order of their begin: demangled names, the framework's operator (empty where the file does
    not know it), begin and duration in ns.
    """

    names: tuple[str, ...]
    ops: tuple[str, ...]
    begin_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)


def read_times(path: Path) -> KernelTimes:
    """Return the kernels of a file of either kind, told apart by its first bytes. Raises `UserError`."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UserError(f"{path} is larger than {_MOST_BYTES >> 30} GiB; profile fewer iterations")
        if path.is_file() and _head(path) == _SQLITE:
            rows = _nsys(path)
        else:
            data = read_named(path, _MOST_BYTES)
            rows = _chrome(path, _unzipped(path, data) if data.startswith(_GZIP) else data)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if not rows:
        raise UserError(f"{path} names no kernel; profile on a GPU (nsys: --trace=cuda; torch: activities=[CUDA])")
    if len(rows) > _MOST_KERNELS:
        raise UserError(f"{path} has more than {_MOST_KERNELS:,} kernels; profile fewer iterations")
    return _sorted(rows)


def _sorted(rows: Sequence[tuple[str, str, float, float]]) -> KernelTimes:
    rows = sorted(rows, key=lambda row: row[2])
    origin = rows[0][2]
    return KernelTimes(
        tuple(row[0] for row in rows),
        tuple(row[1] for row in rows),
        np.array([round(row[2] - origin) for row in rows], np.int64),
        np.array([max(1, round(row[3])) for row in rows], np.int64),
    )


def _nsys(path: Path) -> list[tuple[str, str, float, float]]:
    try:
        # Immutable: neither a journal beside the file is read, nor a lock or an index made there.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            steps = count()
            database.set_progress_handler(lambda: next(steps) >= _MOST_STEPS // _STEPS_AT_ONCE, _STEPS_AT_ONCE)
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            rows = database.execute(_QUERY, (_MOST_KERNELS + 1,)).fetchall()
    except (sqlite3.Error, UnicodeError) as error:  # an error's message may quote a name that is no UTF-8
        raise UserError(
            f"{path} is not an SQLite export of nsys with kernels ({error}); make one with `nsys profile --trace=cuda` "
            "and `nsys export --type sqlite`"
        ) from None
    if not all(isinstance(n, str) and _time(begin) and _time(end) and end >= begin for n, begin, end in rows):
        raise UserError(f"{path}: a kernel has no name, or ends before it begins: the file is damaged, export it again")
    return [(name, "", begin, end - begin) for name, begin, end in rows]


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_SQLITE))


def _chrome(path: Path, text: bytes) -> list[tuple[str, str, float, float]]:
    try:
        trace = parse_json(text.decode("utf-8"))
    except ValueError as error:
        raise _neither(path, error) from None
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise UserError(f"{path} has no list traceEvents; write it with torch.profiler's export_chrome_trace")
    events = [e for e in events if isinstance(e, dict)]
    ops = {_external(e): str(e.get("name", "")) for e in events if e.get("cat") == "cpu_op"}
    ops.pop(None, None)
    rows = []
    for event in events:
        if str(event.get("cat", "")).lower() != "kernel":
            continue
        begin, took = event.get("ts"), event.get("dur")
        if not (isinstance(event.get("name"), str) and _time(begin) and _time(took)):
            raise UserError(f"{path}: a kernel has no name, ts or dur: the file is damaged, write it again")
        rows.append((event["name"], ops.get(_external(event), ""), begin * 1e3, took * 1e3))
    return rows


def _neither(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is neither an SQLite export of nsys nor a Chrome trace of torch.profiler ({error!s:.80})")


def _unzipped(path: Path, data: bytes) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as file:
            text = file.read(_MOST_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _neither(path, error) from None
    if len(text) > _MOST_BYTES:
        raise UserError(f"{path} unpacks to more than {_MOST_BYTES >> 30} GiB; profile fewer iterations")
    return text


def _external(event: dict[str, Any]) -> int | None:
    arguments = event.get("args")
    number = arguments.get("External id") if isinstance(arguments, dict) else None
    return number if isinstance(number, int) else None


def _time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST_NS / 1e3
