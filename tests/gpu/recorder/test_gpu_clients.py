"""Users' programs on which the recorder once failed: all changed bytes are recorded, and few of them coarsely."""

import sys
from pathlib import Path

import pytest

from tileprof.trace import load, validate

SQUEEZED = """
import torch

cases = [(512, 1, 1000), (480, 1, 1280), (336, 1, 88), (512, 14, 256), (1024, 14, 256)]
tensors = [[torch.randn(*s, device="cuda") for s in ((2, c, n, n), (o, c, 1, 1))] for c, n, o in cases]

def run():
    results = [torch.nn.functional.conv2d(*some) for some in tensors]
    torch.cuda.synchronize()

run()  # libraries load
torch.cuda.profiler.start()
run()
torch.cuda.profiler.stop()
"""

PROGRAMS = Path(__file__).parents[1] / "measuring" / "recorder" / "measure_coverage.py"


@pytest.mark.parametrize(("name", "coarse"), [("grouped_mm", 0), ("unet", 1)])
def test_all_changes_are_recorded_and_few_launches_cover_whole_tensors(record, name, coarse):
    result = record(sys.executable, PROGRAMS, "--child", name, capture_only=True, verify=True, passes=("accesses",))
    assert result.code == 0
    assert ", 0 of them outside every recorded write" in result.messages
    trace = load(result.path)
    assert validate(trace) == []
    assert (trace.launches.coverage == "conservative").sum() <= coarse


def test_items_of_a_grouped_product_are_its_tiles(record):
    trace = load(
        record(sys.executable, PROGRAMS, "--child", "grouped_mm", capture_only=True, passes=("accesses",)).path
    )
    products = trace.launches[trace.launches.kernel.str.contains("GroupProblemShape")]
    assert set(products.coverage) == {"inferred"}
    boxes = trace.footprint(int(products.footprint.iloc[0])).boxes
    writes = boxes.take(boxes.mode == 1)
    assert int((writes.length * writes.count_0 * writes.count_1).sum()) == 512 * 768 * 2


def test_a_training_step_of_a_resnet_is_recorded(record):
    result = record(sys.executable, PROGRAMS, "--child", "resnet50_step", capture_only=True, passes=("accesses",))
    assert result.code == 0
    trace = load(result.path)
    assert len(trace.launches) > 500
    products = trace.launches[trace.launches.kernel.str.contains("nvjet|fprop")]
    assert "conservative" not in set(products.coverage)


def test_results_with_a_dimension_that_repeats_are_exact(record, tmp_path):
    """CuBLAS's sm90_xmma products in TF32 store through maps with an outer dimension that has no stride."""
    script = tmp_path / "squeezed.py"
    script.write_text(SQUEEZED)
    result = record(sys.executable, script, capture_only=True, verify=True, passes=("accesses",))
    assert result.code == 0
    assert ", 0 of them outside every recorded write" in result.messages
    launches = load(result.path).launches
    assert "conservative" not in set(launches.coverage)
    products = launches[launches.kernel.str.startswith("sm90_xmma_gemm_f32f32_tf32f32_f32")]
    assert set(products.coverage) == {"exact"}
