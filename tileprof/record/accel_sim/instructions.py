"""One instruction line of an Accel-Sim log: what it does to memory, and at which addresses.

    [x y z warp] [source line] PC mask n destinations… opcode n sources… width [mode addresses…] [immediate]

The block and warp stand in front up to version 2 of the tracer, the source line where lines are traced. ``mask`` says
which of 32 threads are active. Mode 0 lists an address per active thread; mode 1 has the first and a stride, of active
threads that are neighbours; mode 2 has the first and the difference to each next one. Format: ``trace_parser.cc`` of
Accel-Sim (Khairy et al., "Accel-Sim: An Extensible Simulation Framework for Validated GPU Modeling", ISCA 2020).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import Final

from tileprof.trace.footprint import ATOMIC, READ, WRITE

MOST_ADDRESS: Final = 1 << 60
"""Beyond any address of a GPU, and far enough from 2^63 for sums of columns."""

_GLOBAL: Final = {b"LDG": READ, b"LDGSTS": READ, b"STG": WRITE, b"RED": ATOMIC, b"REDG": ATOMIC, b"ATOMG": ATOMIC}
_GENERIC: Final = {b"LD": READ, b"ST": WRITE, b"ATOM": ATOMIC}
"""Their addresses may lie in the windows of shared and local memory."""

_ELSEWHERE: Final = frozenset(
    b"LDS STS LDL STL LDC ULDC LDCU LDSM LDMATRIX STSM ATOMS LDTM STTM "  # shared, local, constant, tensor memory
    b"CCTL CCTLL CCTLT QSPC PREFETCH".split()
)
"""These have addresses, but read and write no bytes of global memory."""

_WITHOUT_ADDRESSES: Final = frozenset(
    b"TEX TLD TLD4 TMML TXD SULD SUST SUATOM SURED UTMALDG UTMASTG UTMAREDG UTMAPF UBLKCP UBLKRED UBLKPF".split()
)
"""These reach global memory by descriptors: the tracer writes no addresses for them, or sectors in an order of its
own.
"""

_THREAD_FLOPS: Final = {
    b"FADD": 1, b"FMUL": 1, b"FFMA": 2, b"DADD": 1, b"DMUL": 1, b"DFMA": 2, b"HADD2": 2, b"HMUL2": 2, b"HFMA2": 4,
    b"MUFU": 1,
}  # fmt: skip
_WARP_FLOPS: Final = {b"884": 512, b"1684": 1024, b"1688": 2048, b"16816": 4096, b"168128": 32768}
"""Operations of HMMA per warp, by its shape m n k: 2 m n k, and a quarter of four 8 x 8 x 4 products for a step of
Volta's.
"""

_WIDTH: Final = re.compile(rb"[USF]?(8|16|32|64|128|256)")


class Kind(IntEnum):
    """The properties of an instruction that `parse` found out."""

    PLAIN = 0
    ACCESS = 1
    UNSEEN = 2
    """Accesses to global memory without addresses."""
    UNKNOWN = 3
    """Addresses under an opcode that is in no list: they may be read and written."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """``mode`` as in `tileprof.trace.footprint`; ``addresses`` one per active thread, ``width`` bytes each."""

    kind: Kind
    opcode: bytes = b""
    mode: int = READ
    generic: bool = False
    width: int = 0
    addresses: tuple[int, ...] = ()
    flops: int = 0
    tensor_flops: int = 0


PLAIN: Final = Instruction(Kind.PLAIN)


def parse(line: bytes, skipped: int) -> Instruction:
    """Return the instruction of a line whose first ``skipped`` words say where it comes from.

    Raises ValueError, with the reason, for a line that does not follow the format.
    """
    words = line.split()
    try:
        mask = _number(words[skipped + 1], 16, 1 << 32, "mask")
        at = skipped + 3 + _number(words[skipped + 2], 10, 64, "number of destinations")
        opcode = words[at]
        at += 2 + _number(words[at + 1], 10, 64, "number of sources")
        width = _number(words[at], 10, 1 << 16, "width of the access")
        base, *suffixes = opcode.split(b".")
        if base in _WITHOUT_ADDRESSES:
            return Instruction(Kind.UNSEEN, base)
        if not width:
            return _arithmetic(base, suffixes, mask)
        if base in _ELSEWHERE or not mask:
            return PLAIN
        addresses = _addresses(words[at + 1 :], mask)
    except IndexError:
        raise ValueError("it ends too early") from None
    mode = _GLOBAL.get(base, _GENERIC.get(base))
    return Instruction(
        Kind.UNKNOWN if mode is None else Kind.ACCESS,
        base,
        READ if mode is None else mode,
        base in _GENERIC,
        _width(suffixes),
        addresses,
    )


def _arithmetic(base: bytes, suffixes: list[bytes], mask: int) -> Instruction:
    if base == b"HMMA":
        return Instruction(Kind.PLAIN, tensor_flops=_WARP_FLOPS.get(suffixes[0] if suffixes else b"", 0))
    flops = _THREAD_FLOPS.get(base)
    return PLAIN if flops is None else Instruction(Kind.PLAIN, flops=flops * mask.bit_count())


def _width(suffixes: list[bytes]) -> int:
    """Return bytes per thread, from the opcode: NVBit's own number is wrong for some, and Accel-Sim does not use it
    either.
    """
    matches = (_WIDTH.fullmatch(suffix) for suffix in suffixes)
    return max((int(match[1]) // 8 for match in matches if match), default=4)


def _addresses(words: list[bytes], mask: int) -> tuple[int, ...]:
    active = mask.bit_count()
    form = _number(words[0], 10, 3, "address mode")
    first = _number(words[1], 16, MOST_ADDRESS, "address")
    if form == 0:
        addresses = (first, *(_number(words[1 + n], 16, MOST_ADDRESS, "address") for n in range(1, active)))
    elif form == 1:
        neighbours = mask // (mask & -mask)
        if neighbours & (neighbours + 1):
            raise ValueError(f"it has a stride for threads that are no neighbours (mask {mask:08x})")
        stride = _difference(words[2])
        addresses = tuple(first + n * stride for n in range(active))
    else:
        addresses = tuple(accumulate((_difference(words[1 + n]) for n in range(1, active)), initial=first))
    if not 0 <= min(addresses) <= max(addresses) < MOST_ADDRESS:
        raise ValueError("its addresses leave the address space")
    return addresses


def _number(word: bytes, base: int, below: int, what: str) -> int:
    try:
        value = int(word, base)
    except ValueError:
        value = -1
    if not 0 <= value < below:
        raise ValueError(f"{word[:40].decode('utf-8', 'replace')!r} is no {what}")
    return value


def _difference(word: bytes) -> int:
    try:
        value = int(word)
    except ValueError:
        value = MOST_ADDRESS
    if abs(value) >= MOST_ADDRESS:
        raise ValueError(f"{word[:40].decode('utf-8', 'replace')!r} is not a difference of addresses")
    return value
