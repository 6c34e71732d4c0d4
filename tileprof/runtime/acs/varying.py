"""Words of launches' parameters that differ from run to run of the same program.

A struct's padding and entries that a kernel does not reach hold what the stack held before, addresses of the process
among it. Within one process they often repeat; in another one they differ, since Linux places stacks, libraries and
heaps elsewhere each time. The n-th launch of a kernel and shape in one run is the n-th in another: same program, same
data, same bytes touched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tileprof.runtime.acs.table import words_of

if TYPE_CHECKING:
    from tileprof.runtime.acs.launch_log import Logged

Key = tuple[str, tuple[int, ...], int]


def repeats(runs: Sequence[Sequence[Logged]]) -> bool:
    """Return whether all runs made the same launches in the same order, except for their parameters."""
    return all([key_of(call) for call in run] == [key_of(call) for call in runs[0]] for run in runs[1:])


def key_of(call: Logged) -> Key:
    """Return what launches must share to be compared: kernel, shape, and number of parameters."""
    return call.symbol, call.shape, len(call.parameters)


def counterparts(recorded: Sequence[Logged], runs: Sequence[Sequence[Logged]]) -> dict[int, list[bytes]]:
    """Return, by place in ``recorded``, the parameters of the same launch in ``runs``.

    A kernel and shape that another run launched more often or less has no counterparts there.
    """
    out: dict[int, list[bytes]] = {}
    places = _by_key(recorded)
    for run in runs:
        others = _by_key(run)
        for key, places_here in places.items():
            places_there = others.get(key, [])
            if len(places_here) != len(places_there):
                continue
            for here, there in zip(places_here, places_there, strict=True):
                out.setdefault(here, []).append(run[there].parameters)
    return out


def varying_words(parameters: bytes, others: Sequence[bytes]) -> tuple[int, ...]:
    """Return the words (of 4 bytes) in which a launch's counterparts differ from it."""
    own = words_of(parameters)
    differs = np.zeros(own.size, bool)
    for other in others:
        differs |= own != words_of(other)
    return tuple(np.flatnonzero(differs).tolist())


def _by_key(calls: Sequence[Logged]) -> dict[Key, list[int]]:
    out: dict[Key, list[int]] = defaultdict(list)
    for place, call in enumerate(calls):
        out[key_of(call)].append(place)
    return out
