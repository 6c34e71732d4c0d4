"""Replays of a captured run, with poison before each and delays inside; those that differ from stream order in a bit
are counted.
"""

import torch

from tileprof.runtime.measuring.timing import captured
from tileprof.runtime.policy_on_gpu import GpuPipeline

DELAY_NS = 20_000

_WORDS = {2: torch.int16, 4: torch.int32}


def wrong_replays(policy, *, replays, schedule, order, delay_ns=DELAY_NS, ahead=False):
    """Return how many replays differ.

    ``order`` is the scheduler whose results, without delays, are right. Everything that a stage writes is NaN when a
    replay begins.
    """
    pipeline = GpuPipeline(policy, schedule=schedule, delay_ns=delay_ns, ahead=ahead, unchecked=True)
    inputs = pipeline.example()
    expected = bits(GpuPipeline(policy, schedule=order, unchecked=True, ahead=ahead)(**inputs)).clone()
    wrong = torch.zeros(1, dtype=torch.int32, device="cuda")

    def once():
        pipeline.seed.add_(1)
        pipeline.poison()
        wrong.add_((bits(pipeline(**inputs)) != expected).any().int())

    graph = captured(once)
    for _ in range(replays):
        graph.replay()
    pipeline.check()
    return int(wrong)


def bits(tensor):
    """Return whole numbers that are equal if every bit is."""
    return tensor.view(_WORDS[tensor.element_size()])
