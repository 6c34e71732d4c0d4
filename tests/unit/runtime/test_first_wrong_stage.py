"""A kernel that computes something else than its operator is found out; one that rounds otherwise is not accused."""

from __future__ import annotations

import pytest
import torch
from chains import CHAINS

from tileprof.runtime.pipeline import Pipeline
from tileprof.runtime.proof import first_wrong_stage


@pytest.fixture(params=["mlp", "mlp in bfloat16", "mlp in float32", "convolutions", "attention", "rows", "gated"])
def computed(request):
    chain = CHAINS[request.param]
    pipeline = Pipeline(chain.policy())
    wanted = pipeline.reference(pipeline.example())
    return chain, wanted, {name: value.clone() for name, value in wanted.items()}


def test_what_is_equal_is_right(computed) -> None:
    chain, wanted, seen = computed
    assert first_wrong_stage(chain, seen, wanted) is None


def test_another_rounding_is_right(computed) -> None:
    chain, wanted, seen = computed
    for name, value in seen.items():
        step = torch.finfo(value.dtype).eps
        seen[name] = (
            value + step * (2 * torch.rand(value.shape, generator=torch.Generator().manual_seed(1)) - 1) * value.abs()
        )
    assert first_wrong_stage(chain, {n: v.to(wanted[n].dtype) for n, v in seen.items()}, wanted) is None


@pytest.mark.parametrize("damage", ["zero", "nan", "neighbour"])
def test_one_wrong_element_is_named_with_its_stage(computed, damage) -> None:
    chain, wanted, seen = computed
    for number, operator in enumerate(chain.operators):
        name = operator.out.tensor
        if any(later.out.tensor == name for later in chain.operators[number + 1 :]):
            continue
        flat = wanted[name].reshape(-1).clone()
        place = int(flat.float().abs().argmax())
        flat[place] = {"zero": 0.0, "nan": float("nan"), "neighbour": -float(flat[place])}[damage]
        said = first_wrong_stage(chain, seen | {name: flat.reshape(wanted[name].shape)}, wanted)
        assert said is not None
        assert said.startswith(f"stage {number} ({chain.names[number]}) computes 1 of its ")


def test_what_is_no_number_on_both_sides_is_right(computed) -> None:
    chain, wanted, seen = computed
    for values in (wanted, seen):
        for value in values.values():
            value.reshape(-1)[0] = float("nan")
    assert first_wrong_stage(chain, seen, wanted) is None
