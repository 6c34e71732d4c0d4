"""PyTorch programs do not change, every changed byte is recorded, and names are right."""

import pytest

from tileprof.trace import load, validate

EAGER = ("gemm_pair", "gemm_fp32", "layer_norm", "softmax", "attention", "convolution", "gpt2")


@pytest.mark.parametrize("name", EAGER)
def test_every_byte_that_changed_is_in_a_recorded_write_and_results_are_untouched(record, golden, plain, name):
    result = record(*golden(name), capture_only=True, verify=True, passes=("accesses",))
    assert result.output == plain(*golden(name))
    trace = load(result.path)
    assert validate(trace) == []
    assert "write check" not in result.messages or ", 0 of them outside every recorded write" in result.messages
    assert "conservative" not in set(trace.launches.coverage)


def test_a_cublas_gemm_is_written_in_disjoint_rectangles_that_cover_the_result(record, golden):
    trace = load(record(*golden("gemm_pair"), capture_only=True, passes=("accesses",)).path)
    for launch in range(2):
        boxes = trace.footprint(int(trace.launches.footprint[launch])).boxes
        writes = boxes.take(boxes.mode == 1)
        assert trace.launches.coverage[launch] == "exact"
        area = (writes.length * writes.count_0 * writes.count_1).sum()
        assert area == (256 * 1024 * 2, 256 * 512 * 2)[launch]


def test_the_same_model_eager_and_in_a_graph_touches_the_same_bytes(record, golden):
    result = record(*golden("gpt2_graph"), capture_only=True)
    trace = load(result.path)
    assert validate(trace) == []
    launches = trace.launches
    assert (launches.graph == 0).sum() > 30
    assert "conservative" not in set(launches.coverage)
    norms = launches[launches.kernel.str.contains("layer_norm")]
    assert norms.footprint.nunique() == 1, "layer norms of all layers touch the same bytes relative to their operands"
    assert (launches.op[launches.kernel.str.contains("nvjet")] == "aten::addmm").all()
    assert (launches.duration_ns[launches.kernel.str.contains("nvjet")] > 1000).all()


def test_operators_modules_and_parameters_have_names(record, golden):
    trace = load(record(*golden("gpt2"), capture_only=True, passes=("accesses", "time")).path)
    launches = trace.launches
    assert "h.1.mlp.c_fc" in set(launches.module)
    assert launches.op[launches.module == "ln_f"].tolist() == ["aten::native_layer_norm"]
    names = set(trace.buffers.name[trace.buffers.kind == "parameter"])
    assert {"wte.weight", "h.0.attn.c_attn.weight", "ln_f.bias"} <= names
    assert launches.footprint.nunique() < len(launches) * 0.6, "the second layer repeats the first"


def test_compiled_programs_are_recorded_and_stay_compiled(record, golden):
    trace = load(record(*golden("gpt2_compiled"), capture_only=True, passes=("accesses", "time")).path)
    assert validate(trace) == []
    assert trace.launches.kernel.str.startswith("triton_").sum() > 5
    assert "conservative" not in set(trace.launches.coverage)
