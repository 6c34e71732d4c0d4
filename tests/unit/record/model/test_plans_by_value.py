"""Plans that depend on the values of tensors are used again for equal values, and for those alone."""

from __future__ import annotations

import torch

from tileprof.record.model.plans_by_value import _MOST_BYTES, PlansByValue


def test_a_plan_is_found_for_equal_values_alone() -> None:
    known, plan, index = PlansByValue(), [], torch.tensor([2, 0, 1])
    unread = torch.zeros(3)
    known.keep("gather", {0}, [index, unread], {}, plan)
    assert known.find("gather", [index.clone(), unread + 1], {}) is plan
    assert known.find("gather", [torch.tensor([2, 0, 2]), unread], {}) is None
    assert known.find("scatter", [index, unread], {}) is None
    known.clear()
    assert known.find("gather", [index, unread], {}) is None


def test_what_a_model_asked_for_may_differ_between_calls_of_one_layout() -> None:
    known, first, second = PlansByValue(), [], []
    a, b = torch.tensor([1, 1]), torch.tensor([0, 5])
    known.keep("op", {0}, [a, b], {}, first)
    known.keep("op", {0, 1}, [b, b], {}, second)
    assert known.find("op", [b, b], {}) is second
    assert known.find("op", [a, a], {}) is None  # the latest places are compared; planning anew is right, too


def test_values_before_an_operator_overwrote_them_count() -> None:
    known, plan, written = PlansByValue(), [], torch.tensor([7])
    before = {id(written): torch.tensor([3])}
    known.keep("op_", {0}, [written], before, plan)
    assert known.find("op_", [torch.tensor([3])], {}) is plan
    assert known.find("op_", [torch.tensor([7])], {}) is None


def test_large_values_and_tensors_without_values_are_planned_anew() -> None:
    known = PlansByValue()
    for tensor in (torch.zeros(_MOST_BYTES + 1, dtype=torch.uint8), torch.zeros(2, device="meta")):
        known.keep("op", {0}, [tensor], {}, [])
        assert known.find("op", [tensor], {}) is None
