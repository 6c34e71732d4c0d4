"""Grouped matrix products: each group is a product of its own, whatever its size."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import (
    all_bytes,
    assert_each_byte_written_once,
    bytes_of,
    call_of,
    element_bytes,
    is_same,
    operand_of,
    run_model,
)
from tileprof.devices import get
from tileprof.record.model.tile_model import Call, Operand
from tileprof.record.model.tiles.foundations import overrides
from tileprof.trace.footprint import READ, WRITE
from tileprof.trace.sources import TimeSource

H200 = get("H200")


def grouped_call(a_shape, b_shape, d_shape, sizes, dtype):
    """Return a call of `_grouped_mm` whose groups have these sizes."""
    tensors = [torch.zeros(s, dtype=dtype) for s in (a_shape, b_shape, d_shape)]
    offs = torch.tensor(np.cumsum(sizes), dtype=torch.int32)
    a, b, d, ends = (operand_of(t, ref) for ref, t in enumerate((*tensors, offs)))
    return Call(
        "aten::_grouped_mm", {"self": a, "mat2": b, "offs": ends, "bias": None}, (d,), (a, b, ends, d), lambda _: offs
    )


@pytest.mark.parametrize("sizes", [[3, 0, 5], [0, 9], [4]])
@pytest.mark.parametrize("grouped", ["m", "n", "k"])
def test_other_types_are_a_product_per_group_behind_a_copy_to_the_host(sizes, grouped):
    groups, total = len(sizes), sum(sizes)
    full = {"m": 16, "n": 8, "k": 24} | {grouped: total}
    a_shape = (full["m"], full["k"]) if grouped != "n" else (groups, full["m"], full["k"])
    b_shape = (full["k"], full["n"]) if grouped != "m" else (groups, full["k"], full["n"])
    d_shape = (groups, full["m"], full["n"]) if grouped == "k" else (full["m"], full["n"])
    call = grouped_call(a_shape, b_shape, d_shape, sizes, torch.float32)
    a, b, (d,) = call["self"], call["mat2"], call.outputs
    copy, *products = run_model(call, H200)
    assert copy.name == "memcpy<device to host>"
    assert is_same(copy.operands[0], call["offs"])
    reads, writes = ({side: [] for side in (a.ref, b.ref, d.ref)} for _ in range(2))
    for kernel in products:
        for slot, operand in enumerate(kernel.operands):
            if isinstance(operand, Operand):
                for ways, mode in ((reads, READ), (writes, WRITE)):
                    touched = [bytes_of(kernel.footprint, t, slot, mode) for t in range(kernel.footprint.tiles)]
                    ways[operand.ref].append(set().union(*touched))
    edges = [0, *np.cumsum(sizes)]
    own = [range(low, high) for low, high in pairwise(edges)]
    filled = [g for g, rows in enumerate(own) if rows]
    of_rows = {"m": lambda g: [(i,) for i in own[g]], "n": lambda g: [(g,)], "k": lambda _: [()]}[grouped]
    of_a = [{(*lead, *rest) for lead in of_rows(g) for rest in np.ndindex(*a_shape[len(lead) :])
             if grouped != "k" or rest[-1] in own[g]} for g in filled]  # fmt: skip
    assert [r for r in reads[a.ref] if r] == [element_bytes(a, cells) for cells in of_a]
    every = [set(w) for w in writes[d.ref] if w]
    assert set().union(*every) == all_bytes(d), "results of empty groups are zeros"
    assert sum(map(len, every)) == len(all_bytes(d)), "no two groups share results"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=4),
    st.sampled_from(["m", "n", "k"]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_every_group_reads_its_own_operands(sizes, grouped, tile_m, tile_n, tile_k):
    groups, total = len(sizes), sum(sizes)
    if total == 0:
        return
    full = {"m": 16, "n": 8, "k": 16} | {grouped: total}
    a_shape = (full["m"], full["k"]) if grouped != "n" else (groups, full["m"], full["k"])
    b_shape = (full["k"], full["n"]) if grouped != "m" else (groups, full["k"], full["n"])
    d_shape = (groups, full["m"], full["n"]) if grouped == "k" else (full["m"], full["n"])
    call = grouped_call(a_shape, b_shape, d_shape, sizes, torch.bfloat16)
    a, b, (d,) = call["self"], call["mat2"], call.outputs
    with overrides.override(f"gemm={tile_m}x{tile_n}x{tile_k}"):
        _, kernel = run_model(call, H200)
    cells = list(np.ndindex(*d_shape))
    ends = np.cumsum(sizes)
    for t in range(kernel.footprint.tiles):
        written = bytes_of(kernel.footprint, t, 2, WRITE)
        own = [c for c in cells if element_bytes(d, [c]) <= written]
        needed_a, needed_b = set(), set()
        for *g, i, j in own:
            group = g[0] if g else int(np.searchsorted(ends, i if grouped == "m" else j, side="right"))
            depth = range(ends[group] - sizes[group], ends[group]) if grouped == "k" else range(full["k"])
            needed_a |= {((group, i, k) if grouped == "n" else (i, k)) for k in depth}
            needed_b |= {((group, k, j) if grouped == "m" else (k, j)) for k in depth}
        assert bytes_of(kernel.footprint, t, 0) == element_bytes(a, needed_a)
        assert bytes_of(kernel.footprint, t, 1) == element_bytes(b, needed_b)
    assert_each_byte_written_once(kernel, 2, d, WRITE)


def test_a_real_call_uses_the_routing_of_its_tokens():
    a, b = torch.zeros(10, 16, dtype=torch.bfloat16), torch.zeros(3, 16, 24, dtype=torch.bfloat16)
    call = call_of("aten::_grouped_mm", a, b, torch.tensor([2, 2, 10], dtype=torch.int32))
    with overrides.override("gemm=4x24x16"):
        prepare, kernel = run_model(call, H200)
    assert kernel.grid == (3, 1, 1)
    assert bytes_of(prepare.footprint, 0, 0, READ) == set(range(3 * 4))  # the ends of groups
    assert prepare.operands[1] == kernel.operands[3]
    written = bytes_of(prepare.footprint, 0, 1, WRITE)
    assert all(bytes_of(kernel.footprint, tile, 3) == written for tile in range(3))
    assert bytes_of(kernel.footprint, 0, 0) == set(range(2 * 16 * 2))
    assert bytes_of(kernel.footprint, 1, 1) == set(range(2 * 16 * 24 * 2, 3 * 16 * 24 * 2))
    assert kernel.flops == 2 * 10 * 16 * 24


@pytest.mark.parametrize(("rows", "tiles"), [(256, 2 * 2 * 2), (514, 2 * 3)])
def test_the_tile_on_an_h200_follows_the_mean_group(rows, tiles):
    a, b = torch.zeros(rows, 16, dtype=torch.bfloat16), torch.zeros(2, 16, 256, dtype=torch.bfloat16)
    call = call_of("aten::_grouped_mm", a, b, torch.tensor([rows // 2, rows], dtype=torch.int32))
    _, kernel = run_model(call, H200)
    assert kernel.grid == (tiles, 1, 1)


def test_times_are_those_of_products_with_as_many_groups_that_are_not_empty():
    a, b = torch.zeros(1024, 1024, dtype=torch.bfloat16), torch.zeros(32, 1024, 768, dtype=torch.bfloat16)
    even, half = torch.arange(32, 1025, 32), torch.arange(64, 1025, 64).repeat_interleave(2)
    total = {}
    for name, ends in (("even", even), ("half", half)):
        launched = run_model(call_of("aten::_grouped_mm", a, b, ends.to(torch.int32)), H200)
        assert {k.time_source for k in launched} == {TimeSource.INTERPOLATED}
        assert 1000 < launched[0].launch_ns < 2500
        total[name] = sum(k.launch_ns for k in launched)
    assert 20_000 < total["even"] < 30_000  # 26.2 us in Qwen3-MoE on an H200
    assert total["half"] < total["even"], "experts without tokens are not read"


@pytest.mark.parametrize("device", ["meta"])
def test_unknown_sizes_make_a_conservative_launch(device):
    a, b = (
        torch.zeros(10, 16, dtype=torch.bfloat16, device=device),
        torch.zeros(3, 16, 24, dtype=torch.bfloat16, device=device),
    )
    call = call_of("aten::_grouped_mm", a, b, torch.zeros(3, dtype=torch.int32, device=device))
    call.value = lambda _: None
    (kernel,) = run_model(call, H200)
    assert kernel.coverage == "conservative"
    assert "fake" in kernel.note
