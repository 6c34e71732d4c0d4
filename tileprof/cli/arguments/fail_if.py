"""Conditions of --fail-if: ``gap>30%``, ``time>1.5ms``, ``launches>200``; of two traces also changes, ``time>+5%``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tileprof.analysis.reporting.comparison import UNITS
from tileprof.analysis.times_and_counts import duration
from tileprof.errors import UserError

_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_SCALES: Final = {"": 1.0, "%": 0.01, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_GRAMMAR = re.compile(r"\s*([a-z]+)\s*(>=|<=|>|<)\s*([+-]?)(\d+(?:\.\d+)?)\s*(%|ns|us|ms|s|)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """``name`` compared with ``limit``; ``change``: what is compared is B less A, ``relative``: as a share of A."""

    text: str
    name: str
    sign: str
    limit: float
    change: bool
    relative: bool

    def holds(self, value: float | None, before: float | None = None) -> bool:
        """Return whether a program is so; never where the value is unknown. ``before``: the value of A, for changes."""
        if value is None:
            return False
        if self.change:
            if before is None:
                return False
            value -= before
            if self.relative:
                value = value / before if before else (float("inf") if value > 0 else 0.0)
        return _OPERATORS[self.sign](value, self.limit)


def condition(text: str, *, changes: bool) -> Condition:
    """Read a condition; ``changes``: two traces are compared, so that + and - may ask for a change. Raises
    `UserError`.
    """
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        example = "time>+5%" if changes else "gap>30%"
        raise UserError(f"--fail-if {text!r}: write a name, a comparison and a limit, as in {example!r}")
    name, sign, plus, number, unit = match.groups()
    if name not in UNITS:
        raise UserError(f"--fail-if {text!r}: there is no {name}; there are {', '.join(UNITS)}")
    if plus and not changes:
        raise UserError(f"--fail-if {text!r}: a change needs two traces; use `tileprof diff A B`")
    is_time, is_share = unit in {"ns", "us", "ms", "s"}, unit == "%"
    if is_time != (UNITS[name] == "ns") and not (is_share and plus):
        expected = {"ns": "a time, as 1.5ms", "share": "a percentage, as 30%", "count": "a number, as 200"}[UNITS[name]]
        if is_time or UNITS[name] == "ns":
            raise UserError(
                f"--fail-if {text!r}: {name} is compared with {expected}{' or a change, as +5%' if changes else ''}"
            )
    if UNITS[name] == "share" and not unit and float(number) > 1:
        raise UserError(f"--fail-if {text!r}: {name} is a share between 0 and 1; write {number}%")
    limit = float(number) * _SCALES[unit] * (-1 if plus == "-" else 1)
    relative = bool(plus) and is_share and UNITS[name] != "share"
    return Condition(text, name, sign, limit, bool(plus), relative)


def fact_text(name: str, value: float | None) -> str:
    """Return a fact as text, in its unit."""
    if value is None:
        return "unknown"
    unit = UNITS[name]
    return duration(value) if unit == "ns" else f"{100 * value:.1f}%" if unit == "share" else f"{value:,.0f}"
