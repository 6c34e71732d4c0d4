"""Attention: the rows that every tile reads and writes, and when, compared with the loops of the algorithm."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import (
    assert_each_byte_written_once,
    bytes_of,
    call_of,
    element_bytes,
    is_same,
    run_model,
    slot_of,
)
from tileprof.devices import get
from tileprof.record.model.observation.attention_choice import as_on_gpu
from tileprof.record.model.tile_model import Operand, Scratch
from tileprof.record.model.tiles.foundations import overrides
from tileprof.trace.footprint import ATOMIC, READ, WRITE

H200 = get("H200")
FLASH_CPU = "aten::_scaled_dot_product_flash_attention_for_cpu"


@st.composite
def problems(draw):
    """Draw query, key, value ``[batch, heads, rows, width]`` in several layouts, causal, masked or plain."""
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    queries, keys, width = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 3))

    def tensor(heads, rows):
        if draw(st.booleans()):
            return torch.zeros(batch, rows, heads, width).transpose(1, 2)
        return torch.zeros(batch, heads, rows, width)

    kind = draw(st.sampled_from(["plain", "causal", "mask"]))
    mask = torch.zeros(draw(st.sampled_from([1, batch])), 1, queries, keys) if kind == "mask" else None
    q = tensor(kv_heads * group, queries)
    return q, tensor(kv_heads, keys), tensor(kv_heads, keys), kind == "causal", mask


tiles = st.tuples(st.integers(1, 5), st.integers(1, 5))


def keys_met(x, tile, keys, *, causal):
    """Return the keys that a tile reads: whole blocks, up to the block of the last query that the tile has room for."""
    last = (x + 1) * tile[0] - 1
    keys_of_tile = [j for j in range(keys) if not causal or j // tile[1] <= last // tile[1]]
    assert all(j in keys_of_tile for j in range(keys) if not causal or j <= last)
    return keys_of_tile


def rows_of(operand, batch, head, rows):
    """Return the bytes of whole rows of ``[batch, heads, rows, ...]``."""
    return element_bytes(operand, ((batch, head, i, *r) for i in rows for r in np.ndindex(*operand.shape[3:])))


@settings(max_examples=80, deadline=None)
@given(problems(), tiles)
def test_forward_tiles_read_their_queries_and_the_keys_they_meet(problem, tile):
    q, k, v, causal, mask = problem
    call = call_of(FLASH_CPU, q, k, v, 0.0, causal, attn_mask=mask)
    with overrides.override(f"attention={tile[0]}x{tile[1]}"):
        (kernel,) = run_model(call, H200)
    q, k, v, (out, statistics) = call["query"], call["key"], call["value"], call.outputs
    group = q.shape[1] // k.shape[1]
    assert kernel.grid == (math.ceil(q.shape[2] / tile[0]), q.shape[0], q.shape[1])
    for t, (x, b, h) in enumerate(kernel.footprint.block.tolist()):
        own = range(x * tile[0], min((x + 1) * tile[0], q.shape[2]))
        keys_of_tile = keys_met(x, tile, k.shape[2], causal=causal)
        assert bytes_of(kernel.footprint, t, 0) == rows_of(q, b, h, own)
        assert bytes_of(kernel.footprint, t, 1) == rows_of(k, b, h // group, keys_of_tile)
        assert bytes_of(kernel.footprint, t, 2) == rows_of(v, b, h // group, keys_of_tile)
        assert bytes_of(kernel.footprint, t, 3, WRITE) == rows_of(out, b, h, own)
        assert bytes_of(kernel.footprint, t, 4, WRITE) == rows_of(statistics, b, h, own)
        if mask is not None:
            spread = broadcast_bytes(call["attn_mask"], (*q.shape[:3], k.shape[2]))
            assert bytes_of(kernel.footprint, t, 5) == element_bytes(
                spread, ((b, h, i, j) for i in own for j in keys_of_tile)
            )
    assert_each_byte_written_once(kernel, 3, out, WRITE)
    assert_each_byte_written_once(kernel, 4, statistics, WRITE)


def broadcast_bytes(operand, shape):
    view = torch.empty(10_000).as_strided(operand.shape, operand.strides).expand(shape)
    return Operand(tuple(view.shape), view.stride(), operand.dtype, operand.itemsize, ref=operand.ref)


def flash(batch, heads, kv_heads, queries, keys, width, *, causal=False):
    """Return a call of the GPU operator, on meta tensors."""
    q, k = (
        torch.zeros(batch, h, n, width, dtype=torch.bfloat16, device="meta")
        for h, n in ((heads, queries), (kv_heads, keys))
    )
    return call_of("aten::_scaled_dot_product_flash_attention", q, k, k.clone(), 0.0, causal, False)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 6), st.integers(1, 9), tiles, st.integers(2, 4), st.booleans()
)
def test_slices_of_keys_are_combined(batch, heads, queries, keys, tile, split, causal):
    call = flash(batch, heads, heads, queries, keys, 8, causal=causal)
    with overrides.override(f"attention={tile[0]}x{tile[1]},split={split}"):
        launches = run_model(call, H200)
    slices = min(split, math.ceil(keys / tile[1]))
    if slices == 1:
        assert len(launches) == 1
        return
    main, combine = launches
    out, statistics = call.outputs[:2]
    across = math.ceil(queries / tile[0])
    most = math.ceil(len(keys_met(across - 1, tile, keys, causal=causal)) / tile[1])
    per_slice = math.ceil(most / slices)
    partial = Operand(
        (slices, heads, batch, queries, 8),
        (heads * batch * queries * 8, batch * queries * 8, queries * 8, 8, 1),
        "float32",
        4,
    )
    weights = Operand(
        (slices, heads, batch, queries), (heads * batch * queries, batch * queries, queries, 1), "float32", 4
    )
    for t, (x, b, z) in enumerate(main.footprint.block.tolist()):
        s, h = divmod(z, heads)
        own = range(x * tile[0], min((x + 1) * tile[0], queries))
        keys_of_tile = [
            j for j in keys_met(x, tile, keys, causal=causal) if s * per_slice <= j // tile[1] < (s + 1) * per_slice
        ]
        assert bytes_of(main.footprint, t, 1) == rows_of(call["key"], b, h, keys_of_tile)
        cells = [(s, h, b, i) for i in own]
        assert bytes_of(main.footprint, t, 3, WRITE) == element_bytes(
            partial, ((*c, d) for c in cells for d in range(8))
        )
        assert bytes_of(main.footprint, t, 4, WRITE) == element_bytes(weights, cells)
    assert main.operands[3:5] == (Scratch(0, partial.numel * 4), Scratch(1, weights.numel * 4))
    assert_each_byte_written_once(combine, 2, out, WRITE)
    assert_each_byte_written_once(combine, 3, statistics, WRITE)
    for t in range(combine.footprint.tiles):
        written = bytes_of(combine.footprint, t, 3, WRITE)
        own = [i for i in np.ndindex(*statistics.shape) if element_bytes(statistics, [i]) <= written]
        assert bytes_of(combine.footprint, t, 2, WRITE) == element_bytes(out, ((*i, d) for i in own for d in range(8)))
        places = [(s, h, b, i) for s in range(slices) for b, h, i in own]
        assert bytes_of(combine.footprint, t, 0) == element_bytes(partial, ((*c, d) for c in places for d in range(8)))
        assert bytes_of(combine.footprint, t, 1) == element_bytes(weights, places)


@settings(max_examples=60, deadline=None)
@given(problems(), tiles)
def test_backward_walks_queries_and_adds_to_their_gradients(problem, tile):
    q, k, v, causal, mask = problem
    out, statistics = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask)
    # The CPU's backward needs equal heads, so the call is described from copies whose heads are not shared.
    whole_k, whole_v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    arguments = (torch.zeros_like(out), q, whole_k, whole_v, out, statistics, 0.0, causal)
    call = call_of(FLASH_CPU + "_backward", *arguments, attn_mask=mask)
    with overrides.override(f"attention={tile[0]}x{tile[1]}"):
        dots, gradients, convert = run_model(call, H200)
    q, k, (grad_q, grad_k, grad_v) = call["query"], call["key"], call.outputs
    batch, heads, queries = q.shape[:3]
    keys, width = k.shape[2:]
    row = Operand((heads, batch, queries), (batch * queries, queries, 1), "float32", 4)
    sums = Operand((heads, batch, queries, width), (batch * queries * width, queries * width, width, 1), "float32", 4)
    assert gradients.grid == (math.ceil(keys / tile[1]), batch, heads)
    for t, (x, b, h) in enumerate(gradients.footprint.block.tolist()):
        own = range(x * tile[1], min((x + 1) * tile[1], keys))
        query_rows = [i for i in range(queries) if not causal or i // tile[0] >= x * tile[1] // tile[0]]
        assert all(i in query_rows for i in range(queries) if not causal or i >= own[0])
        for slot, name in ((0, "key"), (1, "value")):
            assert bytes_of(gradients.footprint, t, slot) == rows_of(call[name], b, h, own)
        for slot, name in ((2, "query"), (3, "grad_out"), (4, "logsumexp")):
            assert bytes_of(gradients.footprint, t, slot) == rows_of(call[name], b, h, query_rows)
        assert bytes_of(gradients.footprint, t, 5) == element_bytes(row, ((h, b, i) for i in query_rows))
        sum_bytes = element_bytes(sums, ((h, b, i, d) for i in query_rows for d in range(width)))
        assert bytes_of(gradients.footprint, t, 6, ATOMIC) == sum_bytes
        for slot, target in ((7, grad_k), (8, grad_v)):
            assert bytes_of(gradients.footprint, t, slot, WRITE) == rows_of(target, b, h, own)
        if mask is not None:
            spread = broadcast_bytes(call["attn_mask"], (*q.shape[:3], keys))
            assert bytes_of(gradients.footprint, t, 9) == element_bytes(
                spread, ((b, h, i, j) for i in query_rows for j in own)
            )
    for kernel, slot, target in (
        (dots, 2, row),
        (dots, 3, sums),
        (convert, 1, grad_q),
        (gradients, 7, grad_k),
        (gradients, 8, grad_v),
    ):
        assert_each_byte_written_once(kernel, slot, target, WRITE)
    for t, (x, b, h) in enumerate(dots.footprint.block.tolist()):
        own = range(x * tile[0], min((x + 1) * tile[0], queries))
        assert bytes_of(dots.footprint, t, 0) == rows_of(call["grad_out"], b, h, own)
        assert bytes_of(dots.footprint, t, 1) == rows_of(call["out"], b, h, own)
        assert bytes_of(dots.footprint, t, 2, WRITE) == element_bytes(row, ((h, b, i) for i in own))
        assert bytes_of(convert.footprint, t, 0) == element_bytes(
            sums, ((h, b, i, d) for i in own for d in range(width))
        )
        assert bytes_of(convert.footprint, t, 1, WRITE) == rows_of(grad_q, b, h, own)


def test_shared_heads_sum_their_key_gradients():
    q = torch.zeros(2, 6, 5, 4)
    k = torch.zeros(2, 2, 7, 4)
    out, statistics = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)
    full = torch.zeros(2, 6, 7, 4)
    call = call_of(FLASH_CPU + "_backward", torch.zeros_like(out), q, full, full, out, statistics, 0.0, False)
    shared = call_of("aten::stack", [k, k]).tensors[0]
    call.arguments |= {"key": shared, "value": shared}
    call.outputs = (call.outputs[0], shared, shared)
    launches = run_model(call, H200)
    sums = launches[3:]
    assert [k.name for k in sums] == ["attention_backward_group_sum"] * 2
    expanded_key = Operand((2, 6, 7, 4), (28, 56, 4, 1), "float32", 4)
    assert_each_byte_written_once(launches[1], 7, expanded_key, WRITE)
    for kernel in sums:
        assert_each_byte_written_once(kernel, 1, shared, WRITE)
        for t in range(kernel.footprint.tiles):
            written = bytes_of(kernel.footprint, t, 1, WRITE)
            own = [i for i in np.ndindex(*shared.shape) if element_bytes(shared, [i]) <= written]
            needs = ((b, h * 3 + g, *i) for b, h, *i in own for g in range(3))
            assert bytes_of(kernel.footprint, t, 0) == element_bytes(expanded_key, needs)


def test_a_causal_launch_gives_later_queries_more_work_and_reads_the_diagonal_first():
    (kernel,) = run_model(flash(1, 64, 64, 1024, 1024, 64, causal=True), H200)
    assert kernel.tile_flops is not None
    work = kernel.tile_flops[kernel.footprint.block[:, 2] == 0]
    assert (np.diff(work) > 0).all()
    assert kernel.flops == pytest.approx(kernel.tile_flops.sum())
    boxes = kernel.footprint.boxes
    own = (boxes.tile == 7) & (boxes.operand == 1)
    assert (np.diff(boxes.offset[own][np.argsort(boxes.first[own])]) < 0).all()
    assert boxes.last[own].max() == pytest.approx(boxes.first[(boxes.tile == 7) & (boxes.operand == 3)][0])


def test_few_queries_split_their_keys_to_fill_the_gpu():
    decode = run_model(flash(1, 32, 8, 1, 8192, 128), H200)
    assert [k.name for k in decode] == ["attention_bf16_64x128_splitkv", "attention_combine"]
    assert decode[0].footprint.tiles > H200.sms / 2
    assert len(run_model(flash(8, 32, 32, 2048, 2048, 128), H200)) == 1


def test_on_hopper_cudnn_clears_a_counter_and_every_tile_takes_its_work_from_it():
    q = torch.zeros(1, 4, 256, 64, dtype=torch.bfloat16)
    clear, main = run_model(call_of(FLASH_CPU, q, q, q, 0.0, True), H200)
    assert (clear.name, main.block, main.footprint.tiles) == ("memset", (384, 1, 1), 8)
    counter = main.footprint.boxes.take(main.footprint.boxes.mode == ATOMIC)
    assert sorted(counter.tile.tolist()) == list(range(8))
    assert {main.operands[slot] for slot in counter.operand} == set(clear.operands) == {Scratch(0, 4)}
    assert len(run_model(call_of(FLASH_CPU, q, q, q, 0.0, True), get("A100-80GB"))) == 1, "one block of 256 keys"
    assert all("cudnn" not in k.name for k in run_model(call_of(FLASH_CPU, q.float(), q.float(), q.float()), H200))


def test_random_state_is_written_by_the_first_tile_alone():
    call = flash(1, 64, 64, 512, 512, 64)
    (kernel,) = run_model(call, H200)
    state = [o for o in call.outputs[2:] if o.numel]
    assert state
    for operand in state:
        rows = kernel.footprint.boxes.operand == slot_of(kernel, operand)
        assert set(kernel.footprint.boxes.tile[rows].tolist()) == {0}


def test_padded_statistics_are_written_whole_and_read_only_where_queries_are():
    q = torch.zeros(2, 3, 50, 16, device="meta")
    call = call_of("aten::_scaled_dot_product_efficient_attention", q, q, q, None, True)
    (kernel,) = run_model(call, H200)
    statistics = call.outputs[1]
    assert statistics.shape[2] == 64
    assert_each_byte_written_once(kernel, 4, statistics, WRITE)


@pytest.mark.parametrize("gpu", ["V100", "A100-80GB", "H200", "L4"])
@pytest.mark.parametrize("width", [32, 64, 128, 256])
def test_tiles_fit_their_gpu(gpu, width):
    device = get(gpu)
    for kernel in run_model(flash(2, 4, 4, 300, 300, width), device):
        assert kernel.shared_bytes <= device.shared_bytes_per_block
    assert (kernel.footprint.boxes.mode != ATOMIC).all()
    assert (kernel.footprint.boxes.mode == READ).any()


def test_nothing_runs_for_empty_outputs_or_for_the_choice_of_a_kernel():
    assert run_model(flash(1, 2, 2, 0, 3, 8), H200) == []
    q = torch.zeros(1, 2, 3, 4)
    assert run_model(call_of("aten::_fused_sdp_choice", q, q, q), H200) == []


def test_blocks_of_efficient_attention_lie_along_queries_heads_and_batches():
    q = torch.zeros(3, 4, 128, 8)
    call = call_of(FLASH_CPU, q, q, q, 0.0, False)
    (main,) = run_model(call, H200)
    assert main.grid == (2, 4, 3)
    for t, (x, h, b) in enumerate(main.footprint.block.tolist()):
        assert t == x + 2 * (h + 4 * b)
        assert bytes_of(main.footprint, t, 0) == rows_of(call["query"], b, h, range(64 * x, 64 * x + 64))


def efficient(q, k, v, mask):
    with as_on_gpu((9, 0)):  # a CPU has no such kernel
        return call_of("aten::_scaled_dot_product_efficient_attention", q, k, v, mask, False)


@pytest.mark.parametrize(
    ("dtype", "width", "tile"),
    [(torch.bfloat16, 64, (64, 64)), (torch.float16, 128, (64, 128)), (torch.float32, 72, (64, 128)),
     (torch.float16, 256, (32, 128))],
)  # fmt: skip
def test_tiles_of_efficient_attention_go_by_the_width_of_heads(dtype, width, tile):
    q = torch.zeros(1, 1, 200, width, dtype=dtype)
    (main,) = run_model(efficient(q, q, q, None), H200)
    assert main.name.endswith(f"_{tile[0]}x{tile[1]}")
    assert main.grid == (-(-200 // tile[0]), 1, 1)


@pytest.mark.parametrize(("stride", "read"), [(56, 56), (49, 49), (0, 49)])
def test_efficient_attention_loads_eight_elements_of_a_mask_where_rows_lie_apart(stride, read):
    q, k = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 49, 8)
    mask = torch.zeros(4 * 56).as_strided((1, 1, 4, 49), (0, 0, stride, 1))
    (main,) = run_model(efficient(q, k, k, mask), H200)
    rows = {4 * (stride * row + key) + byte for row in range(4) for key in range(read) for byte in range(4)}
    assert bytes_of(main.footprint, 0, 5) == rows


@pytest.mark.parametrize(("keys", "causal"), [(128, True), (128, False), (64, False)])
def test_gradients_of_efficient_attention_in_float32_come_from_sums_by_aten(keys, causal):
    q, k = (torch.zeros(2, rows, 3, 8).transpose(1, 2) for rows in (128, keys))
    out, statistics = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, causal)
    call = call_of(FLASH_CPU + "_backward", torch.zeros_like(out), q, k, k, out, statistics, 0.0, causal)
    *sums, main = run_model(call, H200)
    names = [kernel.name.partition("<")[2].strip(">") for kernel in sums]
    assert names == ["mul", "sum", "contiguous"] + ["zero_"] * (keys > 64)
    assert (main.grid, main.coverage) == ((keys // 64, 3, 2), "inferred")
    grad_q, grad_k, grad_v = call.outputs
    for target in (grad_k, grad_v):
        assert_each_byte_written_once(main, slot_of(main, target), target, WRITE)
    for t, (x, h, b) in enumerate(main.footprint.block.tolist()):
        own = range(64 * x, 64 * x + 64)
        walked = range(64 * x if causal else 0, 128)
        assert bytes_of(main.footprint, t, slot_of(main, grad_k), WRITE) == rows_of(grad_k, b, h, own)
        assert bytes_of(main.footprint, t, slot_of(main, grad_q), WRITE) == rows_of(grad_q, b, h, walked)
        assert bytes_of(main.footprint, t, slot_of(main, call["grad_out"])) == rows_of(call["grad_out"], b, h, walked)
    delta = Operand((2, 3, 128), (384, 128, 1), "float32", 4)
    assert_each_byte_written_once(sums[2], 1, delta, WRITE)
    assert sums[2].operands[1] in main.operands


@pytest.mark.parametrize("keys", [49, 128])
def test_gradients_of_efficient_attention_in_float16_add_products_up_themselves(keys):
    """One launch, or with several blocks of keys two; rows of a mask are read to the next multiple of eight."""
    with torch.device("meta"):
        q, k = (torch.zeros(2, rows, 3, 32, dtype=torch.float16).transpose(1, 2) for rows in (128, keys))
        mask = torch.zeros(2, 3, 128, 56 if keys == 49 else keys, dtype=torch.float16)[..., :keys]
        statistics, seed = torch.zeros(2, 3, 128), torch.zeros((), dtype=torch.int64)
    needed = [True, True, True, False]
    call = call_of(
        "aten::_scaled_dot_product_efficient_attention_backward",
        torch.zeros_like(q), q, k, k, mask, torch.zeros_like(q), statistics, seed, seed, 0.0, needed, False,
    )  # fmt: skip
    *fill, main = run_model(call, H200)
    assert [kernel.name.partition("<")[2].strip(">") for kernel in fill] == ["zero_"] * (keys > 64)
    assert main.grid == (-(-keys // 64), 3, 2)
    rows = bytes_of(main.footprint, 0, slot_of(main, call["attn_bias"]))
    assert len(rows) == 2 * 128 * min(64, -(-keys // 8) * 8)


def test_a_gradient_whose_heads_do_not_lie_beside_each_other_is_copied_for_efficient_attention():
    q = torch.zeros(2, 3, 128, 8)
    out, statistics = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
    call = call_of(FLASH_CPU + "_backward", torch.zeros(2, 3, 128, 8), q, q, q, out, statistics, 0.0, False)
    copy, *_, main = run_model(call, H200)
    assert is_same(copy.operands[0], call["grad_out"])
    assert copy.operands[1] in main.operands
    assert not any(is_same(o, call["grad_out"]) for o in main.operands)


def test_cudnn_converts_sums_of_the_gradient_of_queries_in_blocks_of_32():
    q = torch.zeros(2, 4, 128, 64, dtype=torch.bfloat16)
    out, statistics = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
    call = call_of(FLASH_CPU + "_backward", torch.zeros_like(out), q, q, q, out, statistics, 0.0, False)
    *_, convert = run_model(call, H200)
    assert (convert.name, convert.grid) == ("attention_backward_convert", (4, 2, 4))
    assert_each_byte_written_once(convert, 1, call.outputs[0], WRITE)
