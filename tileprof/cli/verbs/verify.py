"""``tileprof verify``: whether a policy waits for everything that its launches depend on."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from tileprof.cli.arguments import policies, recut_operators
from tileprof.cli.arguments.dependencies import add_by_filters, graph_of
from tileprof.cli.arguments.sizes import at_size
from tileprof.cli.verb import Verb
from tileprof.errors import UserError
from tileprof.shell_words import shell_word

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.policy.assessment import Assessment
    from tileprof.policy.format import Policy

FIRST = 10
STAGES = 6
SOUND = "sound"
"""The folder that is proposed for a policy that waits for everything."""


def _prepare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    parser.usage = "tileprof verify POLICY TRACE [options]"
    add(
        "policy",
        nargs="?",
        metavar="POLICY",
        help="a policy (.json), dependencies written by hand (.dep), or one that cuSync ships: cusync:tilesync, "
        "cusync:rowsync, cusync:stridedsync[:STRIDE], cusync:conv2dtile",
    )
    add("trace", metavar="TRACE", help="folder that `tileprof record` wrote")
    add("--kind", metavar="KIND", help="a policy that cuSync ships, in place of POLICY")
    add("--launches", metavar="N,N,…", help="the launches of the stages (default: those that the policy names)")
    add("--pair", metavar="P:C", help="the launches of two stages")
    add("--fuse", action="store_true", help="make launches between the stages a part of the first, as fused epilogues")
    add(
        "--rows",
        metavar="AXES",
        default="",
        help="for cuSync's policies: row axes of producer and consumer, for example xy",
    )
    add("--at", type=int, metavar="N", help="size to check, of a policy for a range of sizes (default: the trace's)")
    add("--json", action="store_true", help="print JSON; schema in tileprof.policy.assessment")
    add("--first", type=int, default=FIRST, metavar="N", help=f"missing dependencies to name (default {FIRST}; 0: all)")
    add_by_filters(parser)


def _run(options: Namespace) -> int:
    if (options.policy is None) == (options.kind is None):
        raise UserError("name one policy: tileprof verify POLICY TRACE, or tileprof verify --kind cusync:rowsync TRACE")
    if options.first < 0:
        raise UserError(f"--first {options.first}: give the number of missing dependencies to name, or 0 for all")

    from tileprof.cli.arguments.chosen_launches import launches_of  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.cli.arguments.trace_argument import load_trace  # noqa: PLC0415 - as above
    from tileprof.policy.assessment import assess  # noqa: PLC0415 - as above
    from tileprof.policy.format.symbolic import load_symbolic  # noqa: PLC0415 - as above
    from tileprof.policy.synthesis.cusync_kinds import PREFIX  # noqa: PLC0415 - as above
    from tileprof.policy.synthesis.epilogue_fusion import fuse, fused_for  # noqa: PLC0415 - as above

    name = options.kind if options.policy is None else options.policy
    symbolic = None if name.startswith(PREFIX) else load_symbolic(name)
    policy = _load(name, options.at)
    graph = graph_of(load_trace(options.trace), options)
    if symbolic is not None:
        policy = at_size(symbolic, options.at, graph)
    if policy is not None and not (options.launches or options.pair or options.by_filters):
        graph = recut_operators.fitting(policy, graph)
    launches = launches_of(options, graph)
    if policy is None:
        launches, graph, policy = _cusync_policy(name, options, graph, launches)
    elif options.fuse:
        graph = fuse(graph, launches if launches is not None else _named_launches(policy))
    elif launches is None:
        graph = fused_for(policy, graph)
    assessment = assess(policy, graph, launches)
    if options.json:
        json.dump(
            assessment.to_json(options.first or len(assessment.verdict.missing)), sys.stdout, indent=1, allow_nan=False
        )
        print()
    else:
        _print(name, options, assessment)
    return 0 if assessment.verdict.sound else 1


def _load(name: str, size: int | None) -> Policy | None:
    """Return the policy in a file; None for one that cuSync ships, which takes a trace to make."""
    from tileprof.policy.synthesis.cusync_kinds import PREFIX  # noqa: PLC0415 - heavy, and not needed for --help

    return None if name.startswith(PREFIX) else policies.load(name, size)


def _cusync_policy(
    name: str, options: Namespace, graph: TileGraph, launches: list[int] | None
) -> tuple[list[int], TileGraph, Policy]:
    from tileprof.policy.synthesis.cusync_kinds import Shipped, shipped_policy  # noqa: PLC0415 - as above
    from tileprof.policy.synthesis.epilogue_fusion import fuse  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.policy.synthesis.stage_choice import best_pair  # noqa: PLC0415 - as above

    shipped = Shipped.parse(name, options.rows)
    pair = list(best_pair(graph)) if launches is None else launches
    if len(pair) != 2:
        raise UserError(f"{name} is for a producer and a consumer; {len(pair)} launches are given")
    graph = fuse(graph, pair) if options.fuse else graph
    return pair, graph, shipped_policy(shipped, graph, *pair)


def _named_launches(policy: Policy) -> list[int]:
    launches = [stage.launch for stage in policy.stages if stage.launch is not None]
    if len(launches) < len(policy.stages):
        raise UserError("the policy does not name its launches; say which they are: --launches N,N,…")
    return launches


def _print(name: str, options: Namespace, assessment: Assessment) -> None:
    from tileprof.cli.text.console import plain  # noqa: PLC0415 - heavy, and not needed for --help

    verdict, policy = assessment.verdict, assessment.policy
    print(f"{name} on {options.trace}")
    for launch, stage in list(zip(assessment.launches, policy.stages, strict=True))[:STAGES]:
        print(f"  launch {launch}: {plain(stage.name)}, {' x '.join(map(str, stage.grid))} tiles")
    if len(policy.stages) > STAGES:
        print(f"  … and {len(policy.stages) - STAGES} more stages")
    for note in (*policy.notes, *assessment.remarks):
        print(f"  {plain(note)}")
    dependencies = len(verdict.missing) + verdict.covered
    if verdict.missing.empty:
        print(f"Dependencies: {dependencies:,}, all waited for.")
    else:
        print(f"UNSOUND: {len(verdict.missing):,} of {dependencies:,} dependencies are not waited for.")
    _print_missing(assessment, options.first)
    for sentence in verdict.never:
        print(f"UNSOUND: {plain(sentence)}.")
    _print_costs(assessment)
    if assessment.corrected is not None:
        _print_corrected(options, assessment, assessment.corrected)


def _print_missing(assessment: Assessment, first: int) -> None:
    from tileprof.cli.text.console import plain  # noqa: PLC0415 - heavy, and not needed for --help

    missing = assessment.missing()
    first_missing = missing.head(first) if first else missing
    for row in first_missing.to_dict("records"):
        print(
            f"  {plain(row['consumer'])} {_at(row['consumer_tile'])} needs {row['bytes']:,} bytes of "
            f"{plain(row['producer'])} {_at(row['producer_tile'])} ({row['hazard']})"
        )
    if len(first_missing) < len(missing):
        print(f"  … and {len(missing) - len(first_missing):,} more (--first 0 names all)")


def _at(tile: list[int]) -> str:
    return f"({', '.join(map(str, tile))})"


def _print_costs(assessment: Assessment) -> None:
    excess, verdict = assessment.verdict.excess, assessment.verdict
    print(
        f"Waits: {int(excess['waits'].sum()):,}, {int(excess['idle_waits'].sum()):,} of them useless; "
        f"together they cover {int(excess['excess_tiles'].sum()):,} tiles beyond the dependencies."
    )
    if int(excess["idle_waits"].sum()):
        print("  A wait is useless where its tile needs none of the tiles that post its semaphore; it costs time only.")
    exact = f"{assessment.exact_us:.2f} us with one wait per dependency"
    if not verdict.sound and assessment.policy_us is not None:
        print(
            f"Time, modelled: {exact}; {assessment.stream_us:.2f} us in stream order; none of a policy that is unsound."
        )
    elif assessment.policy_us is None or assessment.excess_us is None:
        print(f"Time, modelled: none under this policy; {exact}; {assessment.stream_us:.2f} us in stream order.")
    else:
        print(
            f"Time, modelled: {assessment.policy_us:.2f} us; {exact} ({assessment.excess_us:+.2f} us for the excess); "
            f"{assessment.stream_us:.2f} us in stream order."
        )
    if len(verdict.renamable):
        consequence = (
            "they are harmless where each stage has memory of its own" if not _strict(assessment) else "counted above"
        )
        print(f"Hazards from recycled memory that no wait covers: {len(verdict.renamable):,}; {consequence}.")


def _print_corrected(options: Namespace, assessment: Assessment, policy: Policy) -> None:
    kinds = ", ".join(edge.kind for edge in policy.edges) or "no waits"
    print(f"A sound policy for these launches ({kinds}) takes {policy.prediction['policy_us']:.2f} us; to write it:")
    fused = ["--fuse"] if options.fuse else []
    launches = ",".join(map(str, assessment.launches))
    command = ["tileprof", "export", "--format", "json", "-o", SOUND, "--launches", launches, *fused]
    print(f"  {shlex.join(command)} {shell_word(options.trace)}")


def _strict(assessment: Assessment) -> bool:
    return not assessment.policy.guard.get("renamed", False)


VERB = Verb("verify", "check a policy against the dependencies of a trace", _prepare, _run)
