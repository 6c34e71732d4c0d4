"""Times predicted for whole models: close to the times measured on an H200, from constants of one model per family, and
larger for larger models.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.runtime.encoder_programs import post_norm, pre_norm
from tests.support.runtime.networks import small
from tileprof.devices import of_driver
from tileprof.runtime.compile.racing.report import Report
from tileprof.runtime.decode.shape import DecoderShape
from tileprof.runtime.prefill.shape import PrefillShape
from tileprof.runtime.programs import compare
from tileprof.runtime.programs.expected import CALIBRATED, expected_us

H200 = of_driver("NVIDIA H200")
LLAMA = DecoderShape(
    "bfloat16",
    batch=1,
    layers=16,
    hidden=2048,
    intermediate=8192,
    heads=32,
    kv_heads=8,
    head_dim=64,
    vocabulary=128256,
    cache=1024,
    epsilon=1e-5,
    scale=0.125,
)
ROTARY = Counter({"bmm": 1, "cat": 1, "mul": 2})


def us(what, left=None):
    return expected_us([SimpleNamespace(what=what)], left or Counter(), H200)


@pytest.mark.parametrize(
    ("shape", "measured_us"),
    [
        (LLAMA, 716),
        (replace(LLAMA, batch=8), 922),
        (
            replace(LLAMA, layers=4, hidden=512, intermediate=1536, heads=8, kv_heads=2, vocabulary=2048, cache=320),
            60.9,
        ),
    ],
)
def test_decoders_are_predicted_within_a_tenth(shape, measured_us) -> None:
    assert us(shape, ROTARY) == pytest.approx(measured_us, rel=0.1)


@pytest.mark.parametrize(
    ("blocks", "measured_us"),
    [
        (pre_norm(128, 768, 12), 309),
        (post_norm(128, 768, 12), 314),
        (pre_norm(197, 768, 12, k_major=True, causal=False, epilogue="gelu"), 461),
    ],
)
def test_transformer_blocks_and_the_remaining_kernels_are_predicted_within_a_tenth(blocks, measured_us) -> None:
    assert us(blocks, Counter({"embedding": 2})) == pytest.approx(measured_us, rel=0.1)


def test_a_prefill_is_predicted_and_takes_longer_than_a_token() -> None:
    shape = PrefillShape("bfloat16", 1, 16, 2048, 8192, 32, 8, 64, 128256, 1e-5, 0.125, length=64)
    assert us(shape) == pytest.approx(986, rel=0.1)
    assert us(shape) > us(LLAMA)


def test_larger_models_take_longer_and_products_of_the_same_rows_run_together() -> None:
    assert us(LLAMA) < us(replace(LLAMA, batch=2)) < us(replace(LLAMA, batch=8))
    assert us(small(1)) < us(small(16))
    assert us(pre_norm(128, 768, 6)) < us(pre_norm(128, 768, 12)) < us(pre_norm(256, 768, 12))
    assert us(post_norm(128, 768, 12)) == pytest.approx(us(pre_norm(128, 768, 12)), rel=0.1)


def test_what_inductor_has_left_costs_time() -> None:
    assert us(LLAMA) < us(LLAMA, Counter({"mul": 2})) < us(LLAMA, ROTARY)


def test_there_is_no_prediction_without_constants_or_for_kernels_without_a_model() -> None:
    assert us("a chain") is None
    assert expected_us([], Counter(), H200) is None
    assert expected_us([SimpleNamespace(what=LLAMA)], Counter(), of_driver("NVIDIA A100-SXM4-80GB")) is None
    assert all("H200" in constants.origin for constants in CALIBRATED.values())


def test_programs_of_several_graphs_are_added_up(monkeypatch) -> None:
    monkeypatch.setattr(compare.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(compare.torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")
    one = Report(regions=[SimpleNamespace(what=LLAMA)])
    assert compare.expected([one, one]) == pytest.approx(2 * us(LLAMA))
    assert compare.expected([one, Report()]) is None
    assert compare.expected([]) is None
