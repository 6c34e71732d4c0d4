"""What instructions for sm_90 compute and which memory they touch: for integers, exactly as the hardware does.

What is not known for certain has no `Step` or `Access`: its results are unknown, and no proof is built on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tileprof.record.cuda.code.instructions import Instruction

Word = int | NDArray[np.uint32]
"""A register of all lanes: one number below 2^32 for all, or one per lane."""
Flag = bool | NDArray[np.bool_]
"""A predicate of all lanes."""
Values = Sequence[Word | Flag]


@dataclass(frozen=True, slots=True)
class Indexed:
    """A load from constant bank 0 at the byte ``value of the only register read + offset`` (mod 2^32), ``size`` bytes
    per lane, a multiple of ``size``. What is loaded lies in ``words`` words from that byte, rounded down to 4.
    """

    offset: int
    size: int

    @property
    def words(self) -> int:
        """Words of 32 bits that hold what is loaded."""
        return max(1, self.size // 4)


@dataclass(frozen=True, slots=True)
class Step:
    """How an instruction computes what it writes from what it reads; its guard is not part of it.

    ``reads`` names what ``run`` takes, in that order, and ``writes`` what it returns: registers ("R4", "UR5"),
    predicates ("P0", "UP1"), special registers ("SR_TID.X", "SR_CTAID.Z", "SR_LANEID") and words of constant bank 0
    ("c[0x210]", a multiple of 4). Registers and predicates that are constants (RZ, PT) are not among them. ``run`` is
    pure and goes lane by lane; numbers give numbers, arrays (among numbers, perhaps) arrays.

    With ``indexed``, ``run`` takes the words loaded after the register. With ``source_lane`` the instruction hands out
    the value that this lane of the warp has: ``run`` takes it, and returns what each lane gets.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    run: Callable[[Values], Values]
    indexed: Indexed | None = None
    source_lane: int | None = None

    @property
    def crosses_lanes(self) -> bool:
        """Whether what a lane gets depends on other lanes of its warp."""
        return self.source_lane is not None


@dataclass(frozen=True, slots=True)
class Access:
    """An access of global memory: ``size`` bytes per lane at ``address`` of the values that ``reads`` names.

    ``mode``: READ, WRITE or ATOMIC of `tileprof.trace`. ``condition``: a predicate, and whether it is negated; lanes
    where it is false touch nothing. It is no part of ``reads``, and neither is the guard.
    """

    mode: int
    size: int
    reads: tuple[str, ...]
    address: Callable[[Values], int | NDArray[np.uint64]]
    condition: tuple[str, bool] | None = None


def step(instruction: Instruction) -> Step | None:
    """Return how an instruction computes what it writes; None where that is not known or depends on memory."""
    raise NotImplementedError(instruction)


def access(instruction: Instruction) -> Access | None:
    """Return the access of global memory that an instruction is; None where it is none, or not a known one."""
    raise NotImplementedError(instruction)


def is_harmless(instruction: Instruction) -> bool:
    """Return whether an instruction certainly touches no global memory, whatever its operands hold.

    Branches and exits are harmless; calls, returns and jumps to addresses in registers are not.
    """
    raise NotImplementedError(instruction)
