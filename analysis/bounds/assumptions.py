"""The assumption of each bound, and which bounds hold for every schedule."""

from __future__ import annotations

from typing import Final

ASSUMPTIONS: Final = {
    "area": (
        "any schedule: tile durations as recorded, times the share of an SM that a tile takes up (threads, "
        "registers, shared memory or block slots, in whole blocks), over all SMs"
    ),
    "wait-inside path": (
        "any schedule that keeps each tile's accesses in recorded order: a tile may be dispatched early and wait "
        "at the access that needs its input; an unknown time of access counts as the most favourable one; memory "
        "is renamed (no hazards of recycled memory)"
    ),
    "compute": ("any schedule: recorded FLOPs at the peak of the fastest unit that takes the operands' type"),
    "DRAM": (
        "any schedule: each byte read before it is written, and each byte left behind in memory, crosses once; one"
        " L2's worth of each may stay on the chip"
    ),
    "ready-gated path": ("schedules that dispatch a tile only when all its parents have ended; memory is renamed"),
    "head and tail": (
        "schedules as for the ready-gated path: work that cannot begin early, or that much must follow, still "
        "needs its area"
    ),
    "host issue": (
        "schedules that launch every kernel separately: the least time between two kernels of the fastest way to "
        "launch them, a CUDA graph of many branches"
    ),
    "list schedule": (
        "achievable with free launches: greedy, in issue order, a tile is dispatched when its parents have ended, "
        "slots are one pool over the GPU"
    ),
}
"""The assumption of each number, by its name in `Bounds`."""

ANY: Final = ("area", "wait-inside path", "compute", "DRAM")
"""Bounds that no schedule can beat; the largest of them is *the* bound."""

OF_LIVES: Final = ("area", "wait-inside path")
"""The bounds that hold for a simulation with given lives of tiles, which may move more bytes, or compute more, than
the device can.
"""
