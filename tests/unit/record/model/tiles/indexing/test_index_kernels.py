"""Indexing kernels touch exactly what the run's indices name, and everything if there are no values of indices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import bytes_of, call_of, run_model
from tests.unit.record.model.tiles.reach import (
    H200,
    assert_reads,
    assert_writes,
    by_tile,
    elements,
    positions,
    tensors,
    tile_count,
)
from tileprof.record.model.tile_model import Scratch, pinned
from tileprof.record.model.tiles.foundations.sketch import scratch
from tileprof.trace.footprint import ATOMIC, READ, WRITE

TABLE = st.tuples(st.integers(1, 6), st.integers(1, 40), st.integers(1, 9))


def without_values(call):
    call.value = lambda _: None
    return call


def coverage(kernel, operand, mode):
    return {e for tile in by_tile(kernel, operand, mode) for e in tile}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_indexing_reads_the_elements_it_returns(data):
    shape = data.draw(TABLE)
    source = data.draw(tensors(shape))
    kinds = data.draw(st.lists(st.sampled_from(["none", "numbers", "numbers"]), min_size=1, max_size=3))
    if "numbers" not in kinds:
        kinds[0] = "numbers"
    common = data.draw(st.sampled_from([(7,), (3, 5), (1,), (4, 1)]))
    indices = [
        torch.randint(-shape[d], shape[d], common if data.draw(st.booleans()) else (1,)) if kind == "numbers" else None
        for d, kind in enumerate(kinds)
    ]
    call = call_of("aten::index.Tensor", source, indices)
    *copies, kernel = run_model(call, H200)
    assert all("contiguous" in copy.name for copy in copies)
    tile_count(kernel)
    out = call.outputs[0]
    assert_writes(kernel, out)
    assert_reads(kernel, out, call["self"], torch.ops.aten.index(positions(source), indices))


def test_indices_with_other_strides_are_copied_first_and_the_kernel_reads_the_copies():
    source, rows, columns = torch.rand(3, 600), torch.tensor([[1]]), torch.randint(0, 600, (1, 450))
    call = call_of("aten::index.Tensor", source, [rows, columns])
    copy, kernel = run_model(call, H200)

    [copied] = [o for o in copy.operands if isinstance(o, Scratch)]
    assert copied in kernel.operands
    rows_ref = call["indices"][0].ref
    assert [o.ref for o in copy.operands if not isinstance(o, Scratch)] == [rows_ref]
    assert rows_ref not in [o.ref for o in kernel.operands if not isinstance(o, Scratch)]
    assert _scratch_bytes(copy, copied, WRITE) == _scratch_bytes(kernel, copied, READ) == set(range(450 * 8))


def test_indices_with_the_same_strides_are_read_where_they_lie():
    source, rows, columns = torch.rand(3, 600), torch.randint(0, 3, (2, 5)), torch.randint(0, 600, (2, 5))
    [kernel] = run_model(call_of("aten::index.Tensor", source, [rows, columns]), H200)
    assert not any(isinstance(o, Scratch) for o in kernel.operands)


def test_nothing_is_searched_in_an_empty_mask_but_its_count_goes_to_the_host():
    kernels = run_model(call_of("aten::nonzero", torch.zeros(0, dtype=torch.bool)), H200)
    assert [k.name for k in kernels] == ["reduce<count_nonzero>", "memcpy<device to host>", "compact_init"]


def test_counts_of_calls_go_to_the_same_memory_of_the_host():
    copies = [run_model(call_of("aten::nonzero", torch.rand(5) > 0.5), H200)[1] for _ in range(2)]
    assert [copy.operands[1].library for copy in copies] == [pinned(4)] * 2


def test_a_mask_is_turned_into_positions_that_the_index_kernel_reads():
    source, mask = torch.rand(30, 90, 3), torch.rand(30, 90) > 0.5
    call = call_of("aten::index.Tensor", source, [mask])
    count, copied, _, select, coordinates, kernel = run_model(call, H200)
    assert (
        coverage(count, call["indices"][0], READ) == coverage(select, call["indices"][0], READ) == set(range(30 * 90))
    )
    assert copied.name == "memcpy<device to host>"
    assert_reads(kernel, call.outputs[0], call["self"], positions(source)[mask])
    [places] = {o for o in coordinates.operands if isinstance(o, Scratch)}
    written = {launch.name: _scratch_bytes(launch, places, WRITE) for launch in (select, coordinates)}
    assert written["select"] == set(range(int(mask.sum()) * 8))
    assert written["write_indices"] == _scratch_bytes(kernel, places, READ) == set(range(int(mask.sum()) * 2 * 8))


def _scratch_bytes(kernel, operand, mode):
    slot = kernel.operands.index(operand)
    tiles = range(kernel.footprint.tiles)
    return set().union(*(bytes_of(kernel.footprint, t, slot, mode) for t in tiles))


def test_nonzero_writes_behind_what_was_found_before():
    mask = torch.rand(70, 90) > 0.9
    call = call_of("aten::nonzero", mask)
    count_kernel, added_up, copied, _, select, coordinates = run_model(call, H200)
    assert [k.footprint.tiles for k in (count_kernel, added_up, copied, select)] == [2, 1, 1, 2]
    assert_writes(coordinates, call.outputs[0])
    at = torch.arange(mask.numel()).reshape(mask.shape)[mask]
    for tile in range(select.footprint.tiles):
        rows = torch.arange(len(at))[at // 4224 == tile]
        assert set(elements(select, call.outputs[0], tile, WRITE)) == set(
            positions(call.outputs[0])[rows, 0].flatten().tolist()
        )


def test_masked_selection_takes_the_elements_under_the_mask():
    x = torch.rand(70, 90)
    call = call_of("aten::masked_select", x, x > 0.5)
    *_, kernel = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], positions(x)[x > 0.5])


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_few_indices_are_gone_through_by_each_block(dim):
    source, index = torch.rand(12, 9, 33), torch.randint(0, 9, (5,))
    call = call_of("aten::index_select", source, dim, index)
    [kernel] = run_model(call, H200)
    total = source.numel() // source.shape[dim]
    assert kernel.grid == (-(-total // 128), 1, 1)
    assert_writes(kernel, call.outputs[0])
    assert coverage(kernel, call["self"], READ) == set(positions(source).index_select(dim, index).flatten().tolist())
    for tile in range(kernel.footprint.tiles):
        assert len(elements(kernel, call.outputs[0], tile, WRITE)) == 5 * min(128, total - 128 * tile)


def test_single_elements_are_selected_as_gather_does():
    call = call_of("aten::index_select", torch.rand(3000, 1), 0, torch.randint(0, 3000, (2500,)))
    [kernel] = run_model(call, H200)
    assert kernel.grid == (3, 1, 1)
    assert_writes(kernel, call.outputs[0])


def test_a_scatter_that_leaves_out_what_was_there_fills_over_it_first():
    index = torch.randint(0, 20, (50,))
    call = call_of("aten::scatter_reduce_.two", torch.rand(20), 0, index, torch.rand(50), "amax", include_self=False)
    fill, reduce = run_model(call, H200)
    assert coverage(fill, call.outputs[0], WRITE) == coverage(reduce, call.outputs[0], ATOMIC) == set(index.tolist())


def test_a_histogram_adds_to_all_bins_after_zeros_and_limits():
    call = call_of("aten::histc", torch.rand(5000), 30)
    zeros, limits, count = run_model(call, H200)
    assert_writes(zeros, call.outputs[0])
    assert coverage(limits, call["self"], READ) == coverage(count, call["self"], READ) == set(range(5000))
    assert all(set(elements(count, call.outputs[0], t, ATOMIC)) == set(range(30)) for t in range(3))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_index_select_reads_its_slices(dim):
    source = torch.rand(12, 9, 33)
    index = torch.randint(0, source.shape[dim], (17,))
    call = call_of("aten::index_select", source, dim, index)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], positions(source).index_select(dim, index))
    numbers = positions(index).reshape([-1 if d == dim else 1 for d in range(3)]).expand(call.outputs[0].shape)
    assert_reads(kernel, call.outputs[0], call["index"], numbers)


def test_an_embedding_is_a_block_a_token_where_rows_are_whole_vectors():
    table, tokens = torch.rand(50, 1200), torch.randint(0, 50, (3, 7))
    call = call_of("aten::embedding", table, tokens)
    [kernel] = run_model(call, H200)
    assert kernel.grid == (21, 2, 1)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["weight"], torch.nn.functional.embedding(tokens, positions(table)))
    assert_reads(kernel, call.outputs[0], call["indices"], positions(tokens)[..., None].expand(call.outputs[0].shape))


def test_dimensions_of_one_element_before_the_selected_one_do_not_count():
    source, index = torch.rand(1, 60, 8), torch.randint(0, 60, (40,))
    call = call_of("aten::index_select", source, -2, index)
    [kernel] = run_model(call, H200)
    assert kernel.grid == (40, 1, 1)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], positions(source).index_select(1, index))


def test_gather_takes_rows_where_its_index_is_one_number_a_row():
    source, numbers = torch.rand(60, 1, 8), torch.randint(0, 60, (40, 1, 1))
    call = call_of("aten::gather", source, 0, numbers.expand(40, 1, 8))
    [kernel] = run_model(call, H200)
    assert kernel.grid == (40, 1, 1)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], positions(source)[numbers.flatten()])


def test_without_values_every_tile_takes_the_whole_table():
    call = without_values(call_of("aten::embedding", torch.rand(50, 16), torch.randint(0, 50, (17,))))
    [kernel] = run_model(call, H200)
    assert kernel.coverage == "conservative"
    assert len(set(elements(kernel, call["weight"], 3, READ))) == 50 * 16
    assert_writes(kernel, call.outputs[0])


@pytest.mark.parametrize("count", [40, 3100])
def test_the_gradient_of_an_embedding_reaches_its_rows(count):
    tokens = torch.randint(0, 60, (count,))
    call = call_of("aten::embedding_dense_backward", torch.rand(count, 70), tokens, 64, 3, False)
    kernels = run_model(call, H200)
    [zeros] = [k for k in kernels if "zero_" in k.name]
    assert_writes(zeros, call.outputs[0])
    add = kernels[-1]
    mode = WRITE if count == 40 else ATOMIC
    rows = positions(call.outputs[0])[[r for r in tokens.unique().tolist() if r != 3]]
    assert coverage(add, call.outputs[0], mode) == set(rows.flatten().tolist())
    every_row = positions(call["grad_output"])
    row_numbers = (
        every_row[tokens != 3] if count == 40 else every_row
    )  # sorted rows are added up before their row is known
    assert coverage(add, call["grad_output"], READ) == set(row_numbers.flatten().tolist())
    for written, read in zip(by_tile(add, call.outputs[0], mode), by_tile(add, call["grad_output"]), strict=True):
        assert not written or {e % 70 for e in written} == {e % 70 for e in read}


def test_index_put_writes_where_the_indices_say():
    target, index = torch.rand(30, 40), torch.randint(0, 30, (50,))
    call = call_of("aten::index_put_", target, [index], torch.rand(50, 40))
    kernel = run_model(call, H200)[-1]
    mode = WRITE
    rows = positions(target)[index]
    at = positions(call["values"])
    for tile in range(kernel.footprint.tiles):
        mine = torch.isin(at, torch.tensor(elements(kernel, call["values"], tile)))
        assert set(elements(kernel, call.outputs[0], tile, mode)) == set(rows[mine].tolist())
    assert coverage(kernel, call["values"], READ) == set(at.flatten().tolist())


ADDED = {
    "short rows": ((30, 24), lambda n: [torch.randint(0, n, (40,))]),
    "long rows": ((30, 300), lambda n: [torch.randint(0, n, (40,))]),
    "single numbers": ((30,), lambda n: [torch.randint(-n, n, (700,))]),
    "a middle dimension": ((3, 30, 40), lambda n: [None, torch.randint(0, n, (25,))]),
    "two indices": ((30, 5, 7), lambda n: [torch.randint(0, n, (25,)), torch.randint(0, 5, (25,))]),
}
"""Shapes of targets, and indices into their dimension of ``n``."""


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ADDED)
def test_a_warp_adds_up_all_values_of_an_index(kind, transposed):
    shape, indices = ADDED[kind]
    target, index = torch.rand(shape), indices(30)
    values = torch.rand(target[tuple(slice(None) if i is None else i for i in index)].shape)
    values = values.mT.contiguous().mT if transposed and values.dim() > 1 else values
    call = call_of("aten::index_put_", target, index, values, True)
    *before, kernel = run_model(call, H200)
    copied = transposed and values.dim() > 1
    source = scratch(61, *values.shape) if copied else call["values"]
    at = positions(torch.empty(values.shape))
    rows = positions(target)[tuple(slice(None) if i is None else i for i in index)].reshape(values.shape)
    for tile in range(kernel.footprint.tiles):
        mine = torch.isin(at, torch.tensor(elements(kernel, source, tile), dtype=torch.int64))
        written = set(elements(kernel, call.outputs[0], tile, WRITE))
        assert written == set(rows[mine].tolist()) == set(elements(kernel, call.outputs[0], tile, READ))
        assert set(rows[~mine].tolist()).isdisjoint(written), "another tile adds to the same number"
    assert coverage(kernel, source, READ) == set(at.flatten().tolist())
    names = [k.name.partition("<")[0] for k in before]
    checks = ["reduce", "vectorized_elementwise", "assert_async"] * 2
    assert names[:6] == checks
    assert names.count("assert_async") == 2 * sum(i is not None for i in index)
    assert ("elementwise<contiguous>" in [k.name for k in before]) == copied


def test_unsafe_additions_are_not_checked():
    call = call_of("aten::_unsafe_index_put", torch.rand(9, 4), [torch.tensor([3, 1])], torch.rand(2, 4), True)
    assert not any(k.name in {"assert_async", "reduce<max>"} for k in run_model(call, H200))


def test_indices_that_do_not_lie_side_by_side_are_gathered():
    index = torch.randint(0, 50, (2, 128, 7))[:, :, 0]
    call = call_of("aten::embedding", torch.rand(50, 64), index)
    [kernel] = run_model(call, H200)
    assert kernel.grid == (2 * 128 * 64 // 1024, 1, 1)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["weight"], positions(call["weight"])[index].reshape(2, 128, 64))


def test_broadcast_indices_of_an_embedding_are_copied_first():
    index = torch.randint(0, 50, (128,)).expand(2, 128)
    call = call_of("aten::embedding", torch.rand(50, 64), index)
    copy, kernel = run_model(call, H200)
    assert_reads(copy, scratch(80, 2, 128, itemsize=8), call["indices"], positions(index))
    assert kernel.grid == (256, 1, 1)
    assert_reads(kernel, call.outputs[0], call["weight"], positions(call["weight"])[index].reshape(2, 128, 64))


def test_index_put_of_a_number_under_a_mask_is_a_masked_fill():
    target = torch.rand(30, 40)
    call = call_of("aten::index_put_", target, [target > 0.5], torch.tensor(0.0))
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("op", ["index_add", "index_copy"])
def test_index_add_updates_the_slices_it_names(op, dim):
    target = torch.rand(30, 40)
    index = torch.randperm(target.shape[dim])[:20]
    source = torch.rand(20, 40) if dim == 0 else torch.rand(30, 20)
    call = call_of(f"aten::{op}", target, dim, index, source)
    copy, kernel = run_model(call, H200)
    assert_writes(copy, call.outputs[0])
    mode = ATOMIC if op == "index_add" else WRITE
    where = positions(call.outputs[0]).index_select(dim, index)
    at = positions(source)
    for tile in range(kernel.footprint.tiles):
        mine = torch.isin(at, torch.tensor(elements(kernel, call["source"], tile)))
        assert set(elements(kernel, call.outputs[0], tile, mode)) == set(where[mine].tolist())
    assert coverage(kernel, call["source"], READ) == set(at.flatten().tolist())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_reads_the_elements_the_index_names(dim):
    source = torch.rand(20, 30, 5).transpose(0, 1)
    index = torch.randint(0, source.shape[dim], (20, 11, 4))
    call = call_of("aten::gather", source, dim, index)
    [kernel] = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    assert_reads(kernel, call.outputs[0], call["self"], positions(source).gather(dim, index))
    assert_reads(kernel, call.outputs[0], call["index"], positions(index))


@pytest.mark.parametrize("op", ["scatter.src", "scatter_add", "scatter.value"])
def test_scatter_writes_the_elements_the_index_names(op):
    target, index = torch.rand(40, 30), torch.randint(0, 40, (60, 20))
    source = 1.0 if op.endswith("value") else torch.rand(64, 25)
    call = call_of(f"aten::{op}", target, 0, index, source)
    copy, kernel = run_model(call, H200)
    assert_writes(copy, call.outputs[0])
    mode = ATOMIC if op == "scatter_add" else WRITE
    where = positions(target).gather(0, index)
    at = positions(index)
    for tile in range(kernel.footprint.tiles):
        mine = torch.isin(at, torch.tensor(elements(kernel, call["index"], tile)))
        assert set(elements(kernel, call.outputs[0], tile, mode)) == set(where[mine].tolist())
        if not op.endswith("value"):
            assert set(elements(kernel, call["src"], tile)) == set(positions(source)[:60, :20][mine].tolist())


def test_gather_without_values_is_conservative():
    call = without_values(call_of("aten::gather", torch.rand(5, 6), 1, torch.zeros(5, 2, dtype=torch.int64)))
    [kernel] = run_model(call, H200)
    assert (kernel.coverage, len(elements(kernel, call["self"], 0))) == ("conservative", 30)


def test_numbers_are_repeated_as_often_as_they_say():
    repeats = torch.randint(0, 5, (100,))
    call = call_of("aten::repeat_interleave.Tensor", repeats)
    _, kernel = run_model(call, H200)
    assert_writes(kernel, call.outputs[0])
    for tile in range(kernel.footprint.tiles):
        written = torch.tensor(elements(kernel, call.outputs[0], tile, WRITE), dtype=torch.int64)
        assert set(torch.repeat_interleave(repeats)[written].tolist()) <= set(elements(kernel, call["repeats"], tile))
