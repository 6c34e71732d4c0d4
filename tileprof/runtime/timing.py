"""How long what a GPU is given takes: in a CUDA graph, and without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

REPEATS: Final = 30

_WARM: Final = 5
"""Runs before those that count."""


def captured(work: Callable[[], Any]) -> Any:
    """A CUDA graph of what ``work`` launches, which runs once before it is captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # what work reads may still be written there
    with torch.cuda.stream(side):
        work()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        work()
    return graph


def time_graph(work: Callable[[], Any]) -> list[float]:
    """Microseconds of `REPEATS` replays of what ``work`` launches."""
    return time_eager(captured(work).replay)


def time_eager(work: Callable[[], Any]) -> list[float]:
    """Microseconds of `REPEATS` runs of what ``work`` launches."""
    times = []
    for number in range(REPEATS + _WARM):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        if number >= _WARM:
            times.append(1000 * begin.elapsed_time(end))
    return times
