"""``tileprof export``: a trace's policy, or its graph, in the format of another tool."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tileprof.cli.arguments import policies, recut_operators
from tileprof.cli.arguments.dependencies import add_by_filters, graph_of
from tileprof.cli.arguments.sizes import for_range
from tileprof.cli.text.messages import say
from tileprof.cli.text.progress import first_time, steps
from tileprof.cli.verb import Verb
from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tileprof.analysis import TileGraph
    from tileprof.policy.format import Policy, Stage
    from tileprof.runtime.suited_tiles import Suited
    from tileprof.trace import Trace

FORMATS = {
    "json": ["policy.json"],
    "cusync": ["policy.h", "example.cu", "policy.json"],
    "counters": ["counters.json"],
    "graphml": ["graph.graphml"],
    "perfetto": ["perfetto.json"],
}
"""Files of each format."""

REASONS = 5
"""Reasons, edges or launches that a message names before it counts the others."""

_OF_A_GRAPH = ("graphml", "perfetto")


def _prepare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="TRACE", help="folder that `tileprof record` wrote, or dependencies written by hand (.dep)")
    add(
        "--format",
        default="json",
        choices=FORMATS,
        help="json: the policy (default); cusync: a C++ header and an example for it; counters: tasks and event "
        "counters; graphml: the graph of launches; perfetto: tiles on SM lanes",
    )
    add(
        "-o", "--output", metavar="DIR", type=Path, help="folder to write into (default: ./NAME-FORMAT of TRACE's name)"
    )
    add("--json", action="store_true", help="print the names of the written files as JSON")
    add("--force", action="store_true", help="overwrite files that exist there")
    add("--launches", metavar="N,N,…", help="the stages of the policy (default: the first pair of `tileprof report`)")
    add("--pair", metavar="P:C", help="the stages are these two launches")
    add("--module", metavar="REGEX", help="the stages are launches of modules whose path matches")
    fusing = parser.add_mutually_exclusive_group()
    fusing.add_argument(
        "--fuse", action="store_true", help="make every launch between the stages a part of the stage before it"
    )
    fusing.add_argument(
        "--no-fuse",
        action="store_true",
        help="make a stage of every launch in between (default: activations and sums become epilogues where the "
        "runtime has them)",
    )
    add(
        "--for",
        dest="sizes",
        metavar="RANGE",
        help="json: one policy for a range of sizes, proved for each: 'tokens=1..4096', 'images=8..64 step 8'",
    )
    add("--policy", metavar="FILE", help="export this policy; it must be sound for the trace")
    add_by_filters(parser)
    add(
        "--several-waits",
        action="store_true",
        help="cusync: a tile may wait for several semaphores, one after the other",
    )


def _run(options: Namespace) -> int:
    from tileprof.policy.emit.folder import check_free, write_folder  # noqa: PLC0415 - not needed for --help

    if options.several_waits and options.format != "cusync":
        raise UserError("--several-waits is for --format cusync")
    if options.sizes and (options.format != "json" or options.fuse or options.source.endswith(".dep")):
        raise UserError("--for is for --format json of a trace, whose stages this package's kernels compute")
    if options.by_filters and (options.sizes or options.source.endswith(".dep")):
        raise UserError("--by-filters takes dependencies from one trace, whose tiles are as recorded")
    if options.sizes:
        from tileprof.policy.format.symbolic import Symbol  # noqa: PLC0415 - not needed for --help

        Symbol.parse(options.sizes)  # a mistake is better told before any work
    if options.output is None:
        options.output = Path(f"{Path(options.source).resolve().stem}-{options.format}")
    from tileprof.cli.arguments.trace_argument import load_trace  # noqa: PLC0415 - heavy, and not needed for --help

    trace = None if options.source.endswith(".dep") else load_trace(options.source)
    check_free(options.output, FORMATS[options.format], force=options.force)
    texts = _by_hand(options) if trace is None else _of_trace(options, trace)
    paths = write_folder(options.output, texts, force=options.force)
    if options.json:
        print(json.dumps({"format": options.format, "files": [str(path) for path in paths]}))
        return 0
    for path in paths:
        print(path)
    return 0


def _by_hand(options: Namespace) -> dict[str, str]:
    from tileprof.policy.synthesis.dependency_file import load_dependencies  # noqa: PLC0415 - heavy, and not needed for --help

    for name in ("launches", "pair", "module", "policy", "fuse", "no_fuse"):
        if getattr(options, name):
            raise UserError(f"--{name.replace('_', '-')} chooses from a trace; {options.source} is not a trace")
    if options.format in _OF_A_GRAPH:
        raise UserError(f"--format {options.format} shows a trace; {options.source} is not a trace")
    return _texts(options, load_dependencies(options.source))


def _of_trace(options: Namespace, trace: Trace) -> dict[str, str]:
    from tileprof.cli.arguments.chosen_launches import launches_of  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.policy.emit.graphml import graphml_files  # noqa: PLC0415 - as above
    from tileprof.policy.emit.perfetto import perfetto_files  # noqa: PLC0415 - as above
    from tileprof.policy.verification.residency import blocked_producers  # noqa: PLC0415 - as above

    with steps() as step:
        step("finding dependencies")
        graph = graph_of(trace, options)
    launches = launches_of(options, graph)
    if options.format in _OF_A_GRAPH:
        if options.policy or options.fuse:
            raise UserError(f"--format {options.format} shows the trace; it takes neither --policy nor --fuse")
        return graphml_files(graph, launches) if options.format == "graphml" else perfetto_files(graph, launches)
    with steps() as step:
        step(f"checking the policy{first_time()}" if options.policy else f"synthesising a policy{first_time()}")
        if options.policy:
            if not options.by_filters:
                graph = recut_operators.fitting(policies.load(options.policy), graph)
            policy = _sound(options, graph, launches)
        else:
            graph, launches, fit = _stages(options, graph, launches)
            policy = _synthesised_policy(options, graph, launches)
            if fit is not None:
                policy = recut_operators.with_kernel_prediction(policy, fit, graph.device.sms)
    _say_prediction(policy)
    stages = [int(stage.launch or 0) for stage in policy.stages]
    return _texts(options, policy, lambda policy: blocked_producers(policy, graph, stages))


def _stages(
    options: Namespace, graph: TileGraph, launches: list[int] | None
) -> tuple[TileGraph, list[int], Suited | None]:
    """Return the launches that are to be stages, in the graph whose tiles the runtime has, and how its persistent
    kernel takes them.

    By default these are the first pair of the report that the runtime computes, or the first pair where it computes
    none; activations at its ends are epilogues, and the launches around them the pair.
    """
    from tileprof.policy.synthesis.stage_choice import best_pair  # noqa: PLC0415 - heavy, and not needed for --help

    if launches is not None and len(launches) < 2:
        raise UserError("a policy is for at least two launches: --launches 12,13")
    recut = None if options.by_filters else recut_operators.in_tiles_of_stages(graph)  # filters are of recorded tiles
    cut = recut or recut_operators.Cut(graph, {n: (n,) for n in range(len(graph.launches))}, graph)
    fit = None
    suited = _recut_recording(options, recut, launches) if recut is not None else None
    if suited is not None:
        cut, stages, fit = suited
    elif launches is None:
        first = recut_operators.best_stages(graph, cut, around=not options.no_fuse)
        which = "the first pair of `tileprof report`"
        if first is None:
            cut, recut, stages = replace(cut, graph=graph), None, list(best_pair(graph))
        else:
            stages, which = first, which + " that the runtime computes"
        names = [_module_or_op(cut.graph, n) for n in stages]
        say(f"Launches {stages[0]} ({names[0]}) and {stages[-1]} ({names[-1]}): {which}.")
    else:
        stages = cut.numbers(launches)
        if len(stages) < 2:  # several kernels of one operator
            return graph, launches, None
    if recut is not None:
        say(
            "Stages have the tiles of the runtime's kernels for the recorded operators, not those of the recorded "
            "kernels; "
            f"in these, the launches are {', '.join(map(str, stages))}."
        )
    return cut.graph, stages, fit


def _recut_recording(
    options: Namespace, cut: recut_operators.Cut, launches: list[int] | None
) -> tuple[recut_operators.Cut, list[int], Suited] | None:
    """Return the recording cut into the tiles that suit the persistent kernel, the stages that it runs, and how it
    takes them; None where it runs none of the launches, or where the policy is not for it.
    """
    from tileprof.policy.synthesis.stage_choice import product_sets  # noqa: PLC0415 - heavy, and not needed for --help

    if options.format != "json" or options.no_fuse or options.fuse:
        return None
    sets = list(product_sets(cut.graph)) if launches is None else [tuple(cut.numbers(launches))]
    best_stages = recut_operators.chosen_by_runtime(cut.graph, [stages for stages in sets if len(stages) > 1])
    if best_stages is None:
        return None
    cut = recut_operators.retiled(cut, best_stages)
    if launches is None:
        names = [f"{n} ({_module_or_op(cut.graph, n)})" for n in best_stages.stages]
        which = "of the products that need each other, those for which one launch should save most"
        say(f"Launches {', '.join(names)}: {which}.")
    return cut, list(best_stages.stages), best_stages.suited


def _module_or_op(graph: TileGraph, launch: int) -> str:
    row = graph.launches.iloc[launch]
    return str(row["module"]) or str(row["op"])


def _say_prediction(policy: Policy) -> None:
    from tileprof.cli.text.console import plain  # noqa: PLC0415 - heavy, and not needed for --help

    expected = policy.prediction
    if {"stream_us", "policy_us", "gain_percent"} <= expected.keys():
        kernels = ", for this package's kernels" if expected.get("model") == recut_operators.KERNEL_MODEL else ""
        say(
            f"Modelled{kernels}: {expected['stream_us']} us in stream order, {expected['policy_us']} us under the "
            f"policy ({-expected['gain_percent']:+} %)."
        )
        for edge in policy.edges[:REASONS]:
            if edge.reason:
                pair = " on ".join(plain(_label(policy.stages[n])) for n in (edge.consumer, edge.producer))
                say(f"{pair}: {plain(edge.reason)}.")
        if expected["gain_percent"] <= 0:
            say("The policy is sound but not expected to gain: stream order is as good.")


def _label(stage: Stage) -> str:
    return stage.name if stage.launch is None else f"{stage.name} ({stage.launch})"


def _sound(options: Namespace, graph: TileGraph, launches: list[int] | None) -> Policy:
    from tileprof.policy.synthesis.epilogue_fusion import fuse, fused_for  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.policy.synthesis.search import with_prediction  # noqa: PLC0415 - as above
    from tileprof.policy.synthesis.stage_choice import rebound  # noqa: PLC0415 - as above
    from tileprof.policy.verification.verifier import verify  # noqa: PLC0415 - as above

    policy = policies.load(options.policy)
    numbers = launches if launches is not None else [s.launch for s in policy.stages if s.launch is not None]
    if options.fuse and numbers:
        graph = fuse(graph, numbers)
    elif launches is None:
        graph = fused_for(policy, graph)
    verification = verify(policy, graph, launches)
    if not verification.sound:
        why = (
            f"{len(verification.missing):,} dependencies are not waited for"
            if len(verification.missing)
            else verification.never[0]
        )
        raise UserError(
            f"{options.policy} is not sound for {options.source}: {why}; `tileprof verify {options.policy} "
            f"{options.source}` names all"
        )
    return with_prediction(rebound(policy, graph, numbers), graph, numbers)


def _synthesised_policy(options: Namespace, graph: TileGraph, launches: list[int]) -> Policy:
    from tileprof.policy.synthesis.epilogue_fusion import fuse  # noqa: PLC0415 - as above
    from tileprof.policy.synthesis.search import synthesise  # noqa: PLC0415 - as above
    from tileprof.policy.synthesis.stage_choice import epilogues_between  # noqa: PLC0415 - as above
    from tileprof.policy.verification.overtaken import overtaken_launches  # noqa: PLC0415 - heavy, and not needed for --help

    more = overtaken_launches(graph, launches)
    folded = more if options.fuse else [] if options.no_fuse else epilogues_between(graph, launches)
    if folded:
        graph = fuse(graph, launches)
        if not options.fuse:
            say(f"{_subject_with_verb(folded, 'becomes')} an epilogue of the stage before it (--no-fuse: a stage).")
    elif more:
        say(
            f"{_subject_with_verb(more, 'becomes')} a stage too: the stages depend on each other through it "
            "(--fuse: part of the stage before it)."
        )
        launches = sorted({*launches, *more})
    policy = synthesise(graph, launches, folded=folded)
    return recut_operators.with_best_waits(policy, graph, launches) if options.format == "json" else policy


def _subject_with_verb(launches: list[int], verb: str) -> str:
    """Return the subject of a sentence about launches, with its verb: ``Launch 3 is``; of many, the first few."""
    if len(launches) == 1:
        return f"Launch {launches[0]} {verb}"
    numbers = ", ".join(map(str, launches[:REASONS]))
    more = f" and {len(launches) - REASONS:,} more" if len(launches) > REASONS else ""
    return f"Each of launches {numbers}{more} {verb}"


def _texts(
    options: Namespace, policy: Policy, blocked: Callable[[Policy], tuple[str, ...]] | None = None
) -> dict[str, str]:
    from tileprof.policy.emit.counters import counters_files  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.policy.emit.cusync import cusync_files  # noqa: PLC0415 - as above
    from tileprof.policy.format import to_dict  # noqa: PLC0415 - as above

    if options.format == "counters":
        return counters_files(policy)
    if options.format == "cusync":
        texts, files = cusync_files(policy, several=options.several_waits, blocked=blocked)
        for reason in files.reasons[:REASONS]:
            say(f"Over-synchronised: {reason}.")
        if len(files.reasons) > REASONS:
            say(f"… and {len(files.reasons) - REASONS} more; policy.h names all.")
        policy = files.policy
    else:
        texts = {}
    if options.sizes:
        return {"policy.json": for_range(policy, options.sizes)}
    return {**texts, "policy.json": json.dumps(to_dict(policy), indent=1) + "\n"}


VERB = Verb("export", "write a policy or a graph in the format of another tool", _prepare, _run)
