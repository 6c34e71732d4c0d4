"""Limits of address space (``ulimit -v``) below which libraries end, hang or call sound files damaged."""

from __future__ import annotations

import resource
from typing import Final

LEAST_BYTES: Final = 3 << 30
"""Below 2.1 GB `report` of a small trace on two cores went wrong in many ways: PyArrow, numba, threads."""


def too_small() -> str:
    """Return what to say where this process may have less than `LEAST_BYTES` of addresses; "" elsewhere."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= LEAST_BYTES:
        return ""
    return (
        f"processes here may have {limit / (1 << 30):.1f} GiB of addresses (ulimit -v), and tileprof needs "
        f"{LEAST_BYTES >> 30}: raise that limit"
    )
