"""Policies for a range of sizes on the command line: ``export --for``, and the size that a trace has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tileprof.cli.text.messages import say
from tileprof.cli.text.progress import steps
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.policy.format import Policy, Stage
    from tileprof.policy.format.symbolic import SymbolicPolicy


def for_range(policy: Policy, text: str) -> str:
    """Return the file of the policy for a range such as ``tokens=1..4096``, proved; raises `UserError` with the sizes
    where it breaks.
    """
    from tileprof.policy.format.symbolic import Symbol, text_of  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.runtime.symbolic import for_sizes, spans_text  # noqa: PLC0415 - imports PyTorch

    symbol = Symbol.parse(text)
    with steps() as step:
        proof, before = for_sizes(policy, symbol, step)
    if before is not None:
        say(f"The waits as recorded break for {symbol.name} = {spans_text(before.broken)} ({before.witness}).")
    if not proof.holds:
        raise UserError(
            f"no waits by rows of tiles hold for all of {symbol}: they break for {spans_text(proof.broken)} "
            f"({proof.witness}); give a range without these"
        )
    which = "the recorded waits hold" if before is None else "waits by rows of tiles hold"
    say(f"Proved: {which} for all {proof.sizes:,} sizes of {symbol} (verified at {proof.verified}).")
    return text_of(proof.policy)


def at_size(symbolic: SymbolicPolicy, size: int | None, graph: TileGraph) -> Policy:
    """Return the policy of the size that the trace's launches have, or of the one that is asked for.

    Raises `UserError` where the trace does not say the size, and where its operators are others than the policy's.
    """
    from tileprof.cli.arguments import recut_operators  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.policy.format import PolicyError  # noqa: PLC0415 - as above
    from tileprof.policy.synthesis.stage_choice import stages_with  # noqa: PLC0415 - as above

    example = symbolic.at()
    launches = [stage.launch for stage in example.stages if stage.launch is not None]
    graph = recut_operators.fitting(example, graph)
    here = stages_with(graph, launches, example.guard.get("epilogues", [])) if _in(launches, graph) else None
    if here is None:
        if size is None:
            raise UserError("the trace does not say for which size its launches are: give --at N")
        return symbolic.at(size)
    recorded_size = next(iter(here.stages[0].operator["operands"].values()))["shape"][0]
    policy = symbolic.at(recorded_size if size is None else size)
    for number, (own, its) in enumerate(zip(policy.stages, here.stages, strict=True)):
        if _layout(own) != _layout(its):
            raise PolicyError(
                f"stage {number} ({own.name}) computes {_short(own)}; launch {its.launch} computes {_short(its)}: "
                "the policy is for another program or size"
            )
    return policy


def _in(launches: list[int], graph: TileGraph) -> bool:
    return bool(launches) and all(0 <= launch < len(graph.launches) for launch in launches)


def _layout(stage: Stage) -> object:
    operands = stage.operator["operands"]
    views = {role: (view["shape"], view["strides"], view["dtype"]) for role, view in operands.items()}
    return stage.operator["name"], views, {k: v for k, v in stage.operator["parameters"].items() if k != "tile"}


def _short(stage: Stage) -> str:
    shapes = (f"{role} {view['shape']}" for role, view in stage.operator["operands"].items())
    return f"{stage.operator['name']} of {', '.join(shapes)}"
