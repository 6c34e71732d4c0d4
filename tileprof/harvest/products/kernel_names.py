"""Facts in the names of cuBLAS's kernels: tile, pipeline, cluster, split-k.

cuBLAS computes column-major: of a row-major result ``d[m, n]`` it makes the transpose, so its first size runs along n.
Sizes here are as a trace has them: m down, n across. ::

    nvjet_sm90_tst_64x24_64x16_2x4_h_bz_bias_TNT      24 x 64 a block, k in 16 stages of 64, clusters of 4 x 2
    ..._coopA, _splitK, _bias                         blocks that share an operand, slices of k, an epilogue
    sm80_xmma_gemm_..._tilesize128x64x8_stage3_...    64 x 128, stages of 8
    cutlass_80_tensorop_s1688gemm_128x64_32x6_nn      64 x 128, 6 stages of 32
    ampere_sgemm_128x64_nn                            64 x 128
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NVJET: Final = re.compile(
    r"nvjet(?:_sm\d+)?_(?P<types>\w+?)_(?P<n>\d+)x(?P<m>\d+)_(?P<k>\d+)x(?P<stages>\d+)_(?P<cn>\d+)x(?P<cm>\d+)_(?P<raster>[hv])"
)
_XMMA: Final = re.compile(r"tilesize(?P<n>\d+)x(?P<m>\d+)x(?P<k>\d+)(?:_stage(?P<stages>\d+))?")
_XMMA_CLUSTER: Final = re.compile(r"cgasize(?P<cn>\d+)x(?P<cm>\d+)x\d+")
_CUTLASS: Final = re.compile(
    r"(?:cutlass|ampere|volta|sm\d+)_\w*?gemm_\w*?(?P<n>\d+)x(?P<m>\d+)_(?:(?P<k>\d+)x(?P<stages>\d+))?"
)
_SIMPLE: Final = re.compile(r"(?:ampere|volta|maxwell|turing)_\w*?gemm_\w*?(?P<n>\d+)x(?P<m>\d+)_")
_GEMM_SN: Final = re.compile(
    r"gemmSN_(?P<layouts>\w\w)_kernel(?:_\w+)?<\w+, (?P<threads>\d+), (?P<a>\d+), (?P<b>\d+), (?P<c>\d+), (?P<d>\d+)"
)


@dataclass(frozen=True, slots=True)
class KernelName:
    """The facts in a name; 0 where it has none. ``cluster`` is blocks along m and n."""

    family: str
    m: int = 0
    n: int = 0
    k: int = 0
    stages: int = 0
    cluster: tuple[int, int] = (1, 1)
    raster: str = ""
    split: bool = False
    options: tuple[str, ...] = ()


def parse(name: str) -> KernelName:
    """Return what a demangled kernel name of cuBLAS says."""
    if match := _NVJET.search(name):
        rest = name[match.end() :].split("_")
        options = tuple(word for word in rest if word and not re.fullmatch(r"[NT]{3}", word))
        return KernelName(
            "nvjet", int(match["m"]), int(match["n"]), int(match["k"]), int(match["stages"]),
            (int(match["cm"]), int(match["cn"])), match["raster"], "splitK" in options, options,
        )  # fmt: skip
    for word in ("splitKreduce", "gemv", "gemmSN", "gemmk1", "dot_kernel", "globalKernel", "memset", "memcpy"):
        if word in name:
            return KernelName(word)
    if match := _XMMA.search(name):
        cluster = _XMMA_CLUSTER.search(name)
        return KernelName(
            "xmma", int(match["m"]), int(match["n"]), int(match["k"]), int(match["stages"] or 0),
            (int(cluster["cm"]), int(cluster["cn"])) if cluster else (1, 1), split="split_k" in name,
        )  # fmt: skip
    if match := _CUTLASS.search(name):
        return KernelName("cutlass", int(match["m"]), int(match["n"]), int(match["k"] or 0), int(match["stages"] or 0))
    if match := _SIMPLE.search(name):
        return KernelName("simple", int(match["m"]), int(match["n"]))
    return KernelName("other")
