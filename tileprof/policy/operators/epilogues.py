"""Launches that are taken as part of the stage before them: activations and sums as epilogues of products and
convolutions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tileprof.policy.operators.kinds import Draft, draft
from tileprof.policy.operators.recorded_call import RecordedCall, Slot, UnknownStageError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

_WITH_EPILOGUE: Final = ("gemm", "conv2d", "reduce")
NORM_ROLES: Final = ("mean", "var", "scale", "shift")
_ACTIVATIONS: Final = ("relu", "gelu", "gelu_tanh", "silu")


def absorb(graph: TileGraph, launch: int, drafts: list[Draft | None], reasons: list[str], latest: int) -> None:
    """Make ``launch`` part of the stage whose result it takes, in place; where no epilogue says that, of ``latest`` or
    that stage remains the reason.
    """
    stage = latest
    try:
        one = draft(RecordedCall.of(graph, launch))
        stage, role = _taken_operand(one, drafts)
        drafts[stage] = _with_epilogue(drafts[stage], one, role)
    except UnknownStageError as error:
        drafts[stage], reasons[stage] = None, f"launch {launch} is taken as part of it: {error}"


def _taken_operand(one: Draft, drafts: list[Draft | None]) -> tuple[int, str]:
    """Return the last stage whose whole result a launch reads, and as what."""
    if one.name not in {"pointwise", "batch_norm"}:
        raise UnknownStageError(f"{one.name} is not an epilogue")
    for stage in reversed(range(len(drafts))):
        before = drafts[stage]
        for role in ("x", "y"):
            operand = one.operands.get(role)
            if before is not None and operand is not None and _same(before.operands["out"], operand):
                return stage, role
    raise UnknownStageError(f"{one.parameters.get('function', one.name)} takes the result of no stage")


def _normalised(before: Draft, one: Draft) -> Draft:
    if before.name != "conv2d" or {"residual", "mean"} & before.operands.keys() or "epilogue" in before.parameters:
        raise UnknownStageError(f"{before.name} takes no batch norm as its epilogue here")
    new, vectors = one.operands["out"], {role: one.operands[role] for role in NORM_ROLES}
    out = replace(before.operands["out"], buffer=new.buffer, offset=new.offset, dtype=new.dtype)
    return replace(
        before, operands={**before.operands, **vectors, "out": out}, parameters={**before.parameters, **one.parameters}
    )


def _same(one: Slot, other: Slot) -> bool:
    return (one.buffer, one.offset, one.last) == (other.buffer, other.offset, other.last)


def _with_epilogue(before: Draft | None, one: Draft, role: str) -> Draft:
    assert before is not None, "found by its result"
    if one.name == "batch_norm":
        return _normalised(before, one)
    function = one.parameters["function"]
    if before.name not in _WITH_EPILOGUE or before.parameters.get("split_k", 1) > 1 or "residual" in before.operands:
        raise UnknownStageError(f"{before.name} takes no {function} as its epilogue")
    old, new = before.operands["out"], one.operands["out"]
    out = replace(old, buffer=new.buffer, offset=new.offset, dtype=new.dtype)
    operands = {**before.operands, "out": out}
    if function in _ACTIVATIONS and "epilogue" not in before.parameters:
        return replace(before, operands=operands, parameters={**before.parameters, "epilogue": function})
    if function == "add" or (function == "mul" and before.name != "reduce"):
        other = one.operands["y" if role == "x" else "x"]
        operands["residual"] = replace(out, buffer=other.buffer, offset=other.offset, dtype=other.dtype)
        combine = {"combine": "multiply"} if function == "mul" else {}
        return replace(before, operands=operands, parameters={**before.parameters, **combine})
    raise UnknownStageError(f"{function} after {before.parameters.get('epilogue', before.name)} is not an epilogue")
