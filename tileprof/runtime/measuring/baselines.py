"""Baselines of a chain: PyTorch's own kernels one after the other, in a CUDA graph, and as ``torch.compile`` makes
them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any, Final

import torch

from tileprof.runtime.measuring.timing import time_graph

EAGER: Final = "PyTorch eager"
GRAPH: Final = "PyTorch in a graph"
COMPILED: Final = "torch.compile max-autotune"

_MODE: Final = "max-autotune-no-cudagraphs"
"""The graph is ours, as for every other row."""

Reference = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class TooLongError(BaseException):
    """A limit is over. No `Exception`: a compiler that catches all of those continues with its next candidate."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises `TooLongError` inside the block after ``seconds``; in the main thread only, which gets the signal."""

    def over(*_: Any) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def compiled_times(reference: Reference, input_sets: Sequence[Mapping[str, Any]], limit_s: float) -> list[float] | str:
    """Return the microseconds that ``torch.compile`` takes for all of ``input_sets``, in a CUDA graph like the other
    rows, or the reason why there are none.

    Its compiler times the kernels that it could take, for ten seconds and more; with ``limit_s`` over it is ended.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415 - slow to import

    names = list(input_sets[0])

    def plain(*tensors: Any) -> Any:
        return list(reference(dict(zip(names, tensors, strict=True))).values())[-1]

    try:
        with limited(limit_s), torch.no_grad(), redirect_stderr(StringIO()):  # it tells of every candidate
            graph = make_fx(plain)(*input_sets[0].values())  # operators alone: nothing of our Python is left to compile
            function = torch.compile(graph, mode=_MODE, dynamic=False)
            function(*input_sets[0].values())
        return time_graph(lambda: [function(*tensors.values()) for tensors in input_sets])
    except TooLongError:
        return f"not compiled in {limit_s:g} s"
    except Exception as error:  # noqa: BLE001 - a compiler fails in ways of its own; the row says how
        return f"fails: {(str(error) or type(error).__name__).splitlines()[0][:200]}"
    finally:
        torch._dynamo.reset()  # noqa: SLF001 - PyTorch documents it under this name
