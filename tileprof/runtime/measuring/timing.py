"""Times work on a GPU: in a CUDA graph, and without one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

REPEATS: Final = 30

_SIDE: Final = threading.local()

_WARM: Final = 5
"""Runs before those that count."""


def captured(work: Callable[[], Any]) -> Any:
    """Return a CUDA graph of what ``work`` launches, which runs once before it is captured."""
    side = _side_stream()
    side.wait_stream(torch.cuda.current_stream())  # what work reads may still be written there
    with torch.cuda.stream(side):
        work()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(
        graph, stream=side, capture_error_mode="thread_local"
    ):  # other threads may allocate meanwhile
        work()
    return graph


def _side_stream() -> Any:
    """Return the stream of this thread for captures on the current device: cuBLAS keeps 32 MB for each stream that it
    has ever seen.
    """
    device = torch.cuda.current_device()
    streams: dict[int, Any] = _SIDE.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream()
    return streams[device]


def time_graph(work: Callable[[], Any]) -> list[float]:
    """Return microseconds of `REPEATS` replays of what ``work`` launches."""
    return time_in_turn([captured(work)])[0]


def time_in_turn(graphs: Sequence[Any]) -> list[list[float]]:
    """Return microseconds of `REPEATS` replays of each graph.

    They take turns: a clock that falls as the GPU warms up falls for all of them.
    """
    times: list[list[float]] = [[] for _ in graphs]
    for number in range(REPEATS + _WARM):
        for graph, samples in zip(graphs, times, strict=True):
            us = _time(graph.replay)
            if number >= _WARM:
                samples.append(us)
    return times


def time_eager(work: Callable[[], Any]) -> list[float]:
    """Return microseconds of `REPEATS` runs of what ``work`` launches."""
    return [_time(work) for _ in range(REPEATS + _WARM)][_WARM:]


def _time(work: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(1000 * begin.elapsed_time(end))
