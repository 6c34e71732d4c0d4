"""Random tensors over a few arrays, compared with the accesses of each launch."""

import random

import numpy as np
import pytest
import torch
from torch.utils import dlpack

from tileprof.analysis import build_graph

_UNORDERED = "does not wait for those reads"


def _play(session, rng, log):
    """Run a random program; ``log`` gets ``(launch, array, begin, end, writes)`` in elements."""
    arrays = [np.ones(64, np.float32) for _ in range(3)]
    live = []

    def touch(*tensors, writes=False):
        log.extend((session.writer.launches - 1, *place, writes) for _, *place in tensors)

    for _ in range(25):
        choice = rng.random() if live else 0.0
        if choice < 0.35:
            array, begin = rng.randrange(3), rng.randrange(64)
            end = rng.randrange(begin, 64) + 1
            live.append((torch.from_numpy(arrays[array][begin:end]), array, begin, end))
        elif choice < 0.45:
            tensor, *place = rng.choice(live)
            live.append((dlpack.from_dlpack(dlpack.to_dlpack(tensor)), *place))
        elif choice < 0.55:
            live.pop(rng.randrange(len(live)))
        elif choice < 0.8:
            one = rng.choice(live)
            one[0].mul_(2)
            touch(one, writes=True)
        else:
            two = rng.choice(live), rng.choice(live)
            torch.cat([t for t, *_ in two])
            touch(*two)


def _ancestors(trace):
    links = build_graph(trace).links
    links = links[~links.reuse].sort_values("consumer")
    actual = [set() for _ in range(len(trace.launches))]
    for producer, consumer in zip(links.producer, links.consumer, strict=True):
        actual[consumer] |= {producer} | actual[producer]
    return actual


@pytest.mark.parametrize("seed", range(30))
def test_launches_that_share_bytes_of_an_array_are_ordered(trace_of, seed):
    """All hazards are ordered but writes after reads by tensors that died, which the trace says it lacks."""
    log = []
    trace = trace_of(lambda session: _play(session, random.Random(seed), log), pass_session=True)
    ancestors = _ancestors(trace)
    says_so = any(_UNORDERED in note for note in trace.manifest["notes"])
    for n, (later, array, begin, end, writes) in enumerate(log):
        for earlier, other, first, last, wrote in log[:n]:
            apart = other != array or last <= begin or end <= first or earlier == later
            if apart or not (writes or wrote) or earlier in ancestors[later]:
                continue
            assert says_so, (earlier, later)
            assert writes, (earlier, later)
            assert not wrote, (earlier, later)
