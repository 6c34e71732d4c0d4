"""The transformer kernel on a GPU: compared with PyTorch, and bit for bit with itself under delays; waits that time
out; through torch.compile.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[4]))
from tests.support.runtime.encoder_programs import inputs_of, post_norm, pre_norm
from tileprof.runtime.encoder import reference
from tileprof.runtime.encoder.encoder_launch import Launcher, report
from tileprof.runtime.encoder.memory import memory_of
from tileprof.runtime.encoder.plan import Plan, plan_of, without_task
from tileprof.runtime.encoder.program import Program
from tileprof.runtime.encoder.source import Options

GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a GPU of sm_90")]

CASES: dict[str, tuple[Program, int]] = {
    "GPT-2": (pre_norm(128, 768, 12), 2),
    "GPT-2, blocks alone": (pre_norm(128, 768, 2), 1),
    "GPT-2, clusters of four": (pre_norm(128, 768, 2), 4),
    "BERT": (post_norm(128, 768, 12), 2),
    "BERT, two sequences and a mask": (post_norm(2 * 75, 768, 2, length=75, masked=True), 2),
    "ViT": (pre_norm(197, 768, 12, k_major=True, causal=False, epilogue="gelu"), 2),
    "bfloat16, 512 rows, shared keys": (pre_norm(512, 1024, 1, dtype="bfloat16", key_heads=4), 2),
    "16 rows": (pre_norm(16, 64, 1, k_major=True), 2),
}


def plan(case: str) -> Plan:
    program, cluster = CASES[case]
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    return plan_of(program, 120 if cluster == 4 else blocks, cluster)


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_reference_and_the_same_bits_in_every_run(case: str) -> None:
    encoder_plan = plan(case)
    inputs = inputs_of(encoder_plan.program, "cuda")
    launcher = Launcher(encoder_plan, torch.device("cuda"))
    (first,) = launcher(inputs)
    report(launcher)
    expected = reference.run(encoder_plan.program, inputs)["out"].float()
    assert (first.float() - expected).norm() / expected.norm() < (1e-2 if first.dtype == torch.float16 else 5e-2)
    assert all(torch.equal(launcher(inputs)[0], first) for _ in range(100))


@pytest.mark.parametrize("wiping_warp", [False, True])
@pytest.mark.parametrize(("build", "hidden", "layers"), [(pre_norm, 768, 1), (post_norm, 768, 1), (pre_norm, 256, 6)])
def test_ten_thousand_delayed_replays_give_the_same_bits(build, hidden, layers, wiping_warp) -> None:
    encoder_plan = plan_of(build(128, hidden, layers), torch.cuda.get_device_properties(0).multi_processor_count, 2)
    inputs = inputs_of(encoder_plan.program, "cuda")
    signs = [{**inputs, "x": sign * inputs["x"]} for sign in (1, -1)]
    plain_launcher = Launcher(encoder_plan, torch.device("cuda"))
    expected = [plain_launcher(each)[0] for each in signs]
    memory = memory_of(encoder_plan, stages=3)
    assert layers == 1 or all(ring.slots < len(ring.names) for ring in memory.rings)  # memory is reused within a run
    options = Options(delay_ns=5_000, wiping_warp=wiping_warp)
    launcher = Launcher(encoder_plan, torch.device("cuda"), options, memory)
    graphs = []
    for each in signs:
        launcher(each)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = launcher(each)[0]
        graphs.append((graph, out))
    wrong = torch.zeros(1, device="cuda")
    for replay in range(10_000):
        launcher.seed.fill_(replay)
        graph, out = graphs[replay // 3 % 2]
        graph.replay()
        wrong += (out != expected[replay // 3 % 2]).sum()
    report(launcher)
    assert not wrong.item()


def test_a_wait_that_cannot_end_is_reported_and_the_next_launcher_is_right() -> None:
    encoder_plan = plan("GPT-2, blocks alone")
    inputs = inputs_of(encoder_plan.program, "cuda")
    attention = next(n for n, task in enumerate(encoder_plan.tasks) if encoder_plan.stages[task.stage].name == "att_0")
    launcher = Launcher(without_task(encoder_plan, attention), torch.device("cuda"), Options(timeout_ns=1_000_000))
    launcher(inputs)
    with pytest.raises(RuntimeError, match="gave up waiting for what proj_0"):
        report(launcher)
    assert torch.isfinite(Launcher(encoder_plan, torch.device("cuda"))(inputs)[0]).all()


def test_a_model_through_torch_compile() -> None:
    transformers = pytest.importorskip("transformers")
    model: nn.Module = transformers.GPT2Model(transformers.GPT2Config(n_layer=2)).half().cuda().eval()
    ids = torch.randint(0, 50257, (1, 128), device="cuda")
    with torch.no_grad():
        expected = model(ids).last_hidden_state.float()
        actual = torch.compile(model, backend="tileprof", options={"use": "always"})(ids).last_hidden_state.float()
    assert (actual - expected).norm() / expected.norm() < 1e-2
