"""Processes that capture cases beside each other, for a time: options, start and loop of `product_captures` and
`convolution_captures`.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator

    from tileprof.harvest.graph_captures import Captures, Launch

    Case = tuple[int, ...]


def option_parser(module: str, description: str) -> ArgumentParser:
    """Return a parser of the options that all workers have: ``output``, ``seconds``, ``workers``, ``seed``."""
    parser = ArgumentParser(f"python -m tileprof.harvest.{module}", description=description)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def start(work: Callable[[int, float, Namespace], None], options: Namespace) -> int:
    """Call ``work(worker, end, options)`` in each of the processes, wait for them, and return an exit code.

    ``end`` is the time in seconds since the epoch at which ``options.seconds`` are over.
    """
    options.output.mkdir(parents=True, exist_ok=True)
    context: Any = multiprocessing.get_context("spawn")
    end = time.time() + options.seconds
    workers = [context.Process(target=work, args=(worker, end, options)) for worker in range(options.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return int(any(worker.exitcode for worker in workers))


def batches(
    captures: Captures, cases: Iterable[Case], size: int, end: float
) -> Iterator[tuple[list[Case], list[list[Launch] | None]]]:
    """Yield cases with their launches, up to ``size`` cases at a time, until there are none or the time is ``end``."""
    rest = iter(cases)
    while time.time() < end and (batch := list(itertools.islice(rest, size))):
        yield batch, captures.launches(batch)
