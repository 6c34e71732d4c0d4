"""Traces that a GPU recorded are valid, covered, and agree with what their programs are known to do."""

from pathlib import Path

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.record.cuda.decode import Decoder
from tileprof.record.cuda.installation import selftest
from tileprof.record.cuda.records import raw
from tileprof.trace import READ, WRITE, TraceWriter, load, validate

GOLDEN = Path(__file__).parents[3] / "golden"
TRACES = sorted(GOLDEN.glob("**/*.tileprof"))


def golden(name):
    path = GOLDEN / f"{name}.tileprof"
    return load(path) if path.exists() else pytest.skip(f"{path.name} was not recorded")


def written_bytes(trace, launch, mode=WRITE):
    """Return ``{tile: set of 32-byte granules}`` that a launch touches in a mode."""
    tiles = {}
    for tile, m, granule in selftest.granules(trace, launch, 32):
        if m == mode:
            tiles.setdefault(tile, set()).add(granule)
    return tiles


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.stem)
def test_a_golden_trace_is_valid_measured_and_nowhere_conservative(path):
    trace = load(path)
    assert validate(trace) == []
    assert trace.complete
    assert "H200" in trace.device.name
    assert "conservative" not in set(trace.launches.coverage)
    kernels = trace.launches[trace.launches.timing == "measured"]
    assert (kernels.duration_ns > 0).all()
    assert (kernels.registers > 0).all()
    assert len(trace.times) == kernels.tiles.sum()


def test_the_tiles_of_a_bf16_gemm_write_disjoint_rectangles_that_cover_the_result():
    trace = golden("gemm_pair")
    for launch, (rows, columns) in enumerate([(256, 1024), (256, 512)]):
        tiles = list(written_bytes(trace, launch).values())
        assert len(set().union(*tiles)) == sum(map(len, tiles)) == rows * columns * 2 // 32
        for granules in tiles:
            row, column = np.divmod(np.array(sorted(granules)) - min(set().union(*tiles)), columns * 2 // 32)
            assert len(granules) == len(set(row.tolist())) * len(set(column.tolist()))


def test_the_second_gemm_reads_all_that_the_first_writes():
    trace = golden("gemm_pair")
    result = set().union(*written_bytes(trace, 0).values())
    assert result <= set().union(*written_bytes(trace, 1, READ).values())
    assert not result & set().union(*written_bytes(trace, 1).values())


def test_a_block_of_layer_norm_reads_and_writes_its_own_row():
    trace = golden("layer_norm")
    first, second = written_bytes(trace, 0), written_bytes(trace, 1, READ)
    assert len(first) == 128
    rows = {tile: {g for g in granules if g in first[tile]} for tile, granules in second.items()}
    assert all(rows[tile] == {g for g in first[tile] if g in second[tile]} for tile in first)
    assert sum(map(len, rows.values())) == 128 * 1024 * 2 // 32


def test_layers_of_a_model_share_footprints_and_carry_names():
    trace = golden("gpt2")
    launches = trace.launches
    norms = launches[launches.op == "aten::native_layer_norm"]
    assert norms.module.tolist() == ["h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "h.1.ln_2", "ln_f"]
    assert norms.footprint.nunique() == 1
    assert "wte.weight" in set(trace.buffers.name)


def test_nodes_of_a_graph_carry_the_names_they_were_captured_under_and_layers_share_footprints():
    trace = golden("gpt2_graph")
    launches = trace.launches
    assert set(launches.graph) == {0}
    norms = launches[launches.kernel.str.contains("layer_norm")]
    assert norms.module.tolist() == ["h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "h.1.ln_2", "ln_f"]
    assert norms.footprint.nunique() == 1
    products = launches[launches.kernel.str.contains("nvjet")]
    assert set(products.op) == {"aten::addmm"}
    assert products.footprint.tolist()[:4] == products.footprint.tolist()[4:]


def test_kernels_of_a_compiled_model_carry_the_operators_they_were_fused_from():
    launches = golden("gpt2_compiled").launches
    fused = launches[launches.kernel.str.startswith("triton_")]
    assert len(fused) > 5
    assert fused.op[fused.module == "h.1, h.1.attn.c_proj, h.1.ln_2"].tolist() == [
        "aten::view+aten::add+aten::native_layer_norm"
    ]


def test_raw_records_of_the_self_test_decode_to_what_it_does(tmp_path):
    folder = GOLDEN / "selftest-raw" / "accesses"
    if not folder.exists():
        pytest.skip("the self-test's raw records were not kept")
    (process,) = raw.processes(folder)
    path = tmp_path / "selftest.tileprof"
    with TraceWriter(
        path, recorder="cuda", command=["selftest"], device=get("H200"), granule=process.granule
    ) as writer:
        decoder = Decoder(process, writer, get("H200"))
        decoder.run()
    trace = load(path)
    assert validate(trace) == []
    different, comparisons = selftest.compare(trace, selftest.buffers((GOLDEN / "selftest.txt").read_text()))
    assert different == []
    assert len(comparisons) == 16
    assert decoder.checked > 0
    assert decoder.unrecorded == {}
