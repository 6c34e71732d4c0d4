"""Compile the kernels for sm_90, without a GPU, and print one JSON object: PTX by name. Runs as a program: Triton must not interpret."""

from __future__ import annotations

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tileprof.runtime.kernels.launch import Hooks, kernel_of
from tileprof.runtime.stages import View
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.pointwise import Pointwise

SHARED = ("seed", "order", "waits", "posts", "flags", "runs", "record")


def ptx(operator, hooks, **options) -> str:
    kernel = kernel_of(operator, **options)
    names = kernel.function.arg_names
    types = dict.fromkeys(kernel.roles, "*fp16") | dict.fromkeys(SHARED, "*i32")
    constants = dict(kernel.constants) | {name: getattr(hooks, name) for name in Hooks.__slots__}
    source = ASTSource(
        kernel.function, types | dict.fromkeys(constants, "constexpr"),
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in types},
    )  # fmt: skip
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": kernel.warps})
    assert compiled.asm["cubin"]
    return compiled.asm["ptx"]


def main() -> None:
    copy = Pointwise(
        View.contiguous("x", (64, 1024), "float16"), View.contiguous("y", (64, 1024), "float16"), tile=(4, 1024)
    )
    gemm = Gemm(
        View.contiguous("a", (256, 512), "float16"), View("b", (512, 256), (1, 512), "float16"), View.contiguous("c", (256, 256), "float16"),
        tile=(64, 64), epilogue="gelu",
    )  # fmt: skip
    hooked = {"WIDTH": 4, "POSTS": 1, "TRIGGER": True, "PDL": True}
    json.dump(
        {
            "copy": ptx(copy, Hooks(1, 16, **hooked)),
            "copy, many waits": ptx(copy, Hooks(1, 16, **(hooked | {"WIDTH": 256}))),
            "copy, no hooks": ptx(copy, Hooks(1, 16)),
            "gemm": ptx(gemm, Hooks(1, 16, **hooked)),
            "gemm, ahead": ptx(gemm, Hooks(1, 16, **hooked), ahead=True),
            "gemm, no hooks": ptx(gemm, Hooks(1, 16)),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
