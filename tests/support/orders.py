"""In how many orders of its threads a kernel runs on the CPU: a few in the gate, `TILEPROF_KERNEL_RUNS` in a search."""

from __future__ import annotations

import os


def orders(gate: int) -> int:
    """Number of orders, of which the gate has ``gate``. A test that asks for it is marked `orders`."""
    return int(os.environ.get("TILEPROF_KERNEL_RUNS", str(gate)))
