"""Chains that the persistent kernel runs on the CPU, their plans, and the comparison of runs in several orders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from tests.support.runtime.chains import biased, gated_apart, matrix, weight
from tests.support.runtime.kernel_on_cpu import HostKernel
from tests.unit.runtime.persistent.chain_policies import policy_of
from tileprof.policy.format import Policy, WaitTable
from tileprof.runtime.chain import Chain
from tileprof.runtime.measuring.cases import attention_block, convolution_pair, gated_mlp, gelu_mlp
from tileprof.runtime.persistent.plan import Plan
from tileprof.runtime.persistent.task_lists import plan_of
from tileprof.runtime.pipeline import Pipeline
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm


def deep(gate: bool) -> Chain:
    """A product whose k is so deep that it is cut, then a shallow one."""
    up = Gemm(
        matrix("x", 200, 2112),
        weight("w1", 2112, 192 * (1 + gate)),
        matrix("h", 200, 192),
        tile=(256, 96),
        epilogue="silu_gate" if gate else "gelu",
    )
    return Chain(
        ("up", "down"),
        (up, Gemm(matrix("h", 200, 192), weight("w2", 192, 256), matrix("y", 200, 256), tile=(256, 128))),
    )


def narrowing() -> Chain:
    """A 3x3 convolution, then a 1x1 one of stride 2 in narrower tiles."""
    x, h, y = matrix("x", 2, 14, 14, 64), matrix("h", 2, 14, 14, 64), matrix("y", 2, 7, 7, 128)
    first = Conv2d(x, matrix("w1", 64, 3, 3, 64), h, matrix("b1", 64), tile=(98, 64), padding=1, epilogue="relu")
    return Chain(("first", "second"), (first, Conv2d(h, matrix("w2", 128, 1, 1, 64), y, tile=(49, 32), stride=2)))


def residual_block() -> Chain:
    x, h, y = (matrix(n, 2, 8, 8, 64) for n in "xhy")
    first = Conv2d(x, matrix("w1", 64, 3, 3, 64), h, matrix("b1", 64), tile=(16, 64), padding=1, epilogue="relu")
    return Chain(
        ("first", "second"), (first, Conv2d(h, matrix("w2", 64, 3, 3, 64), y, residual=x, tile=(64, 32), padding=1))
    )


def normed_block() -> Chain:
    """A convolution with bias, batch norm and activation in its epilogue, then one that is multiplied."""
    x, h, y = (matrix(n, 2, 8, 8, 64) for n in "xhy")
    vectors = [matrix(name, 64) for name in ("mean", "var", "scale", "shift")]
    first = Conv2d(
        x, matrix("w1", 64, 3, 3, 64), h, matrix("b1", 64), None, *vectors, tile=(16, 64), padding=1, epilogue="relu",
        epsilon=1e-5,
    )  # fmt: skip
    last = Conv2d(h, matrix("w2", 64, 3, 3, 64), y, residual=x, tile=(64, 32), padding=1, combine="multiply")
    return Chain(("first", "second"), (first, last))


def wide_rows() -> Chain:
    """A row of pixels is so long that not all taps are loaded at once, but one row of them at a time."""
    x, h, y = matrix("x", 1, 3, 112, 64), matrix("h", 1, 3, 112, 128), matrix("y", 1, 3, 112, 128)
    first = Conv2d(x, matrix("w1", 128, 3, 3, 64), h, matrix("b1", 128), tile=(112, 128), padding=1, epilogue="relu")
    return Chain(("first", "second"), (first, Conv2d(h, matrix("w2", 128, 3, 3, 128), y, tile=(112, 128), padding=1)))


def attending(
    tokens: int, heads: int, groups: int, head: int, tile: tuple[int, int], rows: int, *, causal: bool = True
) -> Chain:
    """Attention between products, in tiles of ``rows`` rows."""
    chain = attention_block(tokens, 64, heads, groups, head, bias=True)
    first, attention, last = chain.operators
    operators = replace(first, tile=tile), replace(attention, rows=rows, causal=causal), replace(last, tile=tile)
    return Chain(chain.names, operators)


PRODUCTS = gelu_mlp(100, (64, 48), (64, 96), 328, 264)


HIGH = gelu_mlp(200, (128, 48), (128, 96), 200, 328)


PAIRS = gelu_mlp(700, (256, 96), (256, 128), 192, 128)


GATED_APART = gated_apart(100, 192, 264, ((64, 48), (64, 96), (64, 64)))
TWO_PROGRAMS = gelu_mlp(128, (64, 64), (64, 64), 192, 192).beside(gelu_mlp(64, (64, 64), (64, 64), 192, 192))
ROWS = convolution_pair(3, 14, 64, (98, 32))


Case = tuple[Chain, str, int, int, int]
"""A chain, its tiles' waits, blocks per cluster, clusters, and KB of shared memory: with little, rings are short and
wrap often.
"""


CASES: dict[str, Case] = {
    "the smallest products": (gelu_mlp(64, (64, 48), (64, 96), 128, 96), "fewest", 1, 2, 227),
    "products": (PRODUCTS, "tile", 1, 3, 227),
    "products by two": (PRODUCTS, "tile", 2, 3, 227),
    "products by four": (PRODUCTS, "row", 4, 2, 140),
    "one token": (gelu_mlp(1, (1, 48), (1, 96), 512, 256), "tile", 4, 2, 227),
    "high products": (HIGH, "tile", 1, 3, 120),
    "gated products": (gated_mlp(80, (64, 40), (64, 64), 256, 200), "tile", 1, 3, 90),
    "gated products by two": (gated_mlp(80, (64, 40), (64, 64), 256, 200), "strided", 2, 3, 227),
    "high gated products": (gated_mlp(200, (128, 88), (128, 192), 128, 352), "tile", 1, 2, 227),
    "pairs": (PAIRS, "tile", 2, 3, 227),
    "gated pairs": (gated_mlp(512, (256, 88), (256, 128), 192, 176), "tile", 2, 3, 160),
    "pairs whose k is cut": (deep(False), "tile", 2, 4, 227),
    "gated pairs whose k is cut": (deep(True), "tile", 2, 5, 227),
    "bias and residual": (biased("float16"), "tile", 1, 3, 100),
    "bias and residual by two": (biased("bfloat16"), "tile", 2, 3, 227),
    "convolutions, rows": (ROWS, "tile", 1, 3, 227),
    "convolutions, rows, short rings": (ROWS, "tile", 1, 2, 110),
    "convolutions, rows, by two": (ROWS, "fewest", 2, 3, 227),
    "convolutions, images": (convolution_pair(5, 7, 64, (98, 64)), "tile", 1, 2, 227),
    "convolutions, images in halos of 64 pixels": (convolution_pair(4, 6, 64, (72, 32)), "tile", 1, 2, 227),
    "convolutions, parts of rows": (convolution_pair(1, 16, 64, (8, 64)), "tile", 1, 2, 227),
    "convolutions, two images per tile, by two": (convolution_pair(4, 7, 128, (98, 64)), "strided", 2, 2, 160),
    "convolutions, taps of a row": (wide_rows(), "tile", 1, 2, 227),
    "convolutions, taps of a row, by two": (wide_rows(), "tile", 2, 2, 227),
    "a convolution of stride 2": (narrowing(), "tile", 1, 3, 227),
    "a residual block": (residual_block(), "tile", 1, 3, 227),
    "a batch norm and a product of results": (normed_block(), "tile", 1, 3, 227),
    "a batch norm and a product of results, by two": (normed_block(), "tile", 2, 3, 227),
    "two programs": (TWO_PROGRAMS, "tile", 1, 2, 56),
    "attention": (attending(80, 2, 1, 64, (64, 64), 64), "tile", 1, 3, 100),
    "attention of 128 columns": (attending(150, 2, 1, 128, (128, 128), 64), "fewest", 1, 3, 160),
    "attention, high": (attending(200, 2, 2, 64, (128, 64), 128), "tile", 1, 3, 120),
    "attention, high, of 128 columns": (attending(150, 1, 1, 128, (128, 128), 128), "tile", 1, 2, 227),
    "attention to all keys": (attending(330, 1, 1, 64, (64, 64), 64, causal=False), "row", 1, 3, 90),
    "a gate apart": (GATED_APART, "tile", 1, 3, 227),
    "a gate apart, by two": (GATED_APART, "tile", 2, 3, 227),
}


ABREAST: dict[str, tuple[Case, tuple[bool, ...]]] = {
    "abreast behind parts": ((gelu_mlp(200, (128, 48), (128, 192), 256, 328), "tile", 2, 2, 227), (False, True)),
    "abreast behind parts, by four": (
        (gelu_mlp(200, (128, 96), (128, 128), 384, 200), "strided", 4, 1, 120),
        (False, True),
    ),
    "gated, abreast before parts": ((gated_mlp(64, (64, 192), (64, 48), 320, 264), "tile", 4, 2, 160), (True, False)),
    "gated, high, abreast before parts": (
        (gated_mlp(100, (128, 160), (128, 96), 320, 256), "row", 4, 2, 227),
        (True, False),
    ),
    "all abreast": ((gelu_mlp(200, (128, 96), (128, 192), 264, 328), "tile", 2, 3, 120), (True, True)),
    "all abreast, gated": ((gated_mlp(64, (64, 96), (64, 64), 200, 168), "tile", 2, 2, 227), (True, True)),
    "one token abreast": ((gated_mlp(1, (1, 192), (1, 48), 320, 264), "tile", 4, 2, 227), (True, False)),
    "bias and residual, abreast": ((biased("float16"), "tile", 2, 3, 227), (False, True, True)),
}
"""Further cases, and the stages in which the blocks of a cluster lie side by side in m."""


CASES |= {name: case for name, (case, _) in ABREAST.items()}


def plan_for(name: str, policy: Policy | None = None) -> Plan:
    chain, kind, split, clusters, _ = CASES[name]
    abreast = ABREAST[name][1] if name in ABREAST else None
    return plan_of(policy or policy_of(chain, kind), chain, clusters=clusters, split=split, abreast=abreast)


def own_rows_alone() -> Policy:
    """A policy of the case "attention" whose tiles wait for their own rows, and not for the keys of the rows before,
    which come last.
    """
    policy = policy_of(CASES["attention"][0], "row", [(*range(7, -1, -1),), None, None])
    first = policy.edges[0]
    assert first.waits == WaitTable((0, 1, 3, 4, 6), (0, 0, 1, 0, 0, 1))  # two tiles of each head
    own = replace(first, waits=WaitTable((0, 1, 2, 3, 4), (0, 1, 0, 1)), value=first.value[:4])
    return replace(policy, edges=(own, *policy.edges[1:]))


def wrong_runs(kernel: HostKernel, chain: Chain, seeds: Iterable[int]) -> Iterator[str]:
    """Yield the fault of each run, as runs are made. The first seed is 0.

    Run 0 delays nothing and is within rounding of PyTorch's result; the others have the same bits.
    """
    pipeline = Pipeline(chain.policy())
    inputs = pipeline.example()
    kernel.put(inputs)
    expected = pipeline.reference(inputs)[chain.operators[-1].out.tensor].double()
    calm = []
    for seed in seeds:
        message = kernel.run(seed)
        out = kernel.results[-1].double()
        bits = [result.clone().view(torch.int16) for result in kernel.results]
        if seed == 0:
            most = 2e-2 if kernel.results[-1].dtype == torch.bfloat16 else 3e-3
            calm = bits
            if message is None and not (out - expected).norm() < most * expected.norm():
                message = "is not PyTorch's result"
        elif message is None and not all(map(torch.equal, bits, calm)):
            message = "is not the result of the calm run"
        if message is not None:
            yield f"seed {seed}: {message}"
            kernel.begin_anew()
