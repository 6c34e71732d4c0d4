"""Ways to put the stages of a policy on a GPU, by the names of the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tileprof.errors import UserError


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A way to launch and synchronise the stages of a policy.

    ``captured``: replayed as a CUDA graph.
    ``posts``, ``waits``: tiles post and wait as the policy says.
    ``overlapped``: stages are launched by programmatic dependent launch: their blocks start where the stage before
    leaves room.
    ``grid_waits``: each tile waits for the whole stage before instead of its semaphores.
    ``forked``: independent stages go to streams of their own.
    ``alternating``: stages go to two streams in turn, each behind a kernel that waits until every block of the stage
    before has begun.
    ``persistent``: by the kernel of `tileprof.runtime.persistent`: one launch for all stages, or one launch per stage
    in stream order and where blocks wait for the stage before.
    ``dealt``: where clusters get their tiles from: static ``lists``, a ``queue`` on the GPU, or a ``pilot``, a thread
    of the CPU.
    ``speculates``: the pilot sends tiles ahead of their inputs. ``overwrites``: it sends others in place of tiles that
    no cluster has taken.
    """

    name: str
    captured: bool = False
    posts: bool = False
    waits: bool = False
    overlapped: bool = False
    grid_waits: bool = False
    forked: bool = False
    alternating: bool = False
    persistent: bool = False
    dealt: str = "lists"
    speculates: bool = False
    overwrites: bool = False

    @property
    def correct(self) -> bool:
        """False for overlap without waits, which is timed only to see what the dependency costs."""
        return self.waits or self.grid_waits or not (self.overlapped or self.alternating)


_PERSISTENT: Final = Scheduler("persistent", captured=True, posts=True, waits=True, overlapped=True, persistent=True)

SCHEDULERS: Final = {
    s.name: s
    for s in (
        Scheduler("stream"),
        Scheduler("graph", captured=True),
        Scheduler("pdl", captured=True, overlapped=True, grid_waits=True),
        Scheduler("streams", captured=True, forked=True),
        Scheduler("cusync", captured=True, posts=True, waits=True, overlapped=True),
        Scheduler("cusync-streams", captured=True, posts=True, waits=True, alternating=True),
        _PERSISTENT,
        replace(_PERSISTENT, name="persistent-dynamic", dealt="queue"),
        replace(_PERSISTENT, name="ccks", dealt="pilot", speculates=True),
        replace(_PERSISTENT, name="ccks-ready", dealt="pilot"),
        replace(_PERSISTENT, name="ccks-overwrite", dealt="pilot", speculates=True, overwrites=True),
        Scheduler("persistent-stages", captured=True, persistent=True),
        Scheduler("persistent-pdl", captured=True, overlapped=True, grid_waits=True, persistent=True),
        Scheduler("persistent-unsynchronised", captured=True, overlapped=True, persistent=True),
        Scheduler("hooks", captured=True, posts=True, waits=True),
        Scheduler("unsynchronised", captured=True, overlapped=True),
    )
}
"""``cusync-streams`` is cuSync's method: two streams and a wait kernel, for GPUs without programmatic launch.
``cusync`` is its method on GPUs with programmatic launch. ``persistent`` takes tiles from static lists,
``persistent-dynamic`` from a queue on the GPU, ``ccks``, ``ccks-ready`` and ``ccks-overwrite`` from a thread of the
CPU; ``ccks-ready`` sends only tiles that are ready, ``ccks-overwrite`` replaces tiles that no cluster has taken.
``persistent-stages`` is stream order with the kernel of ``persistent``, the baseline of its gain; ``persistent-pdl`` is
the same under ``pdl``. ``hooks`` is stream order with posts and waits compiled in, which shows their own cost.
``unsynchronised`` and ``persistent-unsynchronised`` are wrong on purpose.
"""

FALLBACKS: Final = {
    **dict.fromkeys(("persistent", "persistent-dynamic", "ccks", "ccks-ready", "ccks-overwrite"), "cusync"),
    "persistent-stages": "graph",
    "persistent-pdl": "pdl",
    "persistent-unsynchronised": "unsynchronised",
}
"""The scheduler that takes the place of one whose kernel cannot run the chain."""


def correct_names() -> list[str]:
    """Return names of the schedulers that compute right results."""
    return [s.name for s in SCHEDULERS.values() if s.correct]


def scheduler(name: str) -> Scheduler:
    """Return the scheduler of a name; raises `UserError`."""
    if name not in SCHEDULERS:
        raise UserError(f"there is no scheduler {name!r}; known: auto, {', '.join(correct_names())}")
    return SCHEDULERS[name]


@dataclass(frozen=True, slots=True)
class Lane:
    """A stage's launch under ``streams``: the number of its stream, and the stages of other streams it waits for."""

    stream: int
    after: tuple[int, ...]


def lanes(before: Sequence[frozenset[int]], most: int = 8) -> list[Lane]:
    """Return streams for stages in issue order; ``before[i]`` are the stages, all below i, that stage i must follow.

    A stage follows the latest of its producers on that one's stream, if nothing else has been put there since;
    otherwise it takes a new stream, up to ``most`` of them, then the one that was used least recently. No stage waits
    for one that another wait, or its own stream, already implies.
    """
    tails: list[int] = []
    reach: list[frozenset[int]] = []
    result: list[Lane] = []
    for stage, predecessors in enumerate(before):
        free = [stream for stream, tail in enumerate(tails) if tail in predecessors]
        if free:
            stream = max(free, key=lambda s: tails[s])
        elif len(tails) < most:
            stream = len(tails)
            tails.append(-1)
        else:
            stream = min(range(len(tails)), key=lambda s: tails[s])
        implied = reach[tails[stream]] if tails[stream] >= 0 else frozenset[int]()
        after: list[int] = []
        for other in sorted(predecessors, reverse=True):
            if other not in implied:
                after.append(other)
                implied |= reach[other]
        result.append(Lane(stream, tuple(sorted(after))))
        reach.append(implied | {stage})
        tails[stream] = stage
    return result
