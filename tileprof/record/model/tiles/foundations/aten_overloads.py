"""PyTorch's own list of operators, for rules that name none."""

from __future__ import annotations

from functools import cache

import torch


@cache
def overloads() -> dict[str, dict[str, bool]]:
    """Overloads of every ATen operator (without ``aten::``), and whether each has `torch.Tag.pointwise`.

    Overloads that write to ``out=`` are left out. Asks the dispatcher: ``dir(torch.ops.aten)`` lists only what was
    used.
    """
    operators: dict[str, dict[str, bool]] = {}
    for full in torch._C._dispatch_get_all_op_names():  # noqa: SLF001 (no public list)
        name, _, overload = full.partition(".")
        if not name.startswith("aten::") or "out" in overload:
            continue
        # There are no public tags without loading all operators.
        operation = torch._C._get_operation_overload(name, overload)  # noqa: SLF001
        if operation is not None:
            operators.setdefault(name.removeprefix("aten::"), {})[overload] = torch.Tag.pointwise in operation[2]
    return operators
