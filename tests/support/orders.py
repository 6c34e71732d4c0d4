"""The thread orders in which a kernel runs on the CPU: a few in the gate, `TILEPROF_KERNEL_RUNS` in a search."""

from __future__ import annotations

import os


def orders(gate: int) -> int:
    """Return the number of orders: ``gate`` in the gate. Tests that use it are marked `orders`."""
    return int(os.environ.get("TILEPROF_KERNEL_RUNS", str(gate)))


def seeds(gate: int, case: int) -> list[int]:
    """Return the seeds of `orders`: 0, which delays nothing, and for each case of a test others. What is late follows
    from a seed, so that all kinds of delay appear in the gate, but not in each case.
    """
    others = orders(gate) - 1
    return [0, *range(1 + case * others, 1 + (case + 1) * others)]
