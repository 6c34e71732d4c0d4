"""Ways to put the stages of a policy on a GPU, by the names of the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tileprof.errors import UserError


@dataclass(frozen=True, slots=True)
class Scheduler:
    """``captured``: replayed as a CUDA graph. ``posts`` and ``waits``: tiles post and wait as the policy says. ``overlapped``: a stage is launched by
    programmatic dependent launch, so that its blocks start where those of the stage before leave room.
    """

    name: str
    captured: bool = False
    posts: bool = False
    waits: bool = False
    overlapped: bool = False

    @property
    def correct(self) -> bool:
        """Overlap without waits gives wrong results: it is timed to see what the dependency costs, and for nothing else."""
        return self.waits or not self.overlapped


SCHEDULERS: Final = {
    s.name: s
    for s in (
        Scheduler("stream"),
        Scheduler("graph", captured=True),
        Scheduler("cusync", captured=True, posts=True, waits=True, overlapped=True),
        Scheduler("hooks", captured=True, posts=True, waits=True),
        Scheduler("unsynchronised", captured=True, overlapped=True),
    )
}
"""``hooks`` is stream order with posts and waits compiled in: what they cost by themselves. ``unsynchronised`` is wrong on purpose."""


def scheduler(name: str) -> Scheduler:
    """The scheduler of a name; raises `UserError`."""
    if name not in SCHEDULERS:
        raise UserError(f"there is no scheduler {name!r}; known: {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name]
