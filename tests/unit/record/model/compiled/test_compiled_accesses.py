"""The accesses that are derived for a generated kernel are those that Triton's interpreter sees when each program
runs.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")
from tests.support import generated_kernels as generated
from tileprof.record.model.compiled import lanes

F = torch.nn.functional


def _of(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype)


EXACT = {
    "bias along rows, ragged": (lambda x, b: x + b[:, None], _of(37, 53), _of(37)),
    "a transposed operand": (lambda x, y: x.t() + y, _of(64, 96), _of(96, 64)),
    "channels of an image": (lambda x, b: torch.relu(x + b[None, :, None, None]), _of(2, 5, 7, 9), _of(5)),
    "softmax of a row per program": (lambda x: x.softmax(-1), _of(6, 40)),
    "column sums in two kernels": (lambda x: x.sum(0), _of(300, 70)),
    "layer norm": (lambda x, w: F.layer_norm(x, (200,), w), _of(10, 200), _of(200)),
    "concatenation": (lambda a, b: torch.cat([a, b], 1) * 2, _of(9, 30), _of(9, 21)),
    "max pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), _of(2, 3, 17, 15)),
    "roll and flip": (lambda x: x.roll(5, 1) + x.flip(0), _of(11, 40)),
    "padding": (lambda x: F.pad(x, (1, 2, 3, 0)) + 1, _of(4, 20, 10)),
    "a sum of everything, in a loop": (lambda x: x.sum(), _of(20000)),
    "known indices": (lambda i, w: w[i] * 2, torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]]), _of(12, 40)),
    "dropout": (lambda x: F.dropout(x, 0.3, training=True), _of(100, 10)),
    "prefix sums": (lambda x: x.cumsum(1) * 2, _of(7, 130)),
    "rotation of halves": (lambda x, c: torch.cat([-x[..., 16:], x[..., :16]], -1) * c, _of(2, 4, 10, 32), _of(10, 32)),
    "known places of atomic updates": (
        lambda x, i, s: x.index_put((i,), s, accumulate=True), _of(10, 8), torch.tensor([1, 3, 3]), _of(3, 8),
    ),
}  # fmt: skip


NIGHTLY = {"a transposed operand", "roll and flip", "prefix sums", "padding", "layer norm", "rotation of halves"}
"""Cases of which each run has similar ones."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in NIGHTLY else name for name in EXACT]
)
def test_every_program_touches_what_the_interpreter_sees(name):
    function, *inputs = EXACT[name]
    launches = generated.launches_of(function, *inputs)
    assert launches
    for kernel, arguments in launches:
        real = generated.with_memory(arguments)
        evaluation, touched_bytes = generated.modelled(kernel, real)
        assert evaluation.coverage == "exact"
        assert touched_bytes == generated.brute_force(kernel, real, evaluation)


def test_what_depends_on_values_that_are_not_known_is_a_superset():
    [(kernel, arguments)] = generated.launches_of(
        lambda i, w: w[i] * 2, torch.tensor([[3, 1, 4], [5, 9, 2]]), _of(12, 40)
    )
    real = generated.with_memory(arguments, fill=0)
    evaluation, touched_bytes = generated.modelled(kernel, real, values=lambda _: None)
    assert evaluation.coverage == "inferred"
    true_bytes = generated.brute_force(kernel, real, evaluation)
    assert all(cells <= touched_bytes[place] for place, cells in true_bytes.items())
    assert any(cells < touched_bytes[place] for place, cells in true_bytes.items())


def test_a_kernel_that_cannot_be_followed_takes_its_arguments_whole():
    [(kernel, arguments)] = generated.launches_of(lambda x: x * 2 + 1, _of(40, 50))
    kernel.source = kernel.source.replace("tmp0 = tl.load", "tmp9 = tl.nothing_like_this.of_ours\n    tmp0 = tl.load")
    evaluation, _ = kernel.kernel(tuple(generated.with_memory(arguments)), lambda _: None)
    assert evaluation.coverage == "conservative"
    assert "every program takes every argument whole" in evaluation.note
    boxes = evaluation.footprint.boxes
    assert set(zip(boxes.operand.tolist(), boxes.mode.tolist(), strict=True)) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert set(boxes.length.tolist()) == {40 * 50 * 4}


NUMBERS = st.integers(1, 9)


@st.composite
def _expressions(draw, depth=3):
    """Draw index arithmetic over program numbers and lanes, as text; Python computes what consists of constants
    alone.
    """
    if depth == 0 or (depth < 3 and draw(st.booleans())):
        return draw(st.sampled_from(["x", "y", "p"]))
    symbol = draw(st.sampled_from(["+", "*", "//", "%", "-"]))
    operand = draw(_expressions(depth=depth - 1))
    constant = symbol in ("*", "//", "%") or draw(st.booleans())
    right = str(draw(NUMBERS)) if constant else draw(_expressions(depth=depth - 1))
    return f"({operand} {symbol} {right})"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_expressions(), st.integers(1, 8), st.integers(1, 8), st.integers(1, 7), st.integers(-20, 60))
def test_lanes_are_what_integers_are(text, width, height, programs, bound):
    p = lanes.Lanes((), np.arange(programs) * 5, ())
    x = lanes.Lanes((width,), np.zeros(1, np.int64), (1,))[None, :]
    y = lanes.Lanes((height,), np.zeros(1, np.int64), (1,))[:, None]
    value = lanes.lanes(eval(text, {"p": p, "x": x, "y": y}))
    below = lanes.lanes(eval(f"{text} < {bound}", {"p": p, "x": x, "y": y}))
    chunk = lanes.Chunk(np.arange(programs))
    truth = np.zeros((programs, height, width), np.int64)
    for n, j, i in np.ndindex(truth.shape):
        truth[n, j, i] = _as_c(text, {"p": _C(n * 5), "x": _C(i), "y": _C(j)})
    if isinstance(value, lanes.Lanes):
        full = lanes.broadcast(value, (height, width))
        assert np.array_equal(np.broadcast_to(full.dense(chunk), truth.shape), truth)
        ok = np.broadcast_to(full.ok, programs)
        affine = full.base.reshape(-1, 1, 1) + full.coefficients[0] * np.arange(height)[:, None]
        affine = np.broadcast_to(affine + full.coefficients[1] * np.arange(width), truth.shape)
        assert np.array_equal(affine[ok], truth[ok])
        assert (np.broadcast_to(full.low, programs) <= truth.min((1, 2))).all()
        assert (np.broadcast_to(full.high, programs) >= truth.max((1, 2))).all()
    if isinstance(below, lanes.Mask):
        mask = lanes.broadcast(below, (height, width))
        want = truth < bound
        assert np.array_equal(np.broadcast_to(mask.dense(chunk), truth.shape) == 1, want)
        assert not want[np.broadcast_to(mask.never, programs)].any()
        assert want[np.broadcast_to(mask.always, programs)].all()
        inside = np.ones(truth.shape, bool)
        for axis, (first, last) in mask.clip.items():
            lane = np.arange(truth.shape[axis]).reshape((-1,) + (1,) * (-axis - 1))
            inside &= (lane >= first.reshape(-1, 1, 1)) & (lane < last.reshape(-1, 1, 1))
        ok = np.broadcast_to(mask.ok & ~mask.never, programs)
        assert np.array_equal(inside[ok], want[ok])


class _C(int):
    """An integer that divides as in C."""

    def __floordiv__(self, other):
        return _C(int(np.sign(self) * np.sign(other)) * (abs(int(self)) // abs(int(other))))

    def __mod__(self, other):
        return _C(int(self) - int(self // other) * int(other))

    def __add__(self, other):
        return _C(int(self) + int(other))

    def __radd__(self, other):
        return _C(int(self) + int(other))

    def __sub__(self, other):
        return _C(int(self) - int(other))

    def __rsub__(self, other):
        return _C(int(other) - int(self))

    def __mul__(self, other):
        return _C(int(self) * int(other))

    __rmul__ = __mul__


def _as_c(text, names):
    import re

    return int(eval(re.sub(r"\b(\d+)\b", r"C(\1)", text), names | {"C": _C}))


def test_a_templates_products_and_the_blocks_of_flex_attention_are_what_the_interpreter_sees():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
    left, right = _of(128, 64, dtype=torch.float16), _of(64, 192, dtype=torch.float16)
    [(kernel, arguments)] = generated.launches_of(lambda a, b: (a @ b).relu(), left, right, settings=settings)
    assert kernel.name.startswith("triton_tem_fused_mm_relu")
    real = generated.with_memory(arguments)
    evaluation, touched_bytes = generated.modelled(kernel, real)
    assert evaluation.coverage == "exact"
    assert evaluation.flops == 2 * 128 * 64 * 192
    assert touched_bytes == generated.brute_force(kernel, real, evaluation)

    mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, 256, 256, device="cpu")
    q, k, v = (_of(1, 2, 256, 16, dtype=torch.float16) for _ in range(3))
    *_, (kernel, arguments) = generated.launches_of(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), q, k, v)
    real = generated.with_memory(arguments)
    integers = iter((mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices))
    for tensor in real:
        if isinstance(tensor, torch.Tensor) and tensor.dtype is torch.int32:
            tensor.copy_(next(integers))
    evaluation, touched_bytes = generated.modelled(kernel, real)
    assert evaluation.coverage == "exact"
    assert touched_bytes == generated.brute_force(kernel, real, evaluation)
