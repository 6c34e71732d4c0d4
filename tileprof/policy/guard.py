"""For what a policy was verified: written into it when it is made, compared when it is checked against another trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.policy.format import Policy, PolicyError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

_SAME: Final = ("dtype", "shape", "strides", "offset")
"""What an operand must have in common with the one of the guard; buffers may be of any size around it."""


def guard_of(graph: TileGraph, launches: Sequence[int]) -> dict[str, Any]:
    """The device, and the memory that each stage's operands lie in (``operands[stage][slot]``)."""
    trace = graph.trace
    return {
        "device": trace.device.name,
        "architecture": trace.device.architecture,
        "granule": int(trace.manifest.get("granule", 1)),
        "operands": _operands(graph, launches),
    }


def _operands(graph: TileGraph, launches: Sequence[int]) -> list[list[dict[str, Any]]]:
    trace = graph.trace
    launch = trace.operands["launch"].to_numpy()
    buffer, offset = trace.operands["buffer"].to_numpy(), trace.operands["offset"].to_numpy()
    known = {name: trace.buffers[name].tolist() for name in ("dtype", "shape", "strides", "bytes")}
    operands = []
    for number in launches:
        rows = slice(np.searchsorted(launch, number), np.searchsorted(launch, number, "right"))
        operands.append(
            [
                {
                    "dtype": known["dtype"][b],
                    "shape": [int(n) for n in known["shape"][b]],
                    "strides": [int(n) for n in known["strides"][b]],
                    "bytes": known["bytes"][b],
                    "offset": o,
                }
                for b, o in zip(buffer[rows].tolist(), offset[rows].tolist(), strict=True)
            ]
        )
    return operands


def check_operands(policy: Policy, graph: TileGraph, launches: Sequence[int]) -> None:
    """Raise `PolicyError` where the launches' operands are not those of the policy's guard; without a guard none are known."""
    if "operands" not in policy.guard:
        return
    given = policy.guard["operands"]
    if len(given) != len(policy.stages):
        raise PolicyError(f"the guard has operands of {len(given)} stages; the policy has {len(policy.stages)}")
    for number, (expected, found) in enumerate(zip(given, _operands(graph, launches), strict=True)):
        place = f"stage {number} ({policy.stages[number].name})"
        if len(expected) != len(found):
            raise PolicyError(
                f"{place} has {len(expected)} operands in the guard, launch {launches[number]} has {len(found)}: "
                "the policy is for another shape"
            )
        for slot, (one, other) in enumerate(zip(expected, found, strict=True)):
            for name in _SAME:
                if one[name] != other[name]:
                    raise PolicyError(
                        f"{place}, operand {slot}: {name} is {one[name]!r:.80} in the guard, {other[name]!r:.80} in launch "
                        f"{launches[number]}: the policy is for another shape"
                    )


def remarks(policy: Policy, graph: TileGraph) -> tuple[str, ...]:
    """Sentences on what of the guard is missing or of another device; neither makes the verdict on this trace wrong."""
    said = []
    if "operands" not in policy.guard:
        said.append("the policy does not say for which operands it is: only its grids are compared")
    for name, here in (("device", graph.trace.device.name), ("architecture", graph.trace.device.architecture)):
        made = policy.guard.get(name, here)
        if made != here:
            said.append(f"the policy was verified for {name} {made}; this trace is of {here}")
    return tuple(said)
