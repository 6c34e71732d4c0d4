"""Small chains with every operator."""

from __future__ import annotations

from tileprof.runtime.chain import Chain
from tileprof.runtime.stages import View
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.pointwise import Pointwise
from tileprof.runtime.stages.reduce import Reduce
from tileprof.runtime.stages.rows import Norm, Softmax


def matrix(name: str, *shape: int, dtype: str = "float16") -> View:
    return View.contiguous(name, shape, dtype)


def weight(name: str, k: int, n: int, dtype: str = "float16") -> View:
    """Return a weight in the layout of nn.Linear: [n, k] in memory, seen as [k, n]."""
    return View(name, (k, n), (1, k), dtype)


def mlp(dtype: str = "float16") -> Chain:
    m, width, inner = 40, 48, 80
    up = Gemm(
        matrix("x", m, width, dtype=dtype), weight("w1", width, inner, dtype), matrix("h", m, inner, dtype=dtype),
        bias=matrix("b1", inner, dtype=dtype), tile=(16, 32), epilogue="gelu",
    )  # fmt: skip
    down = Gemm(
        matrix("h", m, inner, dtype=dtype), weight("w2", inner, width, dtype), matrix("y", m, width, dtype=dtype),
        residual=matrix("x", m, width, dtype=dtype), tile=(8, 32), rows_along="x",
    )  # fmt: skip
    return Chain(("up", "down"), (up, down))


def gated() -> Chain:
    """One product for gate and up, the gate in its epilogue; then the same with the gate as a stage of two halves."""
    m, width, inner = 24, 32, 40
    fused = Gemm(
        matrix("x", m, width), weight("w", width, 2 * inner), matrix("h", m, inner), tile=(16, 16), epilogue="silu_gate"
    )
    plain = Gemm(matrix("h", m, inner), weight("v", inner, 2 * inner), matrix("g", m, 2 * inner), tile=(8, 32))
    half = [View("g", (m, inner), (2 * inner, 1), "float16", offset) for offset in (0, inner)]
    gate = Pointwise(half[0], matrix("z", m, inner), half[1], function="silu_mul", tile=(4, 16))
    return Chain(("fused", "plain", "gate"), (fused, plain, gate))


def biased(dtype: str, m: int = 100, k: int = 192, n: int = 128) -> Chain:
    """Three products with bias and residual; the last writes the first one's memory again."""
    up = Gemm(
        matrix("x", m, k, dtype=dtype),
        weight("w1", k, n, dtype),
        matrix("h", m, n, dtype=dtype),
        matrix("b1", n, dtype=dtype),
        tile=(64, 48),
        epilogue="gelu_tanh",
    )
    middle = Gemm(
        matrix("h", m, n, dtype=dtype),
        weight("w2", n, n, dtype),
        matrix("g", m, n, dtype=dtype),
        matrix("b2", n, dtype=dtype),
        matrix("h", m, n, dtype=dtype),
        tile=(64, 64),
        epilogue="relu",
    )
    last = Gemm(
        matrix("g", m, n, dtype=dtype),
        weight("w3", n, n, dtype),
        matrix("h", m, n, dtype=dtype),
        tile=(64, 32),
        rows_along="x",
    )
    return Chain(("up", "middle", "last"), (up, middle, last))


def gated_apart(
    m: int = 24,
    width: int = 32,
    inner: int = 48,
    tiles: tuple[tuple[int, int], tuple[int, int], tuple[int, int]] = ((16, 16), (8, 32), (16, 16)),
) -> Chain:
    """A gate as a stage of its own, by which the next product is multiplied in its epilogue."""
    gate = Gemm(
        matrix("x", m, width), weight("w1", width, inner), matrix("g", m, inner), tile=tiles[0], epilogue="silu"
    )
    up = Gemm(
        matrix("x", m, width), weight("w2", width, inner), matrix("h", m, inner), residual=matrix("g", m, inner),
        tile=tiles[1], combine="multiply",
    )  # fmt: skip
    down = Gemm(matrix("h", m, inner), weight("w3", inner, width), matrix("y", m, width), tile=tiles[2])
    return Chain(("gate", "up", "down"), (gate, up, down))


def split() -> Chain:
    m, k, n = 24, 320, 40
    product = Gemm(
        matrix("x", m, k), weight("w", k, n), matrix("parts", 3, m, n, dtype="float32"), tile=(16, 16), split_k=3
    )
    total = Reduce(
        matrix("parts", 3, m, n, dtype="float32"), matrix("y", m, n), bias=matrix("b", n), tile=(8, 40), epilogue="relu"
    )
    return Chain(("product", "total"), (product, total))


def convolutions(stride: int = 1) -> Chain:
    n, size, c, k = 2, 9, 8, 16
    out = (size - 1) // stride + 1
    first = Conv2d(
        matrix("x", n, size, size, c),
        matrix("w1", k, 3, 3, c),
        matrix("h", n, out, out, k),
        bias=matrix("b1", k),
        tile=(20, 8),
        stride=stride,
        padding=1,
        epilogue="relu",
    )
    second = Conv2d(
        matrix("h", n, out, out, k),
        matrix("w2", k, 3, 3, k),
        matrix("g", n, out, out, k),
        residual=matrix("h", n, out, out, k),
        tile=(16, 16),
        padding=1,
    )
    third = Conv2d(matrix("g", n, out, out, k), matrix("w3", c, 1, 1, k), matrix("y", n, out, out, c), tile=(30, 8))
    return Chain(("first", "second", "third"), (first, second, third))


def rows() -> Chain:
    m, n = 20, 36
    layer = Norm(matrix("x", m, n), matrix("a", m, n), matrix("w", n), matrix("b", n), rows=3)
    rms = Norm(matrix("a", m, n), matrix("c", m, n), matrix("w", n), kind="rms", rows=7)
    soft = Softmax(matrix("c", m, n), matrix("s", m, n), rows=2, scale=0.5)
    copy = Pointwise(matrix("s", m, n), matrix("t", m, n), tile=(4, 16))
    both = Pointwise(matrix("t", m, n), matrix("y", m, n), matrix("x", m, n), function="add", tile=(5, 36))
    return Chain(("layer", "rms", "soft", "copy", "both"), (layer, rms, soft, copy, both))


def attention(dropout: float = 0.0) -> Chain:
    """Scores, softmax and values of three heads."""
    heads, t, d = 3, 16, 8
    scores = Gemm(
        matrix("q", heads, t, d),
        View("k", (heads, d, t), (t * d, 1, d), "float16"),
        matrix("s", heads, t, t),
        tile=(8, 8),
    )
    soft = Softmax(
        matrix("s", heads * t, t), matrix("p", heads * t, t), rows=4, scale=d**-0.5, dropout=dropout, seed=11
    )
    values = Gemm(matrix("p", heads, t, t), matrix("v", heads, t, d), matrix("y", heads, t, d), tile=(8, 8))
    return Chain(("scores", "soft", "values"), (scores, soft, values))


def flash(*, causal: bool = True) -> Chain:
    """Queries of four heads and keys of two, cut out of one product as in a transformer, and the stages after them."""
    tokens, heads, groups, d = 24, 4, 2, 8
    width = (heads + 2 * groups) * d
    qkv = Gemm(matrix("x", tokens, 16), weight("w", 16, width), matrix("qkv", tokens, width), tile=(8, 16))
    q, k, v = (
        View("qkv", (n, tokens, d), (d, width, 1), "float16", at * d)
        for n, at in ((heads, 0), (groups, heads), (groups, heads + groups))
    )
    middle = View("o", (heads, tokens, d), (d, heads * d, 1), "float16")
    attend = Attention(q, k, v, middle, rows=5, causal=causal)
    after = Gemm(matrix("o", tokens, heads * d), weight("u", heads * d, 16), matrix("y", tokens, 16), tile=(8, 16))
    return Chain(("qkv", "attend", "after"), (qkv, attend, after))


CHAINS = {
    "mlp": mlp(),
    "mlp in bfloat16": mlp("bfloat16"),
    "mlp in float32": mlp("float32"),
    "gated": gated(),
    "gated apart": gated_apart(),
    "split": split(),
    "convolutions": convolutions(),
    "convolutions of stride 2": convolutions(2),
    "rows": rows(),
    "attention": attention(),
    "attention with dropout": attention(0.25),
    "flash": flash(),
    "flash, not causal": flash(causal=False),
}
