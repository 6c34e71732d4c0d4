"""Reads the name of a library's kernel: its role in a convolution, and its tile.

Names are those that CUPTI gives (mangled or not) of cuDNN 9, cuBLAS 13 and ATen. A name that is not known here has the
role `Role.OTHER`, of which only the grid is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Final


class Role(IntEnum):
    """The role of a launch in a convolution."""

    OTHER = 0
    """Computes, in a way that is not known."""
    FILL = 1
    """A memset, or a kernel that zeroes."""
    TRANSPOSE = 2
    """The transposition between channels first and last, in squares of 32 channels by 32 pixels."""
    COPY = 3
    """Another change of layout or type, of which only the grid is known."""
    PRODUCT = 4
    """An implicit or plain matrix product in tiles."""
    REDUCE = 5
    """Adds slices of a product."""
    DIRECT = 6
    """Depthwise: a block computes a run of results in memory order."""
    PREPARE = 7
    """One block writes counters or tables of offsets."""
    WEIGHTS = 8
    """Depthwise: a block computes one element of the weight's gradient."""


MAINS: Final = (Role.PRODUCT, Role.DIRECT, Role.WEIGHTS, Role.OTHER)
"""What computes, unlike copies and fills."""
TRANSPOSE_SIZE: Final = 32
"""Channels and pixels of a block of cuDNN's layout copies (recorded: the grid is their number per image)."""
DIRECT_RUN: Final = 1024
"""Results of a block of ATen's depthwise kernels, and of most of cuDNN's (recorded: the grid is their number)."""

_ROLES: Final = (
    (r"^memset|scalePackedTensor|scaleTensor", Role.FILL),
    (r"nchwToNhwcKernel|nhwcToNchwKernel", Role.TRANSPOSE),
    (r"init_device_workspace|kern_precompute_indices|computeOffsets", Role.PREPARE),
    (r"splitKreduce|ReduceSplitK|reduce_wgrad_nchw", Role.REDUCE),
    (
        r"nhwcAddPadding|nhwcSliceC|genericTranspose|tensorTransformGeneric|convertTensor|[fF]olded|memcpy|flip_filter",
        Role.COPY,
    ),
    (r"elementwise_kernel|copy_device_to_device", Role.COPY),
    (r"conv_depthwise2d_(forward|backward)|^conv2d_c1_k1_nhwc$", Role.DIRECT),
    (r"conv_depthwise2d_grad_weight", Role.WEIGHTS),
    (r"depthwise_convolution|image_first_layer|strided_dgrad|winograd|fft|cf32cf32|regular_fft", Role.OTHER),
    (
        r"xmma_\w*gemm|nvjet|cutlass|implicit_convolve_sgemm|convolve_common_engine|precomputed_convolve_sgemm",
        Role.PRODUCT,
    ),
)
_TILES: Final = (
    r"tilesize(\d+)x(\d+)x(\d+)",
    r"nvjet_sm\d+_\w+?_(\d+)x(\d+)_(\d+)x",
    r"_(\d+)x(\d+)_(\d+)x\d+_",
    r"GemmShapeILi(\d+)ELi(\d+)ELi(\d+)E",
    r"GemmShape<(\d+), (\d+), (\d+)>",
    r"cutlass_75_tensorop_\w+?gemm\w*?_(\d+)x(\d+)()_[nt]{2}_",
)
_DEPTH: Final = 32
"""The depth of a tile where the name has none."""
_ENGINE: Final = re.compile(r"(?:sgemm|engine_float_NHWC)I\w*?Li(?:\d+)ELi(\d)ELi(\d)E")
_CLUSTER: Final = re.compile(r"nvjet_sm\d+_\w+?_\d+x\d+_\d+x\d+_(\d)x(\d)_")


@dataclass(frozen=True, slots=True)
class NamedKernel:
    """``tile`` is as the name has it: a first, a second size and the depth; (0, 0, 0) where it says none.

    ``cluster`` is how many blocks share a tile along the two sizes (nvjet).
    """

    role: Role
    tile: tuple[int, int, int] = (0, 0, 0)
    cluster: tuple[int, int] = (1, 1)


@cache
def parse_name(name: str) -> NamedKernel:
    """Return what a name says."""
    role = next((role for pattern, role in _ROLES if re.search(pattern, name)), Role.OTHER)
    if role != Role.PRODUCT:
        return NamedKernel(role)
    engine = _ENGINE.search(name)
    if engine:
        return NamedKernel(role, (1 << int(engine[1]), 1 << int(engine[2]), 8))
    for pattern in _TILES:
        match = re.search(pattern, name)
        if match:
            first, second, depth = (int(size or _DEPTH) for size in match.groups())
            cluster = _CLUSTER.search(name)
            along = (int(cluster[1]), int(cluster[2])) if cluster else (1, 1)
            return NamedKernel(role, (first, second, depth), along)
    return NamedKernel(Role.OTHER)


def adds_bias_itself(name: str) -> bool:
    """Return whether a kernel takes the bias: ATen's depthwise ones."""
    return "conv_depthwise" in name
