"""A copy of a modelled trace whose launches last as long as another profiler measured."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.record.times.matching import matched_kernels
from tileprof.trace import folder, manifest
from tileprof.trace.arrow import write_part
from tileprof.trace.schema import LAUNCHES, TIMINGS

if TYPE_CHECKING:
    from tileprof.record.times.sources import KernelTimes
    from tileprof.trace import Trace

_MEASURED: Final = TIMINGS.index("measured")
_UNMATCHED_NOTE: Final = "no measured kernel matches: the duration is modelled"


@dataclass(frozen=True, slots=True)
class Attached:
    """The outcome: the trace's folder, launches with a measured duration and all of them, kernels of the file,
    repetitions of the program in it, and the sum of durations of the matched launches before and after, in ns.
    """

    path: Path
    matched: int
    launches: int
    kernels: int
    repetitions: int
    modelled_ns: int
    measured_ns: int


def attach_times(trace: Trace, times: KernelTimes, output: Path, *, source: str, force: bool = False) -> Attached:
    """Write a copy of ``trace`` to ``output`` with the durations and begins of ``times``; ``source`` names their file.

    Where the file holds the program more than once, durations and begins are medians. A launch without a kernel keeps
    its modelled duration, behind the launch before it. Raises `UserError` where no launch matches, where the trace is
    partial, or where ``output`` cannot be written.
    """
    launches = trace.columns("launches")
    count = len(launches["launch"])
    if not trace.complete:
        raise UserError(f"{trace.path} is a recording that did not end: record it again before attaching times")
    launch_keys = list(zip(launches["kernel"].astype(str), launches["op"].astype(str), strict=True))
    repetitions = matched_kernels(launch_keys, list(zip(times.names, times.ops, strict=True)))
    kernels = np.stack(repetitions) if count else np.empty((1, 0), np.int64)
    matched: NDArray[np.bool_] = np.asarray((kernels >= 0).all(axis=0))
    if not matched.any():
        raise UserError(
            f"no kernel of {source} ({len(times):,} kernels, first {times.names[0]:.60}) matches a launch of "
            f"{trace.path}: profile the program that was recorded, with the same sizes"
        )
    duration = launches["duration_ns"].copy()
    duration[matched] = np.median(times.duration_ns[kernels[:, matched]], axis=0).astype(np.int64)
    origin = times.begin_ns[kernels[:, matched]].min(axis=1, keepdims=True)
    measured_begin = np.median(times.begin_ns[kernels[:, matched]] - origin, axis=0).astype(np.int64)
    timing = launches["timing"].copy()
    timing[matched] = _MEASURED
    columns = dict(launches) | {
        "duration_ns": duration,
        "begin_ns": _begins(matched, measured_begin, duration),
        "timing": timing,
        "note": _notes(launches["note"], matched),
        "time_source": launches["time_source"].where(~matched, ""),
    }
    note = f"Durations of {int(matched.sum()):,} of {count:,} launches were measured by another profiler ({source})."
    path = _write_copy(trace, output, columns, note, force=force)
    return Attached(
        path,
        int(matched.sum()),
        count,
        len(times),
        len(repetitions),
        int(launches["duration_ns"][matched].sum()),
        int(duration[matched].sum()),
    )


def _begins(matched: NDArray[np.bool_], measured: NDArray[np.int64], duration: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``[launches]`` begins: measured ones, later by the modelled durations of the launches put in between."""
    begins, shift, end, at = np.zeros(len(matched), np.int64), 0, 0, 0
    for n, has_time in enumerate(matched.tolist()):
        if has_time:
            begins[n] = int(measured[at]) + shift
            at += 1
        else:
            begins[n] = end
            shift += int(duration[n])
        end = max(end, int(begins[n] + duration[n]))
    return begins


def _notes(notes: pd.Series[Any], matched: NDArray[np.bool_]) -> list[str]:
    return [
        str(note) if has_time else "; ".join(filter(None, (str(note), _UNMATCHED_NOTE)))
        for note, has_time in zip(notes, matched.tolist(), strict=True)
    ]


def _write_copy(trace: Trace, output: Path, columns: dict[str, Any], note: str, *, force: bool) -> Path:
    whole, partial = folder.places(output)
    if whole.resolve() == trace.path.resolve():
        raise UserError(f"{whole} is the trace that is read: give another name with -o")
    folder.refuse_inside(whole)
    try:
        folder.claim(whole, partial, trace.manifest | {"complete": False}, force=force)
        try:
            for table in trace.path.iterdir():
                if table.is_dir() and table.name != LAUNCHES.name:
                    _copy(table, partial / table.name)
            (partial / LAUNCHES.name).mkdir()
            write_part(partial / LAUNCHES.name / "000000.parquet", LAUNCHES, columns)
            manifest.write(partial, trace.manifest | {"notes": [*trace.manifest["notes"], note]})
            folder.publish(partial, whole, force=force)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(folder.sentence(error, f"writing {whole}")) from error
    return whole


def _copy(table: Path, to: Path) -> None:
    """A table's files. Raises the `OSError` of the first that cannot be copied; `shutil.copytree` makes a list."""
    to.mkdir()
    for part in sorted(table.iterdir()):
        shutil.copy2(part, to / part.name)
