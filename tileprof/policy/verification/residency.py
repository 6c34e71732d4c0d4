"""Whether waiting blocks can keep out those that they wait for.

With a wait kernel a stage is dispatched after its producers, and blocks are taken in an order in which whoever a tile awaits comes
before it. Without one, a device may take blocks of the consumers first, of several of them at once and spread as
badly as can be; a tile that waits holds its slot. Then a producer starts only if the waiting blocks cannot fill every SM
so far that none has room for one of its blocks.
"""

from __future__ import annotations

from typing import Final

from tileprof.policy.format import Policy

_UNKNOWN: Final = 1
"""Blocks an SM holds where nobody said: the fewest that any kernel has."""


def blocked_producers(policy: Policy, sms: int) -> tuple[str, ...]:
    """A sentence for each producer whose blocks the waiting ones could keep out, on a device of ``sms`` SMs, without a wait kernel.

    Never too few: a block of a stage that holds e of them an SM takes 1/e of it, and a producer of p an SM is kept out only where more
    than 1 - 1/p is taken.
    """
    waiting = sorted({edge.consumer for edge in policy.edges})
    said = []
    for producer in sorted({edge.producer for edge in policy.edges}):
        # Stages before the producer do not wait for it, and end without it.
        after = [policy.stages[stage] for stage in waiting if stage > producer]
        room = 1 - 1 / (policy.stages[producer].blocks_per_sm or _UNKNOWN)
        taken = sum(s.tiles * min(1.0, 1 / (s.blocks_per_sm or _UNKNOWN) / room if room else 1.0) for s in after)
        if taken >= sms:
            names = ", ".join(stage.name for stage in after)
            blocks = sum(stage.tiles for stage in after)
            said.append(
                f"without a wait kernel {blocks} blocks of {names} can fill the device of {sms} SMs before "
                f"{policy.stages[producer].name} starts, and wait for ever"
            )
    return tuple(said)
