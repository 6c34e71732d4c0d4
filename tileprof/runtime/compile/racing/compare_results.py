"""Compares two ways of running a program: correctness first, then speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import torch
from torch import fx

from tileprof.runtime.measuring.timing import captured

TOLERANCE: Final = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest norm of the difference over the norm of the other result that passes for rounding. Inductor computes float32
products in TF32 where PyTorch is told to: such differ, and stay Inductor's.
"""

_REPLAYS: Final = 20
_WARM: Final = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """The distance of results from others: the norm of the difference over the norm, of the tensor that is off most.
    None: they hold nothing that tells.
    """

    error: float | None
    tolerance: float

    @property
    def passes(self) -> bool:
        """Whether the error is known and within the tolerance."""
        return self.error is not None and self.error <= self.tolerance


def difference(results: Sequence[Any], references: Sequence[Any]) -> Difference:
    """Compare results tensor by tensor: numbers of floating point by their norms, all others exactly."""
    worst, tolerance, tells = 0.0, 0.0, False
    for a, b in zip(_tensors(results), _tensors(references), strict=True):
        if a.shape != b.shape or not (a.is_floating_point() and b.is_floating_point()):
            if a.shape != b.shape or not torch.equal(a, b):
                return Difference(float("inf"), 0.0)
            continue
        error, comparable = _error(a, b)
        limit = TOLERANCE.get(a.dtype, 0.0)
        tells = tells or comparable
        if comparable and (tolerance == 0.0 or error / limit > worst / tolerance if limit else error > 0):
            worst, tolerance = error, limit
    return Difference(worst if tells else None, tolerance)


def _error(a: Any, b: Any) -> tuple[float, bool]:
    """Return relative error, and whether the tensors say anything: zeros and what is not finite on both sides
    do not.
    """
    odd = ~b.isfinite()
    if not ((a[odd] == b[odd]) | (a[odd].isnan() & b[odd].isnan())).all():
        return float("inf"), True
    a, b = (t.masked_fill(odd, 0).double() for t in (a, b))
    size, far = float(b.norm()), float((a - b).norm())
    if size == 0.0:
        return (0.0, False) if far == 0.0 else (float("inf"), True)
    return (far / size if far == far else float("inf")), True  # noqa: PLR0124 - NaN differs from itself


def _tensors(values: Sequence[Any]) -> list[Any]:
    return [v for v in values if isinstance(v, torch.Tensor)]


def in_float32(module: fx.GraphModule, args: Sequence[Any]) -> list[Any] | None:
    """Return what a graph of Dynamo returns in float32, computed one operation after the other; None where its
    operations do not take that. Inputs are copied first.
    """
    try:
        with torch.no_grad():
            result = _Float32(module).run(*(_as_float32(a, copy=True) for a in args))
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return list(result) if isinstance(result, tuple | list) else [result]


class _Float32(fx.Interpreter):  # type: ignore[misc]  # PyTorch is not followed
    """Operations as they stand, except for the dtypes that they name."""

    def run_node(self, n: fx.Node) -> Any:
        return _as_float32(super().run_node(n), copy=False)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[Any, Any]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        args, kwargs = fx.node.map_aggregate((args, kwargs), _wider)
        return args, kwargs


_LOW: Final = (torch.float16, torch.bfloat16)


def _wider(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in _LOW else value


def _as_float32(value: Any, *, copy: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(torch.float32, copy=copy) if value.dtype in _LOW else value.clone() if copy else value


def times_in_turn(works: Sequence[Callable[[], Any]], before: Callable[[], None]) -> list[float]:
    """Return microseconds of each work in a CUDA graph, medians of replays that take turns; ``before`` runs before
    each, and is not counted.

    Raises what a work raises while it is captured.
    """
    graphs = [captured(work) for work in works]
    times: list[list[float]] = [[] for _ in works]
    for number in range(_REPLAYS + _WARM):
        for graph, samples in zip(graphs, times, strict=True):
            before()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number >= _WARM:
                samples.append(float(1000 * begin.elapsed_time(end)))
    return [median(samples) for samples in times]
