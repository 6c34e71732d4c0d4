"""A kernel that computes another function than its operator is detected; other rounding is accepted."""

from __future__ import annotations

import pytest
import torch

from tests.support.runtime.chains import CHAINS
from tileprof.runtime import result_check
from tileprof.runtime.pipeline import Pipeline
from tileprof.runtime.result_check import first_wrong_stage, varies


@pytest.fixture(params=["mlp", "mlp in bfloat16", "mlp in float32", "convolutions", "attention", "rows", "gated"])
def results(request):
    chain = CHAINS[request.param]
    pipeline = Pipeline(chain.policy())
    expected = pipeline.reference(pipeline.example())
    return chain, expected, {name: value.clone() for name, value in expected.items()}


def test_equal_results_are_right(results) -> None:
    chain, expected, actual = results
    assert first_wrong_stage(chain, actual, expected) is None


def test_another_rounding_is_right(results) -> None:
    chain, expected, actual = results
    for name, value in actual.items():
        step = torch.finfo(value.dtype).eps
        actual[name] = (
            value + step * (2 * torch.rand(value.shape, generator=torch.Generator().manual_seed(1)) - 1) * value.abs()
        )
    assert first_wrong_stage(chain, {n: v.to(expected[n].dtype) for n, v in actual.items()}, expected) is None


@pytest.mark.parametrize("damage", ["zero", "nan", "neighbour"])
def test_one_wrong_element_is_named_with_its_stage(results, damage) -> None:
    chain, expected, actual = results
    for number, operator in enumerate(chain.operators):
        name = operator.out.tensor
        if any(later.out.tensor == name for later in chain.operators[number + 1 :]):
            continue
        flat = expected[name].reshape(-1).clone()
        place = int(flat.float().abs().argmax())
        flat[place] = {"zero": 0.0, "nan": float("nan"), "neighbour": -float(flat[place])}[damage]
        message = first_wrong_stage(chain, actual | {name: flat.reshape(expected[name].shape)}, expected)
        assert message is not None
        assert message.startswith(f"stage {number} ({chain.names[number]}) computes 1 of its ")


def test_nan_on_both_sides_is_right(results) -> None:
    chain, expected, actual = results
    for values in (expected, actual):
        for value in values.values():
            value.reshape(-1)[0] = float("nan")
    assert first_wrong_stage(chain, actual, expected) is None


def test_pieces_are_judged_by_the_size_of_the_whole(monkeypatch) -> None:
    expected = torch.randn(4, 25, generator=torch.Generator().manual_seed(2))
    expected[3] *= 1e-3  # below the error that the size of the whole tensor allows
    actual = expected + torch.linspace(0.0, 0.1, 100).reshape(4, 25)
    counts = set()
    for size in (7, 25, 99, 100, 1000):
        monkeypatch.setattr(result_check, "_PIECE", size)
        counts.add(result_check._off(actual, expected, 2e-2))
    assert len(counts) == 1
    assert 0 < counts.pop() < 100


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.0, 0.0]], False),
        ([[1.0, float("nan")]], False),
        ([[float("inf"), -float("inf")]], False),
        ([[3.0]], True),
        ([[0.0, 1e-7]], True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_holds_one_number_does_not_vary(values, expected, dtype) -> None:
    assert varies(torch.tensor(values, dtype=dtype)) is expected
