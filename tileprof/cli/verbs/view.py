"""``tileprof view``: one self-contained HTML page of a trace, with a policy laid over it if there is one."""

from __future__ import annotations

import json
import os
import webbrowser
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tileprof.cli.arguments import policies
from tileprof.cli.arguments.target import check_file
from tileprof.cli.text.messages import say, why_empty
from tileprof.cli.text.progress import first_time, steps
from tileprof.cli.verb import Verb
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.viz import Overlay
    from tileprof.viz.serve import Answers


def _prepare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("trace", metavar="TRACE", help="folder that `tileprof record` wrote")
    add("policy", nargs="?", metavar="POLICY", help="a policy (.json) or dependencies written by hand (.dep) to check")
    add("--launches", metavar="N,N,…", help="the launches of the policy's stages (default: those that it names)")
    add("--pair", metavar="P:C", help="the launches of two stages")
    add("-o", "--output", metavar="PAGE", help="page to write (default: TRACE's name, .html)")
    add("--force", action="store_true", help="overwrite the page if it exists")
    add("--open", action="store_true", help="show the page in the browser")
    add(
        "--serve",
        action="store_true",
        help="serve the page on this machine instead: nothing left out, what-if recomputed",
    )
    add("--port", type=int, metavar="N", help="port to serve on (default: a free one)")
    add("--quick", action="store_true", help="simulate nothing: no advice, no schedulers, no what-if")
    add("--json", action="store_true", help="print the name and size of the page as JSON")


def _run(options: Namespace) -> int:
    source = Path(options.trace)
    target = Path(options.output) if options.output else Path(source.resolve().name).with_suffix(".html")
    if options.policy is None and (options.launches or options.pair):
        raise UserError("--launches and --pair are for a policy; give its file after the trace")
    if options.serve:
        _check_served(options)
    else:
        check_file(target, force=options.force)

    from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.analysis.guidance import guide  # noqa: PLC0415 - as above
    from tileprof.analysis.reporting.report import build_report  # noqa: PLC0415 - as above
    from tileprof.analysis.simulate import Simulator  # noqa: PLC0415 - as above
    from tileprof.cli.arguments.trace_argument import load_trace  # noqa: PLC0415 - as above
    from tileprof.viz import page, study, variants  # noqa: PLC0415 - as above

    trace = load_trace(source)
    with steps() as step:
        step("finding dependencies")
        graph = build_graph(trace)
        policy = _overlay(options, graph) if options.policy else None
        step(f"bounding pairs of launches{first_time()}")
        report = build_report(graph)
        guidance = None if options.quick else guide(report, Simulator(graph))
        step(f"simulating schedulers and other GPU sizes{first_time()}; --quick leaves this out")
        simulated = (None, ()) if options.quick else (study(graph), variants(graph))
        contents = graph, report, simulated[0], policy, simulated[1]
        if not options.serve:
            step("writing the page")
            text = page(*contents, guidance=guidance)
    if not len(trace.launches):
        say(f"tileprof: {source} holds no launches to draw: {why_empty(complete=trace.complete)}")
    if options.serve:
        from tileprof.viz.serve import Answers  # noqa: PLC0415 - not needed for pages in files

        return _serve(options, Answers(*contents, guidance))
    _write(target, text)
    if options.json:
        print(
            json.dumps({"page": str(target), "bytes": len(text.encode()), "policy_refused": policy and policy.refused})
        )
    say(f"{target}  ({len(text) / 1e6:.1f} MB; open it in any browser, it needs no network)")
    if options.open:
        webbrowser.open(target.resolve().as_uri())
    if policy is not None and policy.refused:
        say(f"tileprof: {policy.name} is not of this trace, and the page says so: {policy.refused}")
        return 1
    return 0


def _check_served(options: Namespace) -> None:
    if options.output:
        raise UserError("--serve writes no file: leave out -o, or --serve")
    if options.port is not None and not 0 <= options.port <= 65535:
        raise UserError(f"--port {options.port}: ports are 0 to 65535")


def _serve(options: Namespace, answers: Answers) -> int:
    from tileprof.viz.serve import PageServer  # noqa: PLC0415 - not needed for pages in files

    try:
        server = PageServer(answers, options.port or 0)
    except OSError as error:
        raise UserError(f"could not serve on port {options.port}: {error.strerror or error}") from error
    with server:
        try:
            say(f"{server.url}  (this machine only; Ctrl-C ends it)")
            if options.open:
                webbrowser.open(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            say("")
    return 0


def _overlay(options: Namespace, graph: TileGraph) -> Overlay:
    from tileprof.cli.arguments.chosen_launches import launches_of  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.policy.synthesis.prediction import Predictor  # noqa: PLC0415 - as above
    from tileprof.policy.verification.pair_waits import pair_waits  # noqa: PLC0415 - as above
    from tileprof.policy.verification.verifier import verify  # noqa: PLC0415 - as above
    from tileprof.viz import Overlay, PairOverlay  # noqa: PLC0415 - as above

    name = options.policy
    policy = policies.load(name)
    launches = launches_of(options, graph)
    try:
        verdict = verify(policy, graph, launches)
    except UserError as refused:
        return Overlay.foreign(Path(name).name, str(refused))
    bound = launches if launches is not None else [int(s.launch or 0) for s in policy.stages]
    waits = pair_waits(policy, graph, verdict, launches)
    predicted = Predictor(graph)(policy, bound)
    return Overlay(
        name=Path(name).name,
        sound=verdict.sound,
        reasons=verdict.never,
        launches=bound,
        needed=len(verdict.missing) + verdict.covered,
        missing=len(verdict.missing),
        waits=int(verdict.excess["waits"].sum()),
        excess=sum(w.excess for w in waits),
        stream_ns=predicted.stream_ns,
        policy_ns=predicted.policy_ns,
        pairs=[PairOverlay(w.producer, w.consumer, w.awaited, w.missing) for w in waits],
    )


def _write(target: Path, text: str) -> None:
    """All of the page or none of it."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise UserError(f"could not write {target}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # a read-only folder refuses this too, whether or not the file is there
            partial.unlink(missing_ok=True)


VERB = Verb("view", "write a page that shows the trace in a browser", _prepare, _run, options_anywhere=True)
