"""Kernels whose accesses are known by construction, byte for byte at the granule; and the limits of a recording."""

import pytest

from tileprof.record.cuda.installation import gpu, selftest
from tileprof.trace import load, validate


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return selftest.program(tmp_path_factory.mktemp("selftest"), gpu.gpus()[0].architecture)


@pytest.mark.parametrize("granule", [1, 4, 32, 512])
def test_every_instruction_class_is_seen_exactly(record, program, granule):
    result = record(program, passes=("accesses",), granule=granule, verify=True)
    assert result.code == 0
    assert "copied right" in result.output
    trace = load(result.path)
    assert validate(trace) == []
    different, comparisons = selftest.compare(trace, selftest.buffers(result.output))
    assert different == []
    assert len(comparisons) == 16
    assert ", 0 of them outside every recorded write" in result.messages


def test_writes_through_tensor_maps_are_exact_where_blocks_are_static_and_inferred_where_they_take_turns(
    record, program
):
    trace = load(record(program, passes=("accesses",)).path)
    coverage = {k.partition("(")[0]: c for k, c in zip(trace.launches.kernel, trace.launches.coverage, strict=True)}
    assert coverage["copy_tensor"] == coverage["copy_tensor_clusters"] == "exact"
    assert coverage["copy_tensor_dynamic"] == "inferred"


def test_without_replays_nothing_is_called_exact_that_is_not(record, program):
    trace = load(record(program, passes=("accesses",), replay=False).path)
    coverage = {k.partition("(")[0]: c for k, c in zip(trace.launches.kernel, trace.launches.coverage, strict=True)}
    assert coverage["copy_tensor"] != "exact"


def test_kernels_can_be_chosen_by_name_and_number(record, program):
    names = load(
        record(program, passes=("accesses",), kernel="copy_", exclude="tensor", skip=1, count=3).path
    ).launches.kernel
    assert [n for n in names if "memcpy" not in n and "memset" not in n] == [
        f"void copy_plain<{t}>({t} const*, {t}*)" for t in ("unsigned short", "unsigned int", "uint2")
    ]


def test_block_times_lie_within_the_launch_and_on_the_chip(record, program):
    trace = load(record(program, passes=("blocks",)).path)
    assert validate(trace) == []
    times = trace.times
    assert len(times) == trace.launches.tiles[trace.launches.registers > 0].sum()
    assert (times.end_ns > times.begin_ns).all()
    assert times.sm.between(0, trace.device.sms - 1).all()


def test_a_full_arena_is_reported_and_stays_a_superset(record, golden):
    result = record(*golden("gemm_fp32"), passes=("accesses",), arena_bytes=1 << 16, verify=True)
    trace = load(result.path)
    assert "conservative" in set(trace.launches.coverage)
    assert trace.launches.note.str.contains("arena was full").any()
    assert ", 0 of them outside every recorded write" in result.messages


def test_a_failing_program_keeps_its_exit_code_and_leaves_a_trace(record, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import sys, torch\nprint(torch.ones(8, device='cuda').sum().item())\nsys.exit(7)\n")
    result = record("python3", script, passes=("accesses",))
    assert (result.code, result.output) == (7, "8.0\n")
    assert len(load(result.path).launches) > 0
