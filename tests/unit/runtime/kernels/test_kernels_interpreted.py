"""The Triton kernels, without their hooks, compute what the operators' own tiles compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.runtime.chains import CHAINS, matrix, weight

pytest.importorskip("triton")

from tileprof.errors import UserError
from tileprof.runtime.kernels.triton_launch import Hooks, kernel_of
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.pointwise import Pointwise
from tileprof.runtime.stages.reduce import Reduce
from tileprof.runtime.stages.rows import Softmax
from tileprof.runtime.stages.view import View

OPERATOR = Pointwise(matrix("x", 10, 40), matrix("y", 10, 40), tile=(4, 16))
OPERATORS = {
    "copy": OPERATOR,
    "copy, rows along x": Pointwise(matrix("x", 10, 40), matrix("y", 10, 40), tile=(4, 16), rows_along="x"),
    "gate": CHAINS["gated"].operators[0],
    "batches": replace(CHAINS["attention"].operators[0], tile=(16, 16)),
    "more batches": replace(CHAINS["attention"].operators[2], tile=(16, 16)),
    "split": CHAINS["split"].operators[0],
    "total": replace(CHAINS["split"].operators[1], tile=(8, 32)),
    "total with gate": Reduce(
        matrix("x", 3, 10, 48, dtype="float32"),
        matrix("y", 10, 24),
        matrix("b", 48),
        tile=(4, 16),
        epilogue="silu_gate",
    ),
    "two halves": CHAINS["gated"].operators[2],
    "layer norm": CHAINS["rows"].operators[0],
    "rms norm": CHAINS["rows"].operators[1],
    "softmax": CHAINS["rows"].operators[2],
    "softmax with dropout": CHAINS["attention with dropout"].operators[1],
    "sum": replace(CHAINS["rows"].operators[4], tile=(4, 16)),
    "activation": replace(OPERATOR, function="silu"),
    "flash": replace(CHAINS["flash"].operators[1], rows=16),
    "flash, not causal": replace(CHAINS["flash, not causal"].operators[1], rows=16, scale=0.3),
    "convolution": replace(CHAINS["convolutions"].operators[0], tile=(32, 16)),
    "convolution with residual": CHAINS["convolutions"].operators[1],
    "convolution that is multiplied": replace(CHAINS["convolutions"].operators[1], combine="multiply"),
    "product that is multiplied": replace(CHAINS["gated apart"].operators[1], tile=(16, 16)),
    "convolution of stride 2": replace(CHAINS["convolutions of stride 2"].operators[0], tile=(16, 16), rows_along="x"),
    "convolution of 1 x 1": replace(CHAINS["convolutions"].operators[2], tile=(32, 16)),
} | {
    f"gemm, {epilogue}": Gemm(
        matrix("a", 40, 200),
        weight("b", 200, 48),
        matrix("c", 40, 48),
        bias=matrix("d", 48),
        residual=matrix("e", 40, 48),
        tile=(16, 32),
        epilogue=epilogue,
        rows_along=along,
    )
    for epilogue, along in (("none", "x"), ("relu", "y"), ("gelu", "x"), ("gelu_tanh", "y"), ("silu", "y"))
}


def tensors_of(operator):
    torch.manual_seed(0)
    return {
        role: (torch.randn(view.elements) / 8)
        .to(getattr(torch, view.dtype))
        .as_strided(view.shape, view.strides, view.offset)
        for role, view in operator.views().items()
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(OPERATORS))
def test_a_kernel_computes_what_the_operator_says(name) -> None:
    operator = OPERATORS[name]
    tensors = tensors_of(operator)
    expected = dict(tensors, out=torch.empty_like(tensors["out"]))
    for tile in range(operator.tiles):
        operator.run_tile(*operator.place(tile), expected)
    tensors["out"].fill_(float("nan"))
    placeholder = torch.zeros(1, dtype=torch.int32)
    kernel_of(operator).launch(tensors, (placeholder,) * 7, Hooks(0, operator.tiles))
    assert torch.allclose(tensors["out"].float(), expected["out"].float(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (
            CHAINS["mlp in float32"].operators[0],
            "gemm kernel takes float16 or bfloat16 throughout, not x float32, w1 float32",
        ),
        (
            replace(OPERATOR, x=View("x", (10, 40), (80, 2), "float16")),
            r"pointwise kernel takes rows of unit stride; x has strides \(80, 2\)",
        ),
        (Softmax(matrix("x", 1, 70000), matrix("y", 1, 70000)), "at most 65536 columns, not 70000"),
        (Pointwise(matrix("x", 10, 40), matrix("y", 10, 40), tile=(3, 16)), "powers of two"),
        (CHAINS["mlp"].operators[1], "powers of two from 16"),
        (CHAINS["flash"].operators[1], "power of two of rows from 16 .* not 5 and 8"),
    ],
)
def test_what_has_no_kernel_is_refused_in_words(operator, message) -> None:
    with pytest.raises(UserError, match=message):
        kernel_of(operator)


def test_what_offsets_of_32_bits_do_not_reach_is_refused() -> None:
    """65,536 tokens of 96 heads of 128, with queries, keys and values in one tensor, and an image of 3 GB."""
    flash = CHAINS["flash"].operators[1]
    q, k, v = (View("qkv", (96, 2**16, 128), (128, 36864, 1), "float16", 12288 * n) for n in range(3))
    out = View("o", (96, 2**16, 128), (128, 12288, 1), "float16")
    with pytest.raises(
        UserError, match=r"attention kernel takes up to 2,143,289,344 elements .* those of qkv span 2,415"
    ):
        kernel_of(replace(flash, q=q, k=k, v=v, out=out, rows=64))
    x, y = matrix("x", 1, 5000, 5000, 64 * 2), matrix("y", 1, 5000, 5000, 16)
    with pytest.raises(UserError, match=r"conv2d kernel takes up to .* those of x span 3,200,000,000"):
        kernel_of(
            replace(
                CHAINS["convolutions"].operators[0],
                x=x,
                weight=matrix("w", 16, 1, 1, 128),
                out=y,
                bias=None,
                residual=None,
                padding=0,
                stride=1,
                tile=(32, 16),
            )
        )
