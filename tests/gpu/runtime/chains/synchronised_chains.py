"""Chains whose Triton kernels post and wait on a GPU."""

from __future__ import annotations

from tests.support.runtime.chains import matrix, weight
from tileprof.runtime.chain import Chain
from tileprof.runtime.measuring.measure import convolution_pair, copy_pair, gated_mlp, gelu_mlp
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.reduce import Reduce
from tileprof.runtime.stages.rows import Norm, Softmax
from tileprof.runtime.stages.view import View


def split_product() -> Chain:
    m, k, n = 48, 2048, 96
    product = Gemm(
        matrix("x", m, k),
        weight("w", k, n),
        matrix("p", 6, m, n, dtype="float32"),
        tile=(16, 32),
        split_k=6,
    )
    total = Reduce(
        matrix("p", 6, m, n, dtype="float32"), matrix("y", m, n), matrix("b", n), tile=(8, 32), epilogue="relu"
    )
    return Chain(("product", "total"), (product, total))


def attention() -> Chain:
    """Scores, softmax with dropout, values, and a norm of the rows: four stages, the last beside the first where there
    is room.
    """
    heads, t, d = 4, 128, 64
    scores = Gemm(
        matrix("q", heads, t, d),
        View("k", (heads, d, t), (t * d, 1, d), "float16"),
        matrix("s", heads, t, t),
        tile=(32, 32),
    )
    soft = Softmax(matrix("s", heads * t, t), matrix("p", heads * t, t), rows=4, scale=d**-0.5, dropout=0.1, seed=5)
    values = Gemm(matrix("p", heads, t, t), matrix("v", heads, t, d), matrix("o", heads, t, d), tile=(32, 32))
    norm = Norm(matrix("o", heads * t, d), matrix("y", heads * t, d), rows=8, kind="rms")
    return Chain(("scores", "softmax", "values", "norm"), (scores, soft, values, norm))


def flash() -> Chain:
    """Queries, keys and values from one product, causal attention, and the product after it."""
    tokens, heads, groups, d = 192, 8, 2, 64
    width = (heads + 2 * groups) * d
    first = Gemm(matrix("x", tokens, 256), weight("w", 256, width), matrix("qkv", tokens, width), tile=(64, 64))
    q, k, v = (
        View("qkv", (n, tokens, d), (d, width, 1), "float16", at * d)
        for n, at in ((heads, 0), (groups, heads), (groups, heads + groups))
    )
    attend = Attention(q, k, v, View("o", (heads, tokens, d), (d, heads * d, 1), "float16"), rows=64, causal=True)
    inner = heads * d
    last = Gemm(matrix("o", tokens, inner), weight("u", inner, 256), matrix("y", tokens, 256), tile=(64, 64))
    return Chain(("qkv", "attend", "after"), (first, attend, last))


CHAINS = {
    "flash attention": flash(),
    "copies": copy_pair(600),
    "gated products": gated_mlp(80, (16, 32), (32, 64), width=512, inner=320),
    "convolutions": convolution_pair(3, 13, 48, (32, 16)),
    "product split along k": split_product(),
    "attention": attention(),
    "products": gelu_mlp(192, (64, 64), (64, 128), width=1024, inner=512),
    "products of ragged sizes": gelu_mlp(100, (32, 64), (64, 32), width=328, inner=200),
}
