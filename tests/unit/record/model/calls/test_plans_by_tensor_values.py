"""Plans that depend on the values of tensors are reused for equal values only."""

from __future__ import annotations

import torch

from tileprof.record.model.calls.plans_by_tensor_values import _MOST_BYTES, PlansByValue


def test_a_plan_is_found_for_equal_values_alone() -> None:
    plans, plan, index = PlansByValue(), [], torch.tensor([2, 0, 1])
    unread = torch.zeros(3)
    plans.keep("gather", {0}, [index, unread], {}, plan)
    assert plans.find("gather", [index.clone(), unread + 1], {}) is plan
    assert plans.find("gather", [torch.tensor([2, 0, 2]), unread], {}) is None
    assert plans.find("scatter", [index, unread], {}) is None
    plans.clear()
    assert plans.find("gather", [index, unread], {}) is None


def test_what_a_model_asked_for_may_differ_between_calls_of_one_layout() -> None:
    plans, first, second = PlansByValue(), [], []
    a, b = torch.tensor([1, 1]), torch.tensor([0, 5])
    plans.keep("op", {0}, [a, b], {}, first)
    plans.keep("op", {0, 1}, [b, b], {}, second)
    assert plans.find("op", [b, b], {}) is second
    assert plans.find("op", [a, a], {}) is None  # the latest places are compared; another plan is right too


def test_values_before_an_operator_overwrote_them_count() -> None:
    plans, plan, written = PlansByValue(), [], torch.tensor([7])
    before = {id(written): torch.tensor([3])}
    plans.keep("op_", {0}, [written], before, plan)
    assert plans.find("op_", [torch.tensor([3])], {}) is plan
    assert plans.find("op_", [torch.tensor([7])], {}) is None


def test_large_values_and_tensors_without_values_are_planned_anew() -> None:
    plans = PlansByValue()
    for tensor in (torch.zeros(_MOST_BYTES + 1, dtype=torch.uint8), torch.zeros(2, device="meta")):
        plans.keep("op", {0}, [tensor], {}, [])
        assert plans.find("op", [tensor], {}) is None
