"""``tileprof run``: execute a policy and check its results, or run a program and time its models."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tileprof.analysis.times_and_counts import counted
from tileprof.cli.arguments import policies
from tileprof.cli.arguments.target import check_file
from tileprof.cli.running.run_acs import SCHEDULERS as ACS
from tileprof.cli.running.run_acs import run_acs
from tileprof.cli.running.run_gpu import (
    AUTO,
    check_device,
    check_program_scheduler,
    check_scheduler,
    run_on_gpu,
    sentences,
)
from tileprof.cli.running.run_header import run_header
from tileprof.cli.running.run_program import MODELS, run_program
from tileprof.cli.text.epilogs import schedulers_of_run
from tileprof.cli.text.progress import steps
from tileprof.cli.verb import Verb
from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tileprof.policy.format import Policy
    from tileprof.runtime import Pipeline
    from tileprof.runtime.executor import Findings

RANDOM: Final = 4
DELAYED: Final = 64
"""Defaults of the numbers of random orders and of delayed tiles."""

TOLERANCE: Final = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest relative error (norm of the difference over the norm) taken for rounding: a chain rounds once per stage,
PyTorch where it likes.
"""


def _prepare(parser: ArgumentParser) -> None:
    parser.usage = (
        "tileprof run [options] POLICY [POLICY ...]\n"
        "       tileprof run [--models N] [--csv FILE] [--timeline FOLDER] -- python infer.py …\n"
        "       tileprof run --scheduler acs [--check] [--table FILE] -- python infer.py …"
    )
    _add_inputs_and_scheduler(parser)
    _add_options_of_acs(parser)
    _add_options_of_executions(parser)
    _add_options_of_programs(parser)


def _add_inputs_and_scheduler(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "policy",
        metavar="POLICY",
        nargs="*",
        help="policy file (.json), for example from `tileprof export TRACE --format json -o DIR`; with --compare "
        "several of the same stages; or a header (policy.h) from `--format cusync`, which is compiled and run on a GPU",
    )
    add(
        "--compare",
        action="store_true",
        help="on a GPU: time PyTorch, the stages' own kernels under every scheduler and each policy, with the "
        "prediction beside it",
    )
    add("--csv", type=Path, metavar="FILE", help="with --compare, or a program: write the rows to FILE")
    add("--force", action="store_true", help="overwrite FILE")
    add(
        "--trace",
        metavar="TRACE",
        help="execute over the recorded accesses of this trace, without arithmetic; works for any kernels",
    )
    add(
        "--scheduler",
        default=AUTO,
        metavar="NAME",
        help=f"on a GPU: how the stages run there (default {AUTO}: what the prediction favours); with a program "
        f"after --: {' or '.join(ACS)}, which run its kernels out of order",
    )


def _add_options_of_acs(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--check",
        action="store_true",
        help="with --scheduler acs: also run the launches in other orders and in stream order, and compare memory",
    )
    add(
        "--table",
        type=Path,
        metavar="FILE",
        help="with --scheduler acs: footprint table to use; written if FILE does not exist",
    )
    add("--fine", action="store_true", help="with --scheduler acs: record the bytes touched, not whole ranges")
    add("--streams", type=int, metavar="N", help="with --scheduler acs: number of streams")
    add(
        "--window",
        type=int,
        metavar="N",
        help="with --scheduler acs: number of launches that a new one is compared with",
    )
    add(
        "--threads",
        type=int,
        metavar="N",
        help="with --scheduler acs: 1 (default): a thread beside the program decides and issues; 0: the program's "
        "own thread does",
    )
    add(
        "--workers",
        type=int,
        metavar="N",
        help="with --scheduler acs: threads that each launch a kernel and wait for its end, as in the paper "
        "(default 0: events on the GPU keep the order)",
    )


def _add_options_of_executions(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--compile",
        type=float,
        metavar="SECONDS",
        help="with --compare: also time torch.compile max-autotune, limited to SECONDS of compiling",
    )
    add(
        "--random",
        type=int,
        metavar="N",
        help=f"number of random orders (default {RANDOM}); like --delayed and --seed not with --compare",
    )
    add(
        "--delayed",
        type=int,
        metavar="N",
        help=f"tiles held back as long as the policy allows, one at a time (default {DELAYED}; 0: all)",
    )
    add("--seed", type=int, help="seed of orders and inputs (default 0)")
    add("--at", type=int, metavar="N", help="size to run, of a policy for a range of sizes (default: the recorded one)")
    add("--json", action="store_true", help="print the results as JSON")


def _add_options_of_programs(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--timeline",
        type=Path,
        metavar="FOLDER",
        help="with a program: also write the timeline of the SMs in one replay, for `tileprof view`: a trace per "
        "kernel that runs a whole model",
    )
    add(
        "--models",
        type=int,
        default=MODELS,
        metavar="N",
        help="with a program: number of its models to time, those called most often (default "
        f"{MODELS}), under PyTorch, Inductor and torch.compile(backend='tileprof'); the program runs unchanged first",
    )


def _run(options: Namespace) -> int:
    if getattr(options, "program", None) is not None:
        if options.scheduler in ACS:
            return run_acs(options)
        check_program_scheduler(options.scheduler)
        _refuse_acs(options)
        return run_program(options)
    _refuse_acs(options)
    if options.timeline:
        raise UserError("--timeline is for a program after --: tileprof run --timeline FOLDER -- python infer.py")
    if not options.policy:
        raise UserError("give a policy file, or a program after --: tileprof run -- python infer.py")
    if options.policy[0].endswith(".h"):
        if len(options.policy) > 1 or options.compare or options.trace:
            raise UserError("a header runs alone: give one policy.h, without --compare and --trace")
        return run_header(Path(options.policy[0]), as_json=options.json)
    _settle_orders(options)
    if options.scheduler != AUTO and (options.compare or options.trace):
        raise UserError(
            "--scheduler cannot be combined with --compare, which measures all of them, or with --trace, which "
            "computes nothing"
        )
    if options.compare:
        if options.trace:
            raise UserError(
                "--compare measures the stages' own kernels, and --trace computes nothing: give one of them"
            )
        return _compare(options)
    if options.csv or len(options.policy) > 1:
        raise UserError(f"{'--csv' if options.csv else 'more than one policy'} needs --compare")
    check_scheduler(options.scheduler)
    with steps() as say:
        say("reading the policy")
        policy = policies.load(options.policy[0], options.at)
        if not options.trace:
            check_device(policy)
        result = _over_trace(policy, options, say) if options.trace else _over_operators(policy, options, say)
    if options.json:
        json.dump(result, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        _print(result)
    return 0 if result["clean"] else 1


def _refuse_acs(options: Namespace) -> None:
    for name in ("check", "table", "fine", "streams", "window", "threads", "workers"):
        if getattr(options, name, None) not in {None, False}:
            raise UserError(f"--{name} needs --scheduler acs and a program after --")


def _settle_orders(options: Namespace) -> None:
    """Numbers for the options of orders; raises `UserError` for those that mean nothing, alone or beside --compare."""
    for name, default in (("random", RANDOM), ("delayed", DELAYED), ("seed", 0)):
        number = getattr(options, name)
        if number is not None and options.compare:
            raise UserError(
                f"--{name} is about orders in which tiles are executed; --compare measures and executes none"
            )
        if number is not None and number < 0:
            raise UserError(f"--{name} {number}: give a number from 0")
        setattr(options, name, default if number is None else number)
    if options.compile is not None and not (options.compare and options.compile > 0):
        raise UserError("--compile SECONDS needs --compare, and must be above 0")


def _compare(options: Namespace) -> int:
    from tileprof.cli.running.run_compare import compare, report, write_csv  # noqa: PLC0415 - heavy, and not needed for --help

    if options.csv:
        check_file(options.csv, force=options.force)
    policies_at = [policies.load(path, options.at) for path in options.policy]
    for policy in policies_at:
        check_device(policy)
    with steps() as say:
        result = compare(policies_at, options.compile, say)
    report(result, as_json=options.json)
    if options.csv:
        write_csv(result, options.csv, force=options.force)
    return 0


def _over_trace(policy: Policy, options: Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Return every access that the trace holds, watched in adversarial orders."""
    from tileprof.policy.verification.operand_guard import check_operands  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.runtime.executor import Memory, recorded_touches, recycled, search  # noqa: PLC0415 - as above
    from tileprof.trace import load  # noqa: PLC0415 - as above

    if policy.guard.get("epilogues"):
        raise UserError(
            "this policy takes launches of the trace as epilogues of its stages, so the trace has no accesses "
            "for those stages: run it without --trace, or export it with --no-fuse"
        )
    say("reading what the launches touched")
    trace = load(options.trace)
    touches = []
    for number, stage in enumerate(policy.stages):
        if stage.launch is None or not 0 <= stage.launch < len(trace.launches):
            raise UserError(
                f"stage {number} ({stage.name}) is launch {stage.launch}; the trace has {len(trace.launches)} launches"
            )
        footprint = trace.footprint(int(trace.launches["footprint"].iloc[stage.launch]))
        try:
            touches.append(recorded_touches(footprint, trace.operands_of(stage.launch), stage.grid))
        except UserError as error:
            raise UserError(f"stage {number} ({stage.name}), launch {stage.launch}: {error}") from None
    check_operands(policy, trace, [int(stage.launch or 0) for stage in policy.stages])
    if not policy.guard.get("renamed", False):  # stages use memory as recorded: earlier owners of an address count
        base, size = (trace.buffers[name].to_numpy("int64") for name in ("base", "bytes"))
        touches = [recycled(t, base, size) for t in touches]
    memory = Memory.build([s.tiles for s in policy.stages], touches)
    names = {int(b): str(n) for b, n in zip(trace.buffers["buffer"], trace.buffers["name"], strict=True) if n}
    findings = search(policy, memory, **_orders(options, say))
    return _findings_json(policy, findings, names)


def _orders(options: Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Return what to search: the settings of `search`."""
    return {
        "random": options.random,
        "delayed": options.delayed or 2**62,
        "seed": options.seed,
        "progress": lambda number, most: say(f"watching accesses, execution {number:,} of {most:,}"),
    }


def _over_operators(policy: Policy, options: Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Real arithmetic on random inputs in plain and random orders, and the accesses in adversarial ones."""
    from tileprof.runtime import Pipeline  # noqa: PLC0415 - imports PyTorch
    from tileprof.runtime.executor import search  # noqa: PLC0415 - heavy, and not needed for --help

    pipeline = Pipeline(policy)
    names = dict(enumerate(pipeline.chain.tensors()))
    say("working out what the tiles touch")
    findings = search(policy, pipeline.memory, **_orders(options, say))
    result = _findings_json(policy, findings, names)
    if findings.deadlock is None:
        result["numbers"] = _numbers(pipeline, options, say)
        result["clean"] = result["clean"] and all(n["agrees"] and n["same_in_every_order"] for n in result["numbers"])
    if result["clean"]:
        result["gpu"] = run_on_gpu(policy, options.scheduler, options.seed, TOLERANCE, say)
        result["clean"] = result["gpu"] is None or result["gpu"].get("clean", True)
    return result


def _numbers(pipeline: Pipeline, options: Namespace, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return how far each output is from PyTorch's, and whether every order gave the same bits."""
    import torch  # noqa: PLC0415 - slow to import

    from tileprof.runtime.executor import Program, randomly, reversed_, stream  # noqa: PLC0415 - heavy

    inputs = pipeline.example(options.seed)
    say("computing the stages by PyTorch")
    reference = pipeline.reference(inputs)
    program = Program.of(pipeline.policy)
    say("computing every tile, order 1 of 3")
    first, _ = pipeline.run(inputs, stream(program))
    same = dict.fromkeys(pipeline.outputs, True)
    for number, order in enumerate((reversed_(program), randomly(program, options.seed)), start=2):
        say(f"computing every tile, order {number} of 3")
        again, _ = pipeline.run(inputs, order)
        for name in same:
            same[name] = same[name] and bool(torch.equal(again[name], first[name]))
    rows = []
    for name, view in pipeline.outputs.items():
        value, exact = first[name].double(), reference[name].double()
        error = float((value - exact).norm() / exact.norm())
        finite = error == error and error != float("inf")  # noqa: PLR0124 - NaN differs from itself
        rows.append(
            {
                "output": name,
                "shape": list(view.shape),
                "dtype": view.dtype,
                "relative_error": error if finite else None,
                "tolerance": TOLERANCE[view.dtype],
                "agrees": finite and error < TOLERANCE[view.dtype],
                "same_in_every_order": same[name],
            }
        )
    return rows


def _findings_json(policy: Policy, findings: Findings, names: dict[int, str]) -> dict[str, Any]:
    return {
        "stages": [stage.name for stage in policy.stages],
        "tiles": sum(stage.tiles for stage in policy.stages),
        "semaphores": sum(array.count for array in policy.semaphores),
        "executions": findings.executions,
        "races": len(findings.races),
        "deadlock": findings.deadlock is not None,
        "clean": findings.clean,
        "findings": findings.sentences(names),
        "measured": False,
    }


def _print(result: dict[str, Any]) -> None:
    print(f"{len(result['stages'])} stages, {result['tiles']:,} tiles, {counted(result['semaphores'], 'semaphore')}.")
    what = "found neither race nor deadlock" if not result["findings"] else "found:"
    count = result["executions"]
    print(
        f"{count:,} executions, in plain, random and adversarial orders, {what}"
        if count != 1
        else f"1 execution, in stream order, {what}"
    )
    for line in result["findings"]:
        print(f"  {line}")
    for number in result.get("numbers", ()):
        shape = "x".join(map(str, number["shape"]))
        error = "not finite" if number["relative_error"] is None else f"{number['relative_error']:.1e}"
        verdict = "agrees with PyTorch" if number["agrees"] else "DIFFERS from PyTorch"
        order = (
            "the same bits in every order" if number["same_in_every_order"] else "DIFFERENT BITS in different orders"
        )
        print(
            f"{number['output']} {shape} {number['dtype']}: {verdict} (relative error {error}, at most "
            f"{number['tolerance']:g}); {order}."
        )
    if not result.get("gpu"):
        print("Executed tile by tile on the CPU: nothing was measured.")
    for line in sentences(result["gpu"]) if result.get("gpu") else ():
        print(line)


VERB = Verb(
    "run",
    "execute a policy and check its results, or run a program and time its models",
    _prepare,
    _run,
    epilog=schedulers_of_run,
    takes_program=True,
)
