"""The three optimisations of cuSync (section IV-B), decided from occupancy, grid sizes and what the kernels read;
nothing is tried.

====================  ==========================================  =====================================================
optimisation          on where                                    why
====================  ==========================================  =====================================================
no wait kernel        waiting blocks cannot fill the device       then the blocks that are awaited always find room
                      (`tileprof.policy.verification.residency`)
no custom order       N stages that depend on each other take     then every block is dispatched before the last wave,
in
                      N - 1 waves or less together                whatever order the hardware takes them
reordered loads       every waiting kernel also reads what no     only then a tile waits while it holds a slot, and has
                      stage writes (weights), and some            something to load meanwhile
                      producer leaves slots of its last wave
                      empty
====================  ==========================================  =====================================================

Reordered loads are never combined with one semaphore per row on sm_80: there cuSync's kernels make the first wait with
another ``z`` than its ``RowSync`` asks for, and never wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.policy.format import Options, Policy, Stage
from tileprof.policy.verification.residency import blocked_producers
from tileprof.trace.footprint import READ, WRITE

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

NO_REORDERED_ROWS: Final = "sm_80"


def choose_options(policy: Policy, graph: TileGraph, launches: Sequence[int]) -> Options:
    """Return the optimisations of a policy whose stages are ``launches``, each with its reason."""
    sms = graph.device.sms
    blockers = blocked_producers(policy, graph, launches)
    ordered, why_order = _custom_order(policy, sms)
    reordered, why_loads = _reordered_loads(policy, graph, launches)
    why_kernel = blockers[0] if blockers else "waiting blocks leave room on some SM for every block that they wait for"
    reasons = {"wait_kernel": why_kernel, "custom_order": why_order, "reordered_loads": why_loads}
    return Options(bool(blockers), ordered, reordered, reasons)


def rows_on_sm_80(policy: Policy, architecture: str) -> bool:
    """Return whether reordered loads would meet one semaphore per row there."""
    return architecture == NO_REORDERED_ROWS and any(edge.kind == "row" for edge in policy.edges)


def _custom_order(policy: Policy, sms: int) -> tuple[bool, str]:
    if any(stage.order is not None for stage in policy.stages):
        return True, "a stage takes its tiles in an order of its own"
    tied = sorted({n for edge in policy.edges for n in (edge.producer, edge.consumer)})
    waves = sum(_waves(policy.stages[n], sms) for n in tied)
    count = f"{len(tied)} stages that depend on each other take {waves:.2f} waves"
    if waves <= len(tied) - 1:
        return False, f"{count}, no more than {len(tied) - 1}: any order of blocks will do"
    return (
        True,
        f"{count}, more than {len(tied) - 1}: blocks take their tiles in ascending order, whatever the hardware does",
    )


def _waves(stage: Stage, sms: int) -> float:
    return stage.tiles / (sms * (stage.blocks_per_sm or 1))


def _reordered_loads(policy: Policy, graph: TileGraph, launches: Sequence[int]) -> tuple[bool, str]:
    sms = graph.device.sms
    if rows_on_sm_80(policy, graph.device.architecture):
        return False, "on sm_80 cuSync's kernels never wait for a row once loads are reordered"
    consumers = sorted({edge.consumer for edge in policy.edges})
    if not consumers:
        return False, "no stage waits"
    producers = sorted({edge.producer for edge in policy.edges})
    if all(policy.stages[p].tiles % (sms * (policy.stages[p].blocks_per_sm or 1)) == 0 for p in producers):
        return (
            False,
            "every producer fills its last wave: no consumer's block is on the device early enough to load ahead",
        )
    written_buffers = {b for launch in range(launches[0], launches[-1]) for b in _buffers(graph, launch, WRITE)}
    without = [policy.stages[c].name for c in consumers if not _buffers(graph, launches[c], READ) - written_buffers]
    if without:
        return False, f"{without[0]} reads nothing but what launches before it write"
    return (
        True,
        "every waiting kernel also reads what no launch writes, and some producer leaves slots of its last wave empty",
    )


def _buffers(graph: TileGraph, launch: int, mode: int) -> set[int]:
    """Return buffers that a launch reads or writes."""
    boxes = graph.footprint(int(graph.launches["footprint"].iloc[launch])).boxes
    slots = np.unique(boxes.operand[boxes.mode == mode])
    return set(graph.recording.operands_of(launch)[0][slots].tolist()) if len(slots) else set()
