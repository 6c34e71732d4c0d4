"""Many cases measured in slices: a slice that is finished is a file, and a later call continues behind the last one.

A slice is ``<family>-<first>-<after>.npz`` with cases ``[first, after)`` of the family's list::

    cases       [cases, columns] int64     as the family lists them
    error       [cases] text               what a call raised, "" where none did
    case        [launches] int64           row in ``cases``; launches of a case in stream order
    name        [launches] int32           place in ``names``
    grid, block, cluster  [launches, 3] int32;  registers, shared_bytes [launches] int32
    ns          [launches] float32         median duration over the repetitions that launched the same kernels
    names       [names] text
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.harvest.activity import Activities, Activity
from tileprof.harvest.readable_names import demangled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SLICE_CASES: Final = 2048
_SLICE_S: Final = 4.0
"""A slice ends after this many seconds, too, so that little is lost when the harvest is cut."""
_BATCH: Final = 256
"""Cases of a batch, at most: CUPTI is flushed once per batch."""
_PREPARING_S: Final = 2.0
"""A batch is full after this many seconds of preparing, too: some libraries compile for each new shape."""


class Family(Protocol):
    """A family of harvested calls: products, convolutions, operators."""

    name: str
    columns: tuple[str, ...]
    """Names of the integers that a case has."""

    @property
    def before(self) -> Callable[[], object] | None:
        """What runs before each repetition and is not measured, as other kernels run before one in a program."""

    def cases(self) -> NDArray[np.int64]:
        """Return the list ``[cases, columns]``: always the same one, in the order in which it is measured."""

    def prepare(self) -> None:
        """Allocate what calls share, on the GPU."""

    def calls(self, case: tuple[int, ...]) -> Sequence[Callable[[], object]]:
        """Return the repetitions of a case, each with operands of its own; the first one is not timed if there are
        more. What takes long before the first launch (a library's plan of a shape) is done here.
        """


@dataclass(slots=True)
class _Slice:
    """Measurements of consecutive cases."""

    first: int
    cases: list[tuple[int, ...]]
    errors: list[str]
    launches: list[list[Activity]]
    prepare_s: float = 0.0
    run_s: float = 0.0

    def write(self, folder: Path, family: str) -> None:
        rows = [(case, one) for case, some in enumerate(self.launches) for one in some]
        names = sorted({one.name for _, one in rows})
        place = {name: number for number, name in enumerate(names)}

        def column(get: Callable[[Activity], object], dtype: type[np.generic], *shape: int) -> NDArray[Any]:
            return np.array([get(one) for _, one in rows], dtype).reshape(len(rows), *shape)

        path = folder / f"{family}-{self.first:07d}-{self.first + len(self.cases):07d}.npz"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            np.savez_compressed(
                file,
                cases=np.array(self.cases, np.int64),
                error=np.array(self.errors, dtype=np.str_),
                case=np.array([case for case, _ in rows], np.int64),
                name=column(lambda one: place[one.name], np.int32),
                grid=column(lambda one: one.grid, np.int32, 3),
                block=column(lambda one: one.block, np.int32, 3),
                cluster=column(lambda one: one.cluster, np.int32, 3),
                registers=column(lambda one: one.registers, np.int32),
                shared_bytes=column(lambda one: one.shared_bytes, np.int32),
                ns=column(lambda one: one.duration_ns, np.float32),
                names=np.array(names, dtype=np.str_),
            )
        temporary.replace(path)


class Runner(Protocol):
    """The interface of what gives calls their launches: `Activities` on a GPU."""

    def run(
        self, calls: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[list[Activity]]:
        """Return the launches of each call, without those of ``before``, which runs before each call."""


def harvest(
    family: Family,
    folder: Path,
    seconds: float,
    start: Callable[[], Runner] = Activities,
    *,
    part: tuple[int, int] = (0, 1),
    turn: Path | None = None,
) -> bool:
    """Measure cases that ``folder`` lacks for at most ``seconds``; whether all are there now.

    ``start`` is called when there is something to measure. With ``part = (k, n)`` the list is every n-th case from the
    k-th one on: libraries spend most of the time on the host, so that several processes, each with a folder of its own,
    share a GPU without much effect on durations. Processes that share the file ``turn`` launch their repetitions in
    turn, and prepare side by side.

    Raises UserError when the folder holds slices of another list, and when nothing was measured in time.
    """
    ends = time.monotonic() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    cases = family.cases()[part[0] :: part[1]]
    _check_list(folder / f"{family.name}.json", family, cases)
    at = max((after for _, after, _ in slices(folder, family.name)), default=0)
    if at >= len(cases):
        return True
    began_at = at
    activities = start()
    family.prepare()
    _log(f"{family.name}: ready, {ends - time.monotonic():.1f} of {seconds:g} s are left")
    while at < len(cases) and time.monotonic() < ends:
        one = _measure(family, activities, cases, at, ends, turn)
        one.write(folder, family.name)
        at += len(one.cases)
        launches = sum(map(len, one.launches))
        failed = sum(map(bool, one.errors))
        _log(
            f"{family.name}: {at:,} of {len(cases):,} cases; {launches:,} launches, {failed} failed; "
            f"{one.prepare_s:.1f} s of preparing, {one.run_s:.1f} s of running"
        )
    if at == began_at:
        raise UserError(f"Nothing was measured: starting took all of the {seconds:g} s. Give more --seconds.")
    return at >= len(cases)


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def slices(folder: Path, family: str) -> Iterator[tuple[int, int, Path]]:
    """Yield first case, case after the last one, and file of every slice in a folder, in order."""
    for path in sorted(folder.glob(f"{family}-*.npz")):
        match = re.fullmatch(r"(\d+)-(\d+)", path.stem.removeprefix(f"{family}-"))
        if match:
            yield int(match[1]), int(match[2]), path


@dataclass(slots=True)
class Harvested:
    """All slices of a folder as one. ``case`` is a row of ``cases``; ``names`` are demangled where c++filt is there."""

    about: dict[str, Any]
    cases: NDArray[np.int64]
    error: NDArray[np.str_]
    case: NDArray[np.int64]
    name: NDArray[np.int64]
    names: list[str]
    grid: NDArray[np.int32]
    block: NDArray[np.int32]
    cluster: NDArray[np.int32]
    registers: NDArray[np.int32]
    shared_bytes: NDArray[np.int32]
    ns: NDArray[np.float32]


def load(folder: Path, family: str) -> Harvested:
    """Return everything that was harvested into a folder. Raises UserError when there is nothing."""
    parts = []
    for _, _, path in slices(folder, family):
        with np.load(path) as part:
            parts.append({name: part[name] for name in part.files})
    if not parts:
        raise UserError(f"{folder} has no slices of {family}: python -m tileprof.harvest {family} -o {folder}")
    names = sorted({str(name) for part in parts for name in part["names"]})
    place = {name: number for number, name in enumerate(names)}
    begins = np.cumsum([0, *(len(part["cases"]) for part in parts)])
    columns = {
        name: np.concatenate([part[name] for part in parts])
        for name in ("cases", "error", "grid", "block", "cluster", "registers", "shared_bytes", "ns")
    }
    return Harvested(
        about=json.loads((folder / f"{family}.json").read_text()),
        case=np.concatenate([part["case"] + begin for part, begin in zip(parts, begins, strict=False)]),
        name=np.concatenate(
            [np.array([place[str(n)] for n in part["names"]], np.int64)[part["name"]] for part in parts]
        ),
        names=demangled(names),
        **columns,
    )


def _places(names: NDArray[np.str_], place: dict[str, int]) -> NDArray[np.int64]:
    return np.array([place[str(name)] for name in names], np.int64)


def digest(cases: NDArray[np.int64]) -> str:
    """Return what tells lists of cases apart."""
    return hashlib.blake2b(np.ascontiguousarray(cases).tobytes(), digest_size=8).hexdigest()


def _check_list(path: Path, family: Family, cases: NDArray[np.int64]) -> None:
    about = {"family": family.name, "columns": list(family.columns), "cases": len(cases), "digest": digest(cases)}
    if not path.exists():
        path.write_text(json.dumps(about | machine(), indent=1) + "\n")
        return
    before = json.loads(path.read_text())
    if before["digest"] != about["digest"]:
        raise UserError(
            f"{path.parent} holds slices of another list of {family.name} (digest {before['digest']}, "
            f"this version's is {about['digest']}): give another folder"
        )


def machine() -> dict[str, Any]:
    """Return what the results hold for: GPU and libraries.

    Raises `UserError` where there is no GPU, or PyTorch is not built for CUDA.
    """
    import torch  # noqa: PLC0415 - heavy

    if not torch.cuda.is_available():
        raise UserError("a harvest launches kernels: it needs an NVIDIA GPU and a PyTorch built for CUDA")
    gpu = torch.cuda.get_device_properties(0)
    return {
        "gpu": gpu.name,
        "architecture": f"sm_{gpu.major}{gpu.minor}",
        "sms": gpu.multi_processor_count,
        "dram_bytes": gpu.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "cublas": cublas_version(),
    }


def cublas_version() -> str:
    """Return the version of the cuBLASLt that is loaded, e.g. 13.1.0; "" where it cannot be asked."""
    import ctypes  # noqa: PLC0415 - on the GPU machine alone

    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcublasLt.so" in line:
            number = ctypes.CDLL(line.split()[-1]).cublasLtGetVersion
            number.restype = ctypes.c_size_t
            value = number()
            scale = 10_000 if value >= 100_000 else 1_000
            return f"{value // scale}.{value % scale // 100}.{value % 100}"
    return ""


def _measure(
    family: Family, activities: Runner, cases: NDArray[np.int64], at: int, ends: float, turn: Path | None
) -> _Slice:
    one = _Slice(at, [], [], [])
    until = min(time.monotonic() + _SLICE_S, ends)
    while len(one.cases) < SLICE_CASES and at + len(one.cases) < len(cases):
        begin = at + len(one.cases)
        batch = [tuple(row) for row in cases[begin : begin + _BATCH].tolist()]
        errors = [""] * len(batch)
        began = time.monotonic()
        counts, calls = [], []
        for number, case in enumerate(batch):
            repetitions = _prepared_calls(family, case, errors, number)
            counts.append(len(repetitions))
            calls += [_call_that_logs_errors(call, errors, number) for call in repetitions]
            if time.monotonic() > min(began + _PREPARING_S, ends):
                break
        one.prepare_s += time.monotonic() - began
        with own_turn(turn):
            began = time.monotonic()
            by_call = iter(activities.run(calls, family.before))
            one.run_s += time.monotonic() - began
        for count in counts:
            one.launches.append(combined([next(by_call) for _ in range(count)]))
        one.cases += batch[: len(counts)]
        one.errors += errors[: len(counts)]
        if time.monotonic() > until:
            break
    return one


@contextmanager
def own_turn(path: Path | None) -> Iterator[None]:
    """Hold the lock of a file, if there is one, while repetitions run."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prepared_calls(
    family: Family, case: tuple[int, ...], errors: list[str], number: int
) -> Sequence[Callable[[], object]]:
    try:
        return family.calls(case)
    except (RuntimeError, ValueError, TypeError) as error:
        errors[number] = f"{type(error).__name__}: {error}"[:300]
        return ()


def _call_that_logs_errors(call: Callable[[], object], errors: list[str], number: int) -> Callable[[], object]:
    def guarded() -> object:
        try:
            return call()
        except (RuntimeError, ValueError, TypeError) as error:  # shapes that an operator refuses are facts, too
            errors[number] = f"{type(error).__name__}: {error}"[:300]
            return None

    return guarded


def combined(repetitions: list[list[Activity]]) -> list[Activity]:
    """Return the launches of one call: those of most repetitions, each with its median duration.

    The first repetition is left out where there are more: it may load modules, and its operands are cold in every way.
    """
    if not repetitions:
        return []
    warm = repetitions[1:] or repetitions
    shapes = Counter(tuple(one.identity for one in launches) for launches in warm)
    shape = shapes.most_common(1)[0][0]
    alike = [launches for launches in warm if tuple(one.identity for one in launches) == shape]
    return [
        Activity(
            one.name, one.grid, one.block, one.cluster, one.registers, one.shared_bytes,
            int(median(launches[i].duration_ns for launches in alike)),
        )
        for i, one in enumerate(alike[0])
    ]  # fmt: skip
