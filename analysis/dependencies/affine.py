"""Affine maps with div and mod that reproduce an integer sequence exactly, or none."""

from __future__ import annotations

from math import gcd

import numpy as np

from tileprof.arrays import I64

_LARGEST_DIVISOR = 64
"""Divisors tried besides the length of a run: tile shapes are small multiples of each other."""


_CELLS_AT_ONCE = 1 << 20
_FAR = 2**62


def fit(values: I64, coordinates: I64, names: tuple[str, ...], top: int) -> str | None:
    """Return an expression in ``names`` that gives ``values`` on every row of ``coordinates``, clipped to ``[0, top]``.

    ``values`` ``[rows]``; ``coordinates`` ``[rows, axes]``. Tried in turn: a constant; ``(p*k + q) // d``,
    ``g*((p*k + q) // d) + r``, and the same with ``k % m``, of one axis ``k``. None where none of them holds exactly on
    all rows.
    """
    if (values == values[0]).all():
        return str(int(values[0]))
    for axis, name in enumerate(names):
        key = coordinates[:, axis]
        table = np.full(int(key.max()) + 1, -1, np.int64)
        table[key] = values
        if not np.array_equal(table[key], values):
            continue
        steps = np.flatnonzero(table >= 0)
        fit = _fit_steps(steps, table[steps], name, top) or _fit_periodic(steps, table[steps], name, top)
        if fit is not None:
            return fit
    return None


def _fit_periodic(steps: I64, values: I64, name: str, top: int) -> str | None:
    falls = np.flatnonzero(np.diff(values) < 0)
    if len(falls) == 0 or len(steps) != steps[-1] + 1:
        return None
    period = int(falls[0]) + 1
    if not np.array_equal(values[period:], values[:-period]):
        return None
    return _fit_steps(steps[:period], values[:period], f"({name} % {period})", top)


def _fit_steps(steps: I64, values: I64, name: str, top: int) -> str | None:
    if (values == values[0]).all():
        return str(int(values[0]))
    # q is feasible if d*v <= p*k + q < d*(v + 1) for every step; clipping frees one side at 0 and at top.
    lower, upper = values > 0, values < top
    slopes = np.array(_slopes(steps, values, top), np.int64).reshape(-1, 2)
    for some in np.array_split(slopes, max(1, len(slopes) * len(steps) // _CELLS_AT_ONCE)):
        p, d = some[:, :1], some[:, 1:]
        least = (d * values[lower] - p * steps[lower]).max(axis=1, initial=-_FAR)
        most = (d * values[upper] + d - 1 - p * steps[upper]).min(axis=1, initial=_FAR)
        feasible = np.flatnonzero(least <= most)
        if len(feasible):
            row = int(feasible[0])
            q = min(max(0, int(least[row])), int(most[row]))
            return _write(int(some[row, 0]), q, int(some[row, 1]), name, steps, top)
    common = int(np.gcd.reduce(values - values[0]))
    if common > 1:
        offset = int(values[0]) % common
        inner = _fit_steps(steps, (values - offset) // common, name, 2**62)
        return inner and f"{common}*({inner})" + (f" + {offset}" if offset else "")
    return None


def _slopes(steps: I64, values: I64, top: int) -> list[tuple[int, int]]:
    inner = np.flatnonzero((values > 0) & (values < top))
    rows = inner if len(inner) > 1 else np.arange(len(steps))
    run = int(steps[-1] - steps[0])
    changes = np.flatnonzero(np.diff(values))
    longest = int(np.diff(steps[changes + 1]).max()) if len(changes) > 1 else int(steps[changes[0] + 1] - steps[0])
    slope = float(values[rows[-1]] - values[rows[0]]) / max(1, int(steps[rows[-1]] - steps[rows[0]]))
    sign = 1 if values[-1] > values[0] else -1
    slopes = [(round(slope), 1), (sign, longest)]
    if len(inner) <= 1:  # one step up or down: any slope that is steep enough, clipped on both sides
        slopes.append((sign * int(values.max()), 1))
    for d in range(1, min(_LARGEST_DIVISOR, run + 1) + 1):
        slopes += [(p, d) for p in range(int(slope * d) - 2, int(slope * d) + 3) if p and gcd(p, d) == 1]
    return [(p, d) for p, d in slopes if p]


def _write(p: int, q: int, d: int, name: str, steps: I64, top: int) -> str:
    text = name if p == 1 else f"{p}*{name}"
    if q:
        text = f"{text} {'+' if q > 0 else '-'} {abs(q)}"
    if d > 1:
        text = f"({text}) // {d}" if q else f"{text} // {d}"
    raw = (p * steps + q) // d
    if (raw > top).any():
        text = f"min({top}, {text})"
    return f"max(0, {text})" if (raw < 0).any() else text
