"""Compile the kernels for sm_90, without a GPU, and print one JSON object: PTX by name. Runs as a program: Triton must
not interpret.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tileprof.runtime.kernels.triton_launch import Hooks, kernel_of
from tileprof.runtime.stages import View
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.pointwise import Pointwise
from tileprof.runtime.stages.reduce import Reduce
from tileprof.runtime.stages.rows import Norm, Softmax
from tileprof.runtime.sync.device import hold
from tileprof.runtime.synchroniser import enter, leave

ROLES = {"q", "k", "v", "a", "b", "x", "y", "weight", "out", "bias", "residual"}
SHARED = ("seed", "order", "waits", "posts", "flags", "runs", "record")


def ptx(operator, hooks, *, architecture=90, **options) -> str:
    kernel = kernel_of(operator, **options)
    names = kernel.function.arg_names
    types = {role: "*fp32" if view.dtype == "float32" else "*fp16" for role, view in operator.views().items()}
    types = dict.fromkeys((n for n in names if n in ROLES), "*fp16") | types | dict.fromkeys(SHARED, "*i32")
    constants = dict(kernel.constants) | {name: getattr(hooks, name) for name in Hooks.__slots__}
    source = ASTSource(
        kernel.function, types | dict.fromkeys(constants, "constexpr"),
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in types},
    )  # fmt: skip
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": kernel.warps})
    assert compiled.asm["cubin"]
    return compiled.asm["ptx"]


@triton.jit
def scale(x, y, sync, BLOCK: tl.constexpr):  # noqa: N803 - as kernels spell it
    tile = enter(sync, tl.program_id(0))
    at = tile * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at))
    leave(sync, tile)


def of_a_user() -> str:
    """Return the PTX of a kernel that belongs to no operator."""
    source = ASTSource(
        scale, {"x": "*fp16", "y": "*fp16", "sync": "*i64", "BLOCK": "constexpr"}, constexprs={(3,): 2048},
        attrs={(n,): [["tt.divisibility", 16]] for n in range(3)},
    )  # fmt: skip
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
    return compiled.asm["ptx"]


def of_hold() -> str:
    """Return the PTX of the wait kernel, for a GPU that needs it."""
    types = dict.fromkeys(("waits", "flags", "runs", "record"), "*i32")
    source = ASTSource(
        hold, types | {"STAGE": "constexpr", "TIMEOUT_NS": "constexpr"}, constexprs={(4,): 1, (5,): 10**9},
        attrs={(n,): [["tt.divisibility", 16]] for n in range(4)},
    )  # fmt: skip
    return triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 1}).asm["ptx"]


def main() -> None:
    copy = Pointwise(
        View.contiguous("x", (64, 1024), "float16"), View.contiguous("y", (64, 1024), "float16"), tile=(4, 1024)
    )
    gemm = Gemm(
        View.contiguous("a", (256, 512), "float16"),
        View("b", (512, 256), (1, 512), "float16"),
        View.contiguous("c", (256, 256), "float16"),
        tile=(32, 32),
        epilogue="gelu",
    )
    whole = View.contiguous
    conv = Conv2d(
        whole("x", (2, 16, 16, 64), "float16"),
        whole("w", (64, 3, 3, 64), "float16"),
        whole("y", (2, 16, 16, 64), "float16"),
        padding=1,
    )
    total = Reduce(whole("x", (3, 64, 128), "float32"), whole("y", (64, 128), "float16"), tile=(16, 64))
    norm = Norm(whole("x", (64, 1024), "float16"), whole("y", (64, 1024), "float16"), rows=4)
    soft = Softmax(whole("x", (64, 1024), "float16"), whole("y", (64, 1024), "float16"), rows=4)
    heads = Attention(*(whole(name, (2, 256, 64), "float16") for name in ("a", "b", "x", "y")), causal=True)
    hook_options = {"WIDTH": 4, "POSTS": 1, "TRIGGER": True, "PDL": True}
    json.dump(
        {
            "copy": ptx(copy, Hooks(1, 16, **hook_options)),
            "of a user": of_a_user(),
            "copy, many waits": ptx(copy, Hooks(1, 16, **(hook_options | {"WIDTH": 256}))),
            "copy, no hooks": ptx(copy, Hooks(1, 16)),
            "gemm": ptx(gemm, Hooks(1, 16, **hook_options)),
            "gemm, ahead": ptx(gemm, Hooks(1, 16, **hook_options), ahead=True),
            "attention": ptx(heads, Hooks(1, 16, **hook_options)),
            "gemm, counted": ptx(gemm, Hooks(1, 16, WIDTH=4, POSTS=1, STARTED=9), architecture=80),
            "hold": of_hold(),
            "gemm, behind a grid": ptx(gemm, Hooks(1, 16, TRIGGER=True, PDL=True, GRID_WAIT=True)),
            "copy, behind a grid": ptx(copy, Hooks(1, 16, TRIGGER=True, PDL=True, GRID_WAIT=True)),
            "gemm, no hooks": ptx(gemm, Hooks(1, 16)),
            "convolution": ptx(conv, Hooks(1, 16, **hook_options)),
            "sum": ptx(total, Hooks(1, 16, **hook_options)),
            "norm": ptx(norm, Hooks(1, 16, **hook_options)),
            "norm, no hooks": ptx(norm, Hooks(1, 16)),
            "softmax": ptx(soft, Hooks(1, 16)),
            "softmax, seeded": ptx(replace(soft, seed=5), Hooks(1, 16)),
            "softmax with dropout": ptx(replace(soft, dropout=0.75, seed=2**40 + 5), Hooks(1, 16, **hook_options)),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
