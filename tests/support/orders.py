"""The number of thread orders in which a kernel runs on the CPU: a few in the gate, `TILEPROF_KERNEL_RUNS` in a
search.
"""

from __future__ import annotations

import os


def orders(gate: int) -> int:
    """Return the number of orders: ``gate`` in the gate. Tests that use it are marked `orders`."""
    return int(os.environ.get("TILEPROF_KERNEL_RUNS", str(gate)))
