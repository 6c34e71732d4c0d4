"""How long a library's kernel takes in a program, beside its time in the harvest.

In the harvest the second operand of a product and the weight of a convolution are cold in L2, and the kernel's
instructions are in the SMs' caches. In a program whose weights fit into L2, they are still there from the run before,
and other kernels have run in between. Decision trees tell the ratio of both times: from 0.6 for kernels that wait for a
weight step by step to 1.2 for short ones. They were grown from calls that were launched both ways
(`tileprof.harvest.resident`), and from launches of recorded programs (`tests/gpu/harvest/program_times.py`), which tell
how much of the weights may stay.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model import tables
from tileprof.record.model.tables import trees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.devices import Device
    from tileprof.record.model.tables import Table

FAMILY: Final = "among-others"
COLD: Final = 1.07
"""The ratio where weights are larger than `LARGEST`, and on GPUs without trees: the median of 2,404 launches of the
programs in `tests/golden/clients.py`."""
LARGEST: Final = 2.5
"""Sizes of L2: no recorded program has more weights."""
_MOST: Final = 2.0
"""Ratios are kept between this and its inverse."""
_STEPS: Final = 16.0
_KINDS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"^gemm", r"fp32|f32f32|sgemm", r"tf32", r"nvjet|cluster", r"split", r"memset|fill|_zero", r"reduce|epilogue",
        r"[nN]hwc|[nN]chw", r"cutlass", r"_nn(_|$)", r"c1_k1|depthwise|grouped_direct", r"dgrad", r"wgrad",
    )
)  # fmt: skip
"""What the name of a kernel says: products, types, libraries, layouts, passes."""


def seen(name: str, of: tuple[int, ...], launch_ns: float, weights: float) -> NDArray[np.float32]:
    """Return what the trees see of a kernel with these `operator_times.FEATURES` and this time in the harvest, in a
    program with so many L2 sizes of weights.
    """
    size = np.array(of) / _STEPS
    tiles, _, distinct, touched, _, flops, _, _ = size
    kinds = [float(pattern.search(name) is not None) for pattern in _KINDS]
    derived = (flops - tiles, touched - tiles, touched - distinct)
    return np.array([weights, np.log2(max(launch_ns, 1.0)), *size, *derived, *kinds], np.float32)


def ratio(device: Device, name: str, of: tuple[int, ...], launch_ns: float, weight_bytes: int) -> float:
    """Return the time of a library's kernel in a program with so many bytes of weights over that in the harvest."""
    weights = weight_bytes / device.l2_bytes
    grown = tables.table(FAMILY, device) if weights <= LARGEST else None
    return COLD if grown is None else ratio_of(grown, seen(name, of, launch_ns, weights))


def ratio_of(grown: Table, features: NDArray[np.float32]) -> float:
    """Return what trees tell for one row of features."""
    logarithm = float(trees.worth(features[None, :], grown, 0)[0])
    return float(np.exp(np.clip(logarithm, -np.log(_MOST), np.log(_MOST))))
