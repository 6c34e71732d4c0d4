"""``tileprof run --scheduler acs -- python infer.py``: the program's kernels out of order, on several streams.

First the program is recorded, which makes the footprint table (`tileprof.runtime.acs`); then it runs with the library
that issues what the table knows as soon as nothing under way conflicts with it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tileprof.cli.text.messages import say
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.runtime.acs import Logged, Mode, Table

SCHEDULERS: Final[dict[str, Mode]] = {"acs": "streams", "acs-graph": "graph"}
"""The values of ``--scheduler`` for a program, with the mode of the library."""

STREAMS: Final = 8
WINDOW: Final = 128
THREADS: Final = 1
"""Default number of issuing threads of the library: on an H200, programs in eager mode were faster with one than in
stream order.
"""

_LOGGED: Final = 3
"""Number of simultaneous plain runs before a recording, whose launches are logged."""

_MOST_LOGGED: Final = 9

_SHOWN: Final = 5
"""Number of reasons and calls that are named."""


def run_acs(options: Namespace) -> int:
    """Run ``options.program`` under ACS; the exit code is the program's own, or 1 where ``--check`` finds a difference.

    Raises `UserError` before the program starts where something is missing, and where a table cannot be read.
    """
    from tileprof.record.cuda.recorded_run import command_of  # noqa: PLC0415 - not needed for --help
    from tileprof.runtime import acs  # noqa: PLC0415 - as above

    if not options.program:
        raise UserError("give a program after --: tileprof run --scheduler acs -- python infer.py")
    command = command_of(tuple(options.program))
    _check_driver()
    with tempfile.TemporaryDirectory(prefix="tileprof-acs-") as name:
        folder = Path(name)
        path = options.table or folder / "table"
        mode: Mode = "check" if options.check else SCHEDULERS[options.scheduler]
        settings = acs.Settings(
            mode,
            folder,
            path.resolve(),
            lanes=STREAMS if options.streams is None else options.streams,
            threads=THREADS if options.threads is None else options.threads,
            workers=options.workers or 0,
            window=WINDOW if options.window is None else options.window,
        )
        library = acs.build()
        if not path.exists():
            table = record_table(tuple(options.program), folder, library, fine=options.fine)
            table.write(path)
            _say_table(table, options.table)
        environment = {**os.environ, **acs.environment(library, settings)}
        code = subprocess.run(command, env=environment, check=False).returncode
        results = acs.results(folder)
        for counts in results:
            _say_counts(counts, checked=options.check)
        if not results:
            _say("the library saw no launch of the program: it used no CUDA, or its environment was cleaned")
        code = code if code >= 0 else 128 - code
        return code or int(any(counts["differing"] for counts in results))


def _check_driver() -> None:
    from tileprof.record.cuda.installation import gpu  # noqa: PLC0415 - not needed for --help

    try:
        gpu.driver()
    except UserError as error:
        raise UserError("there is no GPU here that CUDA can use, so no kernel can run out of order") from error


def record_table(program: tuple[str, ...], folder: Path, library: Path, *, fine: bool = False) -> Table:
    """Record the program once, with the log of its launches beside, and tabulate what they touched.

    First the launches of `_LOGGED` plain runs are logged: what differs between them and the recording in a launch's
    parameters holds addresses of the process or nothing at all (`tileprof.runtime.acs.varying`).

    Raises `UserError` where the program fails while it is recorded, or its launches are not seen.
    """
    from tileprof.record import Options, cuda  # noqa: PLC0415 - heavy
    from tileprof.record.cuda.records import raw  # noqa: PLC0415 - as above
    from tileprof.record.cuda.settings import Settings  # noqa: PLC0415 - as above
    from tileprof.runtime import acs  # noqa: PLC0415 - as above
    from tileprof.trace import load  # noqa: PLC0415 - as above

    runs = _logged_runs(program, folder, library)
    if runs and not acs.repeats(runs):
        _say("the program makes other launches each time: only words that its recording saw to change are not compared")
        runs = []
    trace, records = folder / "recorded.tileprof", folder / "raw"
    # Without the hooks that name operators: they make PyTorch take other ways through a backward pass. Tensors have to
    # be told apart: a read counts as its whole buffer, which would else be a segment of the caching allocator.
    settings = Settings(passes=("accesses",), raw=records, hooks=False, tensors=True)
    with _variables(acs.environment(library, acs.Settings("log", folder))):
        code = cuda.record(Options(program, trace), settings)
    if code != 0:
        raise UserError(f"the program ended with exit code {code} while it was recorded: there is no table")
    processes = raw.processes(records / "accesses")
    process = max(processes, key=lambda p: sum(event["e"] == "launch" for event in p.events))
    log = folder / f"launches-{process.folder.name.rpartition('-')[2]}"
    if not log.exists():
        raise UserError(
            "the program's launches were recorded, but their parameters were not seen: nothing was preloaded"
        )
    logged = acs.read_log(log)
    joined = acs.instances(load(trace), process.events, logged, acs.counterparts(logged, runs), fine=fine)
    table = acs.tabulate([*joined.instances, *joined.captured], " ".join(program), fine=fine)
    table.launches = len(joined.instances)
    table.without = joined.without
    return table


def _logged_runs(program: tuple[str, ...], folder: Path, library: Path) -> list[list[Logged]]:
    """Return the launches of plain runs of the program; without those that failed, which the recording says.

    Linux places a stack at one of four upper halves of its address. The runs continue until two have been seen, since
    one of them is not the recording's; `_MOST_LOGGED` at most.
    """
    from tileprof.runtime import acs  # noqa: PLC0415 - heavy

    runs, halves = [], set()
    for number in range(0, _MOST_LOGGED, _LOGGED):
        for path in _logs(program, [folder / f"log-{number + i}" for i in range(_LOGGED)], library):
            runs.append(acs.read_log(path))
            halves.add(acs.read_stack(path) >> 32)
        if len(halves) != 1:
            break
    return runs


def _logs(program: tuple[str, ...], places: Sequence[Path], library: Path) -> list[Path]:
    """Return logs of plain runs, side by side, each with its folder: of the process of each that launched most."""
    from tileprof.record.cuda.recorded_run import command_of  # noqa: PLC0415 - heavy
    from tileprof.runtime import acs  # noqa: PLC0415 - as above

    running = []
    for place in places:
        place.mkdir(exist_ok=True)
        environment = {**os.environ, **acs.environment(library, acs.Settings("log", place))}
        silent = subprocess.DEVNULL
        running.append(
            (place, subprocess.Popen(command_of(program), env=environment, stdin=silent, stdout=silent, stderr=silent))
        )
    finished_folders = [place for place, process in running if process.wait() == 0]
    logs = [sorted(place.glob("launches-*"), key=lambda path: path.stat().st_size) for place in finished_folders]
    return [paths[-1] for paths in logs if paths]


@contextmanager
def _variables(added: dict[str, str]) -> Iterator[None]:
    """Set environment variables for programs that are started meanwhile."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _say_table(table: Table, path: Path | None) -> None:
    launches = table.launches + sum(table.without.values())
    place = f"it is kept in {path}" if path else "--table FILE keeps it"
    entries = f"{table.count:,} entries for {table.launches:,} of {launches:,} recorded launches"
    _say(f"the footprint table has {entries}; {place}")
    for why, count in sorted(table.without.items(), key=lambda item: -item[1])[:_SHOWN]:
        _say(f"  {count:,} launches stand for all memory: {why}")


def _say_counts(counts: dict[str, Any], *, checked: bool) -> None:
    launches = int(counts["launches"])
    if checked:
        sentence = (
            f"{counts['checked']:,} of {launches:,} launches were made in other orders as well, then in stream order: "
        )
        differing = int(counts["differing"])
        _say(
            sentence
            + (f"memory DIFFERED after {differing:,} segments" if differing else "memory was the same, bit for bit")
        )
        for symbol, count in sorted(counts["differences"].items(), key=lambda item: -item[1])[:_SHOWN]:
            _say(f"  {count:,} times where {symbol} writes")
    else:
        stream_order_launches = int(counts["rested"])
        share = 1 - int(counts["unknown"]) / max(1, launches - stream_order_launches)
        _say(
            f"the table knew {share:.0%} of {launches:,} launches; {counts['spread']:,} went to other streams, with "
            f"{counts['waits']:,} waits; {counts['graph_kernels']:,} ran in {counts['graph_launches']:,} launches of "
            f"{counts['graphs']:,} graphs; everything was ordered around {counts['barriers']:,} calls"
        )
        if stream_order_launches:
            _say(
                f"{stream_order_launches:,} launches stayed in stream order: the GPU was idle when they came, so the "
                "host bounds the program, and no order of kernels makes it faster (a CUDA graph does)"
            )
        if counts["queued"]:
            awaited_ns = counts["awaited_ns"]
            most = max(awaited_ns, key=awaited_ns.__getitem__, default="")
            waited = f", for which that waited {sum(awaited_ns.values()) / 1e6:.1f} ms" if awaited_ns else ""
            _say(
                f"{int(counts['queued']):,} launches were issued by a thread beside the program's own{waited}"
                + (f", most of it in {most}" if most else "")
            )
    for name, what in (("reasons", "launches stood for all memory:"), ("calls", "calls of")):
        for text, count in sorted(counts[name].items(), key=lambda item: -item[1])[:_SHOWN]:
            _say(f"  {count:,} {what} {text}")


def _say(sentence: str) -> None:
    say(f"tileprof: {sentence}")
