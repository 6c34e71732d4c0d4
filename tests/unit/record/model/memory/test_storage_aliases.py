"""Memory that several storages share, memory that moves, and memory that only has the same address."""

import gc

import numpy as np
import pytest
import torch
from torch.utils import dlpack

from tileprof.analysis import build_graph


def _raw(trace, *, through=()):
    """Return ``(producer, consumer)`` operators of every RAW link by short name.

    ``through`` are launches that pass data on.
    """
    ops = [op.partition("::")[2].partition(".")[0] for op in trace.launches.op]
    links = build_graph(trace).links
    links = links[links.hazard == "RAW"]
    direct = {(p, c) for p, c in zip(links.producer, links.consumer, strict=True)}
    while True:
        more = {(p, c) for p, m in direct for n, c in direct if m == n and ops[m] in through} - direct
        if not more:
            return {(ops[p], ops[c]) for p, c in direct}
        direct |= more


def _hazards(trace):
    ops = [op.partition("::")[2].partition(".")[0] for op in trace.launches.op]
    links = build_graph(trace).links
    return {(ops[p], ops[c], h) for p, c, h in zip(links.producer, links.consumer, links.hazard, strict=True)}


ROUND_TRIPS = {
    "from_numpy": lambda a: torch.from_numpy(a.numpy()),
    "asarray": lambda a: torch.asarray(a.numpy()),
    "as_tensor": lambda a: torch.as_tensor(a.numpy()),
    "frombuffer": lambda a: torch.frombuffer(a.numpy(), dtype=torch.float32),
    "capsule": lambda a: dlpack.from_dlpack(dlpack.to_dlpack(a)),
    "from_dlpack": torch.from_dlpack,
}


@pytest.mark.parametrize("way", ROUND_TRIPS)
def test_a_tensor_that_left_pytorch_and_came_back_is_the_same_memory(trace_of, way):
    def read():
        a = torch.randn(64) * 2
        b = ROUND_TRIPS[way](a)
        return b + 1

    def write_flags():
        a = torch.randn(64) * 2
        b = ROUND_TRIPS[way](a)
        b.mul_(3)
        return a + 1

    assert ("mul", "add") in _raw(trace_of(read))
    assert {("mul", "mul_"), ("mul_", "add")} <= _raw(trace_of(write_flags))


@pytest.mark.parametrize("way", ROUND_TRIPS)
def test_a_tensor_made_before_the_recording_is_found_under_either_storage(trace_of, way):
    a = torch.ones(64)

    def program():
        b = ROUND_TRIPS[way](a)
        b.mul_(2)
        (a + 1).neg()

    assert ("mul_", "add") in _raw(trace_of(program))


def test_a_slice_of_an_array_is_part_of_it(trace_of):
    def program():
        n = np.ones(64, np.float32)
        a = torch.from_numpy(n)
        b = torch.from_numpy(n[8:])
        a.mul_(2)
        return b + 1

    trace = trace_of(program)
    assert ("mul_", "add") in _raw(trace)
    assert 8 * 4 in trace.operands_of(1)[1].tolist()


def test_a_part_of_a_bytearray_is_part_of_it(trace_of):
    def program():
        buffer = bytearray(256)
        a = torch.frombuffer(buffer, dtype=torch.float32)
        b = torch.frombuffer(buffer, dtype=torch.float32, offset=64)
        a.add_(1)
        return b * 2

    assert ("add_", "mul") in _raw(trace_of(program))


def test_disjoint_parts_of_an_array_do_not_depend_on_each_other(trace_of):
    def program():
        n = np.ones(64, np.float32)
        whole, low, high = (torch.from_numpy(x) for x in (n, n[:32], n[32:]))
        low.mul_(2)
        high.add_(1)
        whole.neg()

    assert _raw(trace_of(program)) == {("mul_", "neg"), ("add_", "neg")}


@pytest.mark.parametrize("used_before", [False, True])
def test_the_whole_seen_after_its_parts_depends_on_them(trace_of, used_before):
    """Buffers that no launch touched simply grow; for the others the trace says that it counts more memory than there
    is.
    """

    def program():
        n = np.ones(64, np.float32)
        low = torch.from_numpy(n[:40])
        if used_before:
            low.mul_(2)
        high = torch.from_numpy(n[24:])
        if used_before:
            high.add_(1)
        whole = torch.from_numpy(n)
        whole.exp_()
        low.neg()
        high.sin()

    trace = trace_of(program)
    raw = _raw(trace, through=("same_memory",))
    assert {("exp_", "neg"), ("exp_", "sin")} <= raw
    if used_before:
        assert {("mul_", "add_"), ("mul_", "exp_"), ("add_", "exp_")} <= raw
        assert set(trace.launches.coverage[trace.launches.op == "tileprof::same_memory"]) == {"conservative"}
    else:
        assert "tileprof::same_memory" not in set(trace.launches.op)


def test_a_write_to_the_whole_waits_for_earlier_reads_of_a_part(trace_of):
    def program():
        n = np.ones(64, np.float32)
        part = torch.from_numpy(n[8:40])
        part.neg()
        torch.from_numpy(n).exp_()

    hazards = _hazards(trace_of(program))
    assert ("neg", "same_memory", "WAR") in hazards
    assert {("same_memory", "exp_", "RAW"), ("same_memory", "exp_", "WAW")} & hazards


def test_parts_and_whole_of_unseen_memory_in_one_operator_share_a_buffer(trace_of):
    n = np.ones(64, np.float32)
    parts = [torch.from_numpy(n[16:32]), torch.from_numpy(n[24:40]), torch.from_numpy(n)]

    def program():
        torch.cat(parts)
        parts[2].mul_(2)
        torch.cat(parts)

    trace = trace_of(program)
    assert _raw(trace) == {("mul_", "cat")}
    assert len(set(trace.operands_of(1)[0].tolist()) | set(trace.operands_of(0)[0].tolist())) == 2


def test_parts_that_join_step_by_step_in_one_operator_depend_on_earlier_writes(trace_of):
    n = np.ones(64, np.float32)
    parts = [torch.from_numpy(n[8 * i : 8 * i + 16]) for i in range(0, 7, 2)]
    joints = [torch.from_numpy(n[8 * i : 8 * i + 16]) for i in range(1, 6, 2)]

    def program():
        for part in parts:
            part.mul_(2)
        torch.cat(joints)

    assert ("mul_", "cat") in _raw(trace_of(program), through=("same_memory",))


def test_array_memory_that_was_written_to_is_known_again_after_its_tensors_died(trace_of):
    n = np.ones(64, np.float32)

    def program():
        torch.from_numpy(n).mul_(2)
        gc.collect()
        torch.from_numpy(n[4:]).add(1)

    trace = trace_of(program)
    assert ("mul_", "add") in _raw(trace)
    assert any("used again" in note for note in trace.manifest["notes"])


def test_memory_given_back_by_operators_stays_separate_at_the_same_address(trace_of):
    def program():
        for _ in range(4):
            a = torch.ones(4096) * 2
            a.neg_()
            del a

    trace = trace_of(program)
    ops = list(trace.launches.op)
    links = build_graph(trace).links
    firsts = [n for n, op in enumerate(ops) if op == "aten::ones"]
    for row in links[links.hazard == "RAW"].itertuples():
        assert sum(first <= row.producer for first in firsts) == sum(first <= row.consumer for first in firsts)


def test_new_memory_where_an_array_was_is_a_buffer_of_its_own(trace_of):
    """Retried until malloc returns the array's address again."""
    met_storages = []

    def program():
        for _ in range(64):
            n = np.ones(4096, np.float32)
            a = torch.from_numpy(n)
            a.mul_(2)
            address = a.data_ptr()
            del a, n
            b = torch.empty(4096)
            met_storages.append(b.data_ptr() == address)
            b.neg_()

    trace = trace_of(program)
    if not any(met_storages):
        pytest.skip("malloc did not reuse an address")
    assert ("mul_", "neg_") not in _raw(trace)


def test_arrays_that_are_only_read_are_given_back(trace_of):
    def program():
        for _ in range(3):
            torch.from_numpy(np.ones(1024, np.float32)).neg()

    trace = trace_of(program)
    inputs = trace.buffers[trace.buffers.kind == "input"]
    assert len(inputs) == 3
    assert (inputs.freed_at >= 0).all()


def _resized_tensor():
    a = torch.ones(16) * 3
    a.resize_(32)
    return a[:16] + 1


def _resized_storage():
    a = torch.ones(16) * 3
    a.untyped_storage().resize_(256)
    return a + 1


def _shrunk_storage():
    a = torch.ones(16) * 3
    a.untyped_storage().resize_(32)
    return a[:8] + 1


@pytest.mark.parametrize("program", [_resized_tensor, _resized_storage, _shrunk_storage])
@pytest.mark.parametrize("fake", [False, True])
def test_a_resized_storage_keeps_what_was_written_to_it(trace_of, program, fake):
    trace = trace_of(program, fake=fake)
    assert _raw(trace) >= {("mul", "resize_"), ("resize_", "add")}
    free_times = trace.buffers.freed_at[trace.operands_of(list(trace.launches.op).index("aten::resize_"))[0]]
    assert list(trace.launches.op).index("aten::resize_") + 1 in free_times.tolist()


def test_an_output_that_grows_under_an_input_is_copied_first(trace_of):
    """The output lies behind the input in one storage, and grows beyond its end."""

    def program():
        whole = torch.ones(16) * 3
        u, t = whole[12:14], whole[:8]
        with pytest.warns(UserWarning, match="resized"):
            torch.add(t, 1, out=u)
        return u.neg()

    assert _raw(trace_of(program)) == {("ones", "mul"), ("mul", "resize_"), ("resize_", "add"), ("add", "neg")}


def test_a_storage_emptied_and_filled_again_has_no_old_contents(trace_of):
    def program():
        a = torch.ones(16) * 3
        a.untyped_storage().resize_(0)
        a.detach()  # makes the recorder see the empty storage
        b = torch.ones(4).neg()
        a.untyped_storage().resize_(64)
        a.add_(b.sum())

    raw = _raw(trace_of(program))
    assert ("sum", "add_") in raw
    assert not any(producer == "mul" for producer, _ in raw)


def test_arrays_that_an_in_place_operator_only_reads_are_given_back(trace_of):
    def program():
        x = torch.zeros(1024)
        for _ in range(3):
            x.add_(torch.from_numpy(np.ones(1024, np.float32)))

    inputs = trace_of(program).buffers.query("kind == 'input'")
    assert len(inputs) == 3
    assert (inputs.freed_at >= 0).all()


def test_a_parameter_that_is_resized_stays_a_parameter(trace_of):
    def program():
        layer = torch.nn.Linear(4, 4, bias=False)
        layer(torch.ones(2, 4))
        layer.weight.data.untyped_storage().resize_(256)
        layer(torch.ones(2, 4))

    buffers = trace_of(program).buffers
    names = buffers.name[buffers.kind == "parameter"].tolist()
    assert len(names) == 2
    assert len(set(names)) == 1


def test_the_copy_of_a_resized_storage_is_kept_whatever_the_module(trace_of):
    class Scale(torch.nn.Module):
        def forward(self, x):
            return x * 3

    def program():
        x = Scale()(torch.ones(16))
        x.resize_(64)
        Scale()(x[:16])

    assert _raw(trace_of(program, module="Scale")) == {("mul", "resize_"), ("resize_", "mul")}
