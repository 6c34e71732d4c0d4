"""Sentences about compiled programs that a trace holds."""

from __future__ import annotations

from typing import Final

FUSED: Final = (
    "torch.compile: launches are those that Inductor would make on this GPU, with the Triton code that it writes; the "
    "program's numbers were computed without fusion."
)
BY_OPERATOR: Final = "torch.compile was switched off ({why}): operators are recorded one by one, as without it."
FAILED: Final = (
    "torch.compile: a graph could not be lowered for this GPU ({why}): its operators are recorded one by one, as "
    "without the compiler."
)
MEASURED: Final = (
    "torch.compile with max-autotune: Inductor would choose by measuring; here the library's kernel is taken, or "
    "where there is none the template whose busiest SM loads least."
)
