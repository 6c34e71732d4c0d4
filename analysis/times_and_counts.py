"""Times and counts as sentences say them."""

from __future__ import annotations

_UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3))
_MOST_WRITTEN_OUT = 1e7


def duration(ns: float) -> str:
    """Return three figures and a unit; the unit above where rounding reaches it, and an exponent where figures would
    fill a line.
    """
    for unit, size in _UNITS:
        if ns >= 0.9995 * size:
            value = ns / size
            is_whole = 999.5 <= value < _MOST_WRITTEN_OUT
            return f"{value:,.0f} {unit}" if is_whole else f"{value:.3g} {unit}"
    return f"{ns:.3g} ns"


def counted(many: int, word: str) -> str:
    """Return ``1 launch``, ``2 launches``, ``3 rounds``."""
    ending = "" if many == 1 else "es" if word.endswith(("ch", "s", "x")) else "s"
    return f"{many:,} {word}{ending}"


def signed_percent(share: float, *, plus: bool = False) -> str:
    """Return one decimal, never "-0.0%"; an exponent where figures would fill a line."""
    value = round(100 * share, 1) + 0.0
    figures = ".1f" if abs(value) < _MOST_WRITTEN_OUT else ".3g"
    return f"{value:{'+' if plus else ''}{figures}}%"
