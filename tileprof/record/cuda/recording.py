"""Recording a program on a real GPU: check the machine, run the passes, turn what they left into a trace."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tileprof.devices import Device
from tileprof.errors import UserError
from tileprof.record import ranges
from tileprof.record.closing_line import ended_json
from tileprof.record.cuda import machine_code, recorded_run
from tileprof.record.cuda.code.proofs import Proofs, Server
from tileprof.record.cuda.decode import Decoder, Timed
from tileprof.record.cuda.filters import Inserted
from tileprof.record.cuda.installation import gpu, locate, recorder_build
from tileprof.record.cuda.records import allocator, join, raw
from tileprof.record.cuda.records.tiles import Times
from tileprof.record.cuda.settings import Settings
from tileprof.record.cuda.tensor_maps import im2col, tensormap
from tileprof.record.filter_settings import FilterSettings
from tileprof.shell_words import shell_word
from tileprof.terminal_text import harmless
from tileprof.trace import TraceWriter, filters
from tileprof.trace.schema import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tileprof.record import Options


_MOST_COMPLAINTS: Final = 6
"""Most notes that are printed; a trace holds all of them."""


@dataclass(frozen=True, slots=True)
class Extra:
    """The results of the passes beside the one that the trace is made from, by ordinal of a launch."""

    timed: dict[int, Timed]
    blocks: dict[int, Times]
    notes: tuple[str, ...] = ()
    no_im2col: str = ""
    """Why loads in im2col mode are not decoded."""
    shared: str = ""
    """The effect of other users of the GPU on the trace, written before the program ran."""


def record(options: Options, settings: Settings | None = None) -> int:
    """Run the program once per pass and write the trace at ``options.output``; the program's exit code.

    Raises `UserError` before the program starts when this machine cannot record, and afterwards when it did not use
    CUDA. A program of several processes gives a trace each; the ones with fewer launches are named after their
    process.
    """
    settings = settings or Settings()
    recorded_run.refuse_taken()
    if settings.nvtx is not None:
        recorded_run.refuse_ranges_taken()
    command = recorded_run.command_of(options.program)
    device_info = gpu.gpus()[0]
    gpu.supported(device_info)
    shared = gpu.shared(device_info)
    if shared:
        _say(shared)
    if os.environ.get("TRITON_INTERPRET") == "1":
        _say("TRITON_INTERPRET=1 is set: Triton's kernels run on the CPU, and leave copies instead of launches")
    sanitizer = locate.sanitizer()
    recorder_files = recorder_build.build(device_info.architecture)
    layouts = (
        _layouts()
        if "accesses" in settings.passes and int(device_info.architecture[3:-1]) >= tensormap.FIRST_MAJOR
        else ""
    )
    device = gpu.device(device_info)
    passes = settings.runs
    with _raw_folder(settings) as folder, _server(settings) as server:
        socket = server.path if server is not None else None
        exit_code = 0
        for number, pass_ in enumerate(passes):
            place = folder / pass_
            place.mkdir()
            variables = recorded_run.environment(
                pass_, place, recorder_files, sanitizer, settings, skip=options.skip, count=options.count, proofs=socket
            )
            code = recorded_run.run(command, variables, visible=number == 0, log=place / "output.txt")
            if number == 0:
                exit_code = code
            elif code != exit_code:
                _say(
                    f"the {pass_} pass ended with exit code {code}, the first with {exit_code}; its output is in "
                    f"{place}"
                )
            if (kernel := raw.hung(place)) and pass_ != passes[-1]:
                _say(f"the program was ended, as {kernel} had not; it is not run again for the other passes")
                break
            if code < 0 and pass_ != passes[-1]:
                _say(
                    f"the program died by signal {-code} in its {pass_} pass; it is not run again for the other passes"
                )
                break
        shell_code = exit_code if exit_code >= 0 else 128 - exit_code  # as a shell says it
        try:
            convert(
                folder, passes[: number + 1], options, device, exit_code, layouts, shared, settings.filters,
                check_writes=settings.verify, proofs=server.proofs if server is not None else None,
            )  # fmt: skip
        except UserError as error:
            error.exit_code = shell_code or error.exit_code  # that of a program that failed stays its own
            raise
    return shell_code


def _layouts() -> str:
    """Return why maps in im2col mode cannot be read here, "" if they can. Raises `UserError` when no tensor map can."""
    tensormap.calibrate(gpu.driver())
    try:
        im2col.calibrate(gpu.driver())
    except UserError as error:
        return str(error)
    return ""


def convert(
    folder: Path,
    passes: list[str],
    options: Options,
    device: Device,
    exit_code: int,
    no_im2col: str = "",
    shared: str = "",
    inserted: FilterSettings | None = None,
    *,
    check_writes: bool = False,
    proofs: Proofs | None = None,
) -> list[Path]:
    """Return the traces of the raw records in ``folder``, one per process, the one with the most launches first.

    ``no_im2col``: why loads in im2col mode are not decoded, "" where they are. ``shared``: what traces say about others
    on the GPU. ``inserted``: filters that blocks filled. ``check_writes``: memory around launches was to be compared.
    ``proofs``: what is known of launches without patches since the program ran.

    Raises `UserError` where the passes make no trace, or nothing was recorded.
    """
    main = next((p for p in ("accesses", "blocks") if p in passes), None)
    if main is None:
        raise UserError("The time pass alone does not make a trace. Add blocks or accesses to --passes.")
    if exit_code < 0 and not any((folder / main).glob("process-*")):
        raise UserError(f"the program died by signal {-exit_code} before it used CUDA: nothing was recorded")
    processes = sorted(raw.processes(folder / main), key=lambda p: -_launches(p))
    others, failure_note = _second(folder / "blocks") if main == "accesses" and "blocks" in passes else ([], "")
    filling = _second(folder / "filters", "filters")[0] if "filters" in passes else []
    device = replace(device, sms=raw.number_sms([*processes, *others], device.sms))
    timings = join.time_passes(folder / "time") if "time" in passes else []
    paths = []
    for number, process in enumerate(p for p in processes if _launches(p)):
        process.events = allocator.merged(process.events, process.folder)
        extra = _extra(process, others[number] if number < len(others) else None, timings[number : number + 1], passes)
        extra = replace(
            extra, no_im2col=no_im2col, notes=tuple(filter(None, (failure_note, *extra.notes))), shared=shared
        )
        path = options.output if number == 0 else _beside(options.output, process)
        bloom_filters = None
        if inserted is not None:
            bloom_filters = Inserted(
                inserted, process, _filling(process, filling[number] if number < len(filling) else None)
            )
        path, decoder = _write(process, extra, bloom_filters, replace(options, output=path), device, exit_code, proofs)
        if options.json:
            sys.stderr.write(ended_json(path) + "\n")
        else:
            _summary(path, decoder, extra, check_writes=check_writes)
        paths.append(path)
    lost_launches = sum(p.lost for p in processes)
    if not paths and lost_launches:
        raise UserError(f"the program ended early, before the records of its {lost_launches} launches had left the GPU")
    if not paths:
        raise UserError(_no_range(processes) or "The program used CUDA but launched no kernel that was to be recorded.")
    return paths


def _no_range(processes: list[raw.Process]) -> str:
    """Return why ranges left nothing to record; "" where none were asked for."""
    range_events = [event for process in processes for event in process.events if event["e"] == "ranges"]
    names: Counter[str] = Counter()
    for event in range_events:
        names.update(dict(event["names"]))
    others = any(event["unlisted"] for event in range_events)
    return (
        ranges.why_empty(range_events[0]["pattern"], sum(e["matched"] for e in range_events), names, others=others)
        if range_events
        else ""
    )


def _second(folder: Path, name: str = "blocks") -> tuple[list[raw.Process], str]:
    """Return the processes of a later pass, most launches first; without any why: what the first pass saw is a trace
    even so.
    """
    try:
        return sorted(raw.processes(folder), key=lambda p: -_launches(p)), ""
    except UserError as error:
        return [], f"the {name} pass left nothing, block times are those under instrumentation: {error}"


def _filling(process: raw.Process, other: raw.Process | None) -> dict[int, Times]:
    """Return the times of tiles, by ordinal, of the pass in which blocks filled filters and left no records."""
    if other is None:
        return {}
    there, tile_times = join.block_times(other)
    matched = join.match(join.Reference.of(process), there.keys, "filters", there.ordinals)
    return {ordinal: tile_times[row] for ordinal, row in matched.row_of.items()}


def _write(
    process: raw.Process,
    extra: Extra,
    inserted: Inserted | None,
    options: Options,
    device: Device,
    exit_code: int,
    proofs: Proofs | None,
) -> tuple[Path, Decoder]:
    """Write the trace; return where it is and what wrote it. A process that ended early leaves a partial one."""
    writer = TraceWriter(
        options.output,
        recorder="cuda",
        command=options.program,
        device=device,
        granule=process.granule,
        force=options.force,
    )
    with writer:
        decoder = Decoder(process, writer, device, extra.timed, extra.blocks, not extra.no_im2col, inserted, proofs)
        decoder.run()
        if inserted is not None:
            filters.write(writer.partial_path, inserted.stored())
        for note in filter(None, (*extra.notes, extra.no_im2col, extra.shared)):
            writer.note(note)
        if process.complete:
            return writer.close(exit_code), decoder
        reason = f"{process.folder.name} {process.ended_early}"
        return writer.abandon(reason), decoder


def _extra(process: raw.Process, other: raw.Process | None, timings: list[join.TimePass], passes: list[str]) -> Extra:
    reference = join.Reference.of(process)
    notes, timed, blocks = [], {}, {}
    if other is not None:
        reference_there, times = join.block_times(other)
        matched = join.match(reference, reference_there.keys, "blocks", reference_there.ordinals)
        blocks = {ordinal: times[row] for ordinal, row in matched.row_of.items()}
        notes.append(matched.report)
    if timings and timings[0].rows:
        rows = timings[0].rows
        matched = join.match(reference, timings[0].keys, "time")
        start = min((rows[row]["begin"] for row in matched.row_of.values()), default=0)
        for ordinal, row in matched.row_of.items():
            r = rows[row]
            timed[ordinal] = Timed(r["begin"] - start, r["end"] - r["begin"], r["registers"], r["shared"])
        notes.append(matched.report)
    elif timings:
        why = timings[0].failure or "CUPTI reported no kernel, as when the program profiles itself"
        notes.append(f"the time pass has no durations ({why}); they come from block times under instrumentation")
    elif "time" in passes:
        notes.append(
            "the time pass saw no kernel: it needs a Python program and cupti-python; "
            "durations come from block times under instrumentation"
        )
    return Extra(timed, blocks, tuple(n for n in notes if n))


def write_check(events: list[dict[str, Any]], checked: int, missed: int) -> str:
    """Return what ``--check-writes`` found, and what it did not look at: kernels in CUDA graphs run behind one call.

    ``checked``: bytes that changed around launches; ``missed``: those of them outside every recorded write.
    """
    compared = {e["launch"] for e in events if e["e"] == "changed"}
    launches = [e for e in events if e["e"] == "launch"]
    in_graphs = sum(e["graph"] >= 0 for e in launches)
    others = sum(e["graph"] < 0 and e["launch"] not in compared for e in launches)
    words = f"write check: {checked:,} bytes changed, {missed:,} of them outside every recorded write"
    if in_graphs:
        words += (
            f"; not checked: {_launch_count(in_graphs)} in CUDA graphs (run the program without graphs to check them)"
        )
    if others:
        words += f"; {_launch_count(others, 'other ')} {'was' if others == 1 else 'were'} not compared"
    return words


def _summary(path: Path, decoder: Decoder, extra: Extra, *, check_writes: bool) -> None:
    coverage = decoder.coverage
    total = sum(coverage.values())
    shares = ", ".join(f"{coverage[c] / total:.1%} {c}" for c in ("exact", "inferred", "conservative") if coverage[c])
    _say(
        f"{path} is recorded; of {total:,} bytes written: {shares}" if total else f"{path} is recorded; no writes were"
    )
    if not decoder.process.complete:
        _say(f"the trace is partial, the program {decoder.process.ended_early}")
    if check_writes:
        _say(write_check(decoder.process.events, decoder.checked, sum(decoder.unrecorded.values())))
    for note in extra.notes:
        _say(note)
    complaints = list(dict.fromkeys(e["text"] for e in decoder.process.events if e["e"] == "complaint"))
    for text in complaints[:_MOST_COMPLAINTS]:
        _say(text)
    if len(complaints) > _MOST_COMPLAINTS:
        _say(f"{len(complaints) - _MOST_COMPLAINTS} more complaints of the recorder are among the trace's notes")
    _say(f"next: tileprof report {shell_word(path)}")


def _launch_count(launches: int, kind: str = "") -> str:
    return f"{launches:,} {kind}launch{'' if launches == 1 else 'es'}"


def _say(text: str) -> None:
    sys.stderr.write(f"tileprof: {harmless(text)}\n")


def _launches(process: raw.Process) -> int:
    return sum(e["e"] == "launch" for e in process.events)


def _beside(path: Path, process: raw.Process) -> Path:
    stem = path.name.removesuffix(SUFFIX)
    return path.with_name(f"{stem}-{process.folder.name}{SUFFIX}")


@contextmanager
def _server(settings: Settings) -> Iterator[Server | None]:
    """Answer which launches need no patches, while the program runs; None where all get them."""
    tool = locate.nvdisasm()
    understood = all(g.architecture == f"sm_{machine_code.ARCHITECTURE}" for g in gpu.gpus())
    if tool is None or not understood or not settings.leaves_unpatched:
        yield None
        return
    with Server(tool) as server:
        yield server


@contextmanager
def _raw_folder(settings: Settings) -> Iterator[Path]:
    if settings.raw is not None:
        if settings.raw.exists() and any(settings.raw.iterdir()):
            raise UserError(f"{settings.raw} is not empty; raw records go to a folder of their own")
        settings.raw.mkdir(parents=True, exist_ok=True)
        yield settings.raw.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="tileprof-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
