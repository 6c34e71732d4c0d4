"""The operands for which a policy was verified: written into it when it is made, compared when it is checked against
another trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.policy.format import Policy, PolicyError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.trace import Recording

_SAME: Final = ("dtype", "shape", "strides", "offset")
"""Properties that an operand must share with the one of the guard; buffers may be of any size around it."""

_WIDEST_LOAD_BYTES: Final = 16
"""Alignment beyond that of the widest load of a thread makes no difference to a kernel."""


def guard_of(graph: TileGraph, launches: Sequence[int]) -> dict[str, Any]:
    """Return the device, and the memory that each stage's operands lie in (``operands[stage][slot]``)."""
    trace = graph.recording
    return {
        "device": trace.device.name,
        "architecture": trace.device.architecture,
        "granule": int(trace.manifest.get("granule", 1)),
        "operands": _operands(trace, launches),
    }


def _alignment(address: int) -> int:
    """Return the largest power of two up to `_WIDEST_LOAD_BYTES` that divides an address."""
    return min(address & -address, _WIDEST_LOAD_BYTES) or _WIDEST_LOAD_BYTES


def _operands(trace: Recording, launches: Sequence[int]) -> list[list[dict[str, Any]]]:
    launch = trace.operands["launch"].to_numpy()
    buffer, offset = trace.operands["buffer"].to_numpy(), trace.operands["offset"].to_numpy()
    columns = {name: trace.buffers[name].tolist() for name in ("dtype", "shape", "strides", "bytes", "base")}
    operands = []
    for number in launches:
        rows = slice(np.searchsorted(launch, number), np.searchsorted(launch, number, "right"))
        operands.append(
            [
                {
                    "dtype": columns["dtype"][b],
                    "shape": [int(n) for n in columns["shape"][b]],
                    "strides": [int(n) for n in columns["strides"][b]],
                    "bytes": columns["bytes"][b],
                    "offset": o,
                    "alignment": _alignment(columns["base"][b] + o),
                }
                for b, o in zip(buffer[rows].tolist(), offset[rows].tolist(), strict=True)
            ]
        )
    return operands


def check_operands(policy: Policy, trace: Recording, launches: Sequence[int]) -> None:
    """Raise `PolicyError` where the launches' operands are not those of the policy's guard; without a guard, none are
    known.
    """
    if "operands" not in policy.guard:
        return
    recorded = policy.guard["operands"]
    if len(recorded) != len(policy.stages):
        raise PolicyError(f"the guard has operands of {len(recorded)} stages; the policy has {len(policy.stages)}")
    for number, (expected, current) in enumerate(zip(recorded, _operands(trace, launches), strict=True)):
        place = f"stage {number} ({policy.stages[number].name})"
        if len(expected) != len(current):
            raise PolicyError(
                f"{place} has {len(expected)} operands in the guard, launch {launches[number]} has {len(current)}: "
                "the policy is for another shape"
            )
        for slot, (one, other) in enumerate(zip(expected, current, strict=True)):
            _check_operand(f"{place}, operand {slot}", one, other, launches[number])


def _check_operand(place: str, expected: dict[str, Any], current: dict[str, Any], launch: int) -> None:
    for name in _SAME:
        if expected[name] != current[name]:
            raise PolicyError(
                f"{place}: {name} is {expected[name]!r:.80} in the guard, {current[name]!r:.80} in launch {launch}: "
                "the policy is for another shape"
            )
    if current["alignment"] < expected.get("alignment", 1):
        raise PolicyError(
            f"{place}: the guard requires addresses aligned to {expected['alignment']} bytes, launch {launch} has "
            f"{current['alignment']}: kernels for the one need not be those for the other"
        )


def remarks(policy: Policy, trace: Recording, launches: Sequence[int]) -> tuple[str, ...]:
    """Return sentences on what of the guard is missing or differs; none of it makes the verdict on this trace wrong."""
    guard, differences = policy.guard, []
    if not {"operands", "symbolic_size"} & guard.keys():
        differences.append("the policy does not say for which operands it is: only its grids are compared")
    for name, here in (("device", trace.device.name), ("architecture", trace.device.architecture)):
        if guard.get(name, here) != here:
            differences.append(f"the policy was verified for {name} {guard[name]}; this trace is of {here}")
    granule = int(trace.manifest.get("granule", 1))
    if guard.get("granule", granule) != granule:
        differences.append(
            f"the policy was made from accesses at a granule of {guard['granule']} bytes; this trace's are at {granule}"
        )
    if "operands" in guard:
        differences += _allocations(guard["operands"], _operands(trace, launches))
    return tuple(differences)


def _allocations(recorded: list[list[dict[str, Any]]], current: list[list[dict[str, Any]]]) -> list[str]:
    pairs = [(a, b) for one, other in zip(recorded, current, strict=False) for a, b in zip(one, other, strict=False)]
    sizes = [(a["bytes"], b["bytes"]) for a, b in pairs if a.get("bytes", b["bytes"]) != b["bytes"]]
    if not sizes:
        return []
    before, now = sizes[0]
    text = f"{len(sizes)} operands lie in allocations of another size than in the guard"
    return [f"{text}, the first in {now:,} bytes for {before:,}; the operands themselves are the same"]
