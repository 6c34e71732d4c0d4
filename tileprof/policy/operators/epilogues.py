"""Launches that are taken as part of the stage before them: activations and sums as epilogues of products and convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tileprof.policy.operators.kinds import Draft, draft
from tileprof.policy.operators.recorded_call import RecordedCall, Slot, UnknownStageError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

_WITH_EPILOGUE: Final = ("gemm", "conv2d", "reduce")
_ACTIVATIONS: Final = ("relu", "gelu", "gelu_tanh", "silu")


def absorb(graph: TileGraph, launch: int, drafts: list[Draft | None], reasons: list[str], latest: int) -> None:
    """Make ``launch`` part of the stage whose result it takes, in place; where no epilogue says that, of ``latest`` or that stage
    remains the reason.
    """
    stage = latest
    try:
        one = draft(RecordedCall.of(graph, launch))
        stage, role = _taken(one, drafts)
        drafts[stage] = _with_epilogue(drafts[stage], one, role)
    except UnknownStageError as error:
        drafts[stage], reasons[stage] = None, f"launch {launch} is taken as part of it: {error}"


def _taken(one: Draft, drafts: list[Draft | None]) -> tuple[int, str]:
    """The last stage whose whole result a launch reads, and as what."""
    if one.name != "pointwise":
        raise UnknownStageError(f"{one.name} is no epilogue")
    for stage in reversed(range(len(drafts))):
        before = drafts[stage]
        for role in ("x", "y"):
            given = one.operands.get(role)
            if before is not None and given is not None and _same(before.operands["out"], given):
                return stage, role
    raise UnknownStageError(f"{one.parameters['function']} takes the result of no stage")


def _same(one: Slot, other: Slot) -> bool:
    return (one.buffer, one.offset, one.last) == (other.buffer, other.offset, other.last)


def _with_epilogue(before: Draft | None, one: Draft, role: str) -> Draft:
    assert before is not None, "found by its result"
    function = one.parameters["function"]
    if before.name not in _WITH_EPILOGUE or before.parameters.get("split_k", 1) > 1 or "residual" in before.operands:
        raise UnknownStageError(f"{before.name} takes no {function} as its epilogue")
    old, new = before.operands["out"], one.operands["out"]
    out = replace(old, buffer=new.buffer, offset=new.offset, dtype=new.dtype)
    operands = {**before.operands, "out": out}
    if function in _ACTIVATIONS and "epilogue" not in before.parameters:
        return replace(before, operands=operands, parameters={**before.parameters, "epilogue": function})
    if function == "add":
        other = one.operands["y" if role == "x" else "x"]
        operands["residual"] = replace(out, buffer=other.buffer, offset=other.offset, dtype=other.dtype)
        return replace(before, operands=operands)
    raise UnknownStageError(f"{function} after {before.parameters.get('epilogue', before.name)} is no epilogue")
