"""``tileprof times``: measured durations of another profiler in a trace whose accesses are modelled."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from tileprof.cli.text.messages import say
from tileprof.cli.verb import Verb
from tileprof.shell_words import shell_word


def _prepare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("trace", metavar="TRACE", help="folder that `tileprof record` wrote")
    add(
        "file",
        metavar="FILE",
        type=Path,
        help="SQLite export of nsys, or Chrome trace of torch.profiler (.json, .json.gz)",
    )
    add("-o", "--output", type=Path, metavar="TRACE", help="trace to write (default: ./NAME-timed.tileprof)")
    add("--force", action="store_true", help="overwrite an existing trace")
    add("--json", action="store_true", help="print the matches and the name of the new trace as JSON")


def _run(options: Namespace) -> int:
    from tileprof.analysis.times_and_counts import duration  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.cli.arguments.trace_argument import load_trace  # noqa: PLC0415 - as above
    from tileprof.record.times import attach_times, read_times  # noqa: PLC0415 - as above
    from tileprof.trace import folder  # noqa: PLC0415 - as above

    output = options.output or Path(f"{Path(options.trace).resolve().stem}-timed")
    folder.refuse_existing(folder.places(output)[0], force=options.force)
    trace = load_trace(options.trace)
    attached = attach_times(trace, read_times(options.file), output, source=options.file.name, force=options.force)
    if options.json:
        facts = {name: getattr(attached, name) for name in attached.__slots__ if name != "path"}
        print(json.dumps({"trace": str(attached.path), **facts}))
        return 0
    repeated = f", medians of {attached.repetitions:,} repetitions" if attached.repetitions > 1 else ""
    say(
        f"tileprof: wrote {attached.path}: {attached.matched:,} of {attached.launches:,} launches "
        f"measured{repeated}; together {duration(attached.measured_ns)}, modelled {duration(attached.modelled_ns)}"
    )
    if attached.matched < attached.launches:
        say("tileprof: note: the other launches keep modelled durations; column note of the launches says which.")
    say(f"tileprof: next: tileprof report {shell_word(attached.path)}")
    return 0


VERB = Verb("times", "put times measured by nsys or torch.profiler into a modelled trace", _prepare, _run)
