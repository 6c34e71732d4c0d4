"""Timelines of whole-model kernels on a GPU: every tile has an SM and times, stages follow each other, and the trace is one that `view` takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from model_cases import decoding, of_transformers, tokens

from tileprof.cli.timeline_trace import write_trace
from tileprof.devices import of_driver
from tileprof.runtime.programs.timeline import observing
from tileprof.trace import load, validate

GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a GPU of sm_90")]

SMALL = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 2048, "head_dim": 64}  # fmt: skip
CASES = {
    "a decoder": lambda: decoding(of_transformers("LlamaForCausalLM", "LlamaConfig", "cuda", None, **SMALL), torch.bfloat16, 1, 100, 256, "cuda"),
    "transformer blocks": lambda: tokens(of_transformers("GPT2Model", "GPT2Config", "cuda", None, n_layer=2), torch.float16, 128, "cuda", use_cache=False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_run_has_times_of_every_tile(name, tmp_path) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    torch._dynamo.reset()
    case, found = CASES[name](), []

    def watch(region, device, inputs):
        saved = [inputs[n].clone() for n in region.mutated]
        found.append(region.timed(device, inputs))
        for n, before in zip(region.mutated, saved, strict=True):
            inputs[n].copy_(before)

    compiled = torch.compile(case.model, backend="tileprof", dynamic=False, options={"use": "always"})
    with torch.no_grad():
        case.call(compiled)
        with observing(watch):
            case.call(compiled)
    (timeline,) = found
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    ends = [int(stage.end_ns.max()) for stage in timeline.stages]
    for stage in timeline.stages:
        assert (stage.end_ns >= stage.begin_ns).all()
        assert stage.begin_ns.min() >= 0
        assert set(stage.block) <= set(range(sms))
    assert 5_000 < timeline.span_ns < 5_000_000
    assert ends[-1] == max(ends)
    trace = load(
        write_trace(timeline, tmp_path / "run.tileprof", of_driver(torch.cuda.get_device_name()), ["infer.py"])
    )
    assert not validate(trace)
    sys.stdout.write(f"{name}: {timeline.span_ns / 1e3:.1f} us with clocks, {len(timeline.stages)} stages\n")
