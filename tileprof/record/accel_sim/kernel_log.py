"""The log of one kernel, ``kernel-N.traceg`` or ``.traceg.xz``, read block by block; never as a whole."""

from __future__ import annotations

import lzma
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.arrays import grids
from tileprof.arrays.intervals import grouped_union
from tileprof.errors import UserError
from tileprof.record.accel_sim.instructions import Instruction, Kind, parse
from tileprof.record.accel_sim.regions import joined
from tileprof.record.cuda.footprints import runs
from tileprof.record.source.layout import ENTRY, Entries
from tileprof.trace.footprint import WRITE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tileprof.arrays import I64
    from tileprof.record.cuda.records.tiles import Dim

MOST_ENTRIES: Final = 8_000_000
"""Strided ranges of a kernel's blocks, 56 bytes each."""

_MOST_LINE: Final = 1 << 16
_MOST_BYTES: Final = 1 << 36
_MOST_BLOCKS: Final = 1 << 24
_MOST_EXTENT: Final = (1 << 31) - 1
_MOST_HEADER_LINES: Final = 1000
_LOCAL_WINDOW: Final = 1 << 24
_ADDRESSES_AT_ONCE: Final = 1 << 20
"""Addresses of one block, before they are united: 8 MiB per mode and width."""

_RANGES_AT_ONCE: Final = 1024
_NONE: Final = np.empty(0, np.int64)

_TRIPLE: Final = re.compile(rb"\((\d{1,10}),(\d{1,10}),(\d{1,10})\)")
_BLOCK: Final = re.compile(rb"thread block = (\d{1,10}),(\d{1,10}),(\d{1,10})")
_WARP: Final = re.compile(rb"warp = (\d{1,10})")
_COUNT: Final = re.compile(rb"insts = (\d{1,18})")
_CLUSTER: Final = re.compile(rb"cluster (?:id|cta|rank) = .*")


@dataclass(slots=True)
class Header:
    """The header in front of the blocks; ``stream`` as the log has it, an address or a small number."""

    name: str = ""
    grid: Dim = (0, 0, 0)
    block: Dim = (0, 0, 0)
    shared_bytes: int = 0
    registers: int = 0
    stream: int = 0
    version: int = 0
    line_info: bool = False
    shared_base: int = 0
    local_base: int = 0

    @property
    def skipped(self) -> int:
        """Words in front of the program counter."""
        return (4 if self.version < 3 else 0) + self.line_info


@dataclass(slots=True)
class KernelLog:
    """``entries`` are ranges of bytes at absolute addresses by linear block; ``unseen``, ``unknown`` are opcodes.

    ``touched`` are ranges ``[low, high)`` that hold all of them, joined where the gap is small.
    """

    header: Header
    entries: Entries
    touched: tuple[I64, I64]
    blocks_missing: int = 0
    unseen: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    flops: int = 0
    tensor_flops: int = 0


def read_kernel(path: Path) -> KernelLog:
    """Return the log at ``path``. Raises `UserError` with file and line where it does not follow the format."""
    if not path.is_file():
        raise UserError(f"cannot read {path}: it is not a file, but kernelslist.g names it")
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            return _Reader(path, iter(lambda: file.readline(_MOST_LINE + 1), b"")).read()
    except (lzma.LZMAError, EOFError) as error:
        raise UserError(f"cannot read {path}: {error!s:.80}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


class _Reader:
    def __init__(self, path: Path, lines: Iterator[bytes]) -> None:
        self._path, self._lines = path, lines
        self._number = self._bytes = 0
        self._entries: list[Entries] = []
        self._accesses_so_far = 0
        self._touched: list[tuple[I64, I64]] = []

    def read(self) -> KernelLog:
        header = self._header()
        log = KernelLog(header, np.empty(0, ENTRY), (_NONE, _NONE))
        block_keys: set[int] = set()
        for line in self._stripped():
            if line == b"#BEGIN_TB":
                block = self._block_number(header)
                if block in block_keys:
                    raise self._wrong(f"thread block {block:,} has begun before")
                block_keys.add(block)
                self._block(log, block)
            elif not line.startswith(b"#"):
                raise self._wrong("an instruction outside of a thread block; logs in the order of execution "
                                  "(kernel-N.trace) are made into .traceg by post-traces-processing")  # fmt: skip
        log.entries = np.concatenate(self._entries) if self._entries else log.entries
        log.touched = self._joined_ranges()
        log.blocks_missing = header.grid[0] * header.grid[1] * header.grid[2] - len(block_keys)
        return log

    def _stripped(self) -> Iterator[bytes]:
        """Yield lines that are not empty."""
        for line in self._lines:
            self._number += 1
            self._bytes += len(line)
            if len(line) > _MOST_LINE:
                raise self._wrong(f"a line of more than {_MOST_LINE:,} bytes")
            if self._bytes > _MOST_BYTES:
                raise self._wrong(f"the log holds more than {_MOST_BYTES >> 30} GiB")
            if line := line.strip():
                yield line

    def _header(self) -> Header:
        header = Header()
        for line in self._stripped():
            if line.startswith(b"#"):
                break
            name, equals, value = (part.strip() for part in line.partition(b"="))
            if not (line.startswith(b"-") and equals) or self._number > _MOST_HEADER_LINES:
                raise self._wrong("a log begins with lines such as `-grid dim = (8,1,1)` and a line that begins with #")
            self._fact(header, name.decode("utf-8", "replace"), value)
        blocks = header.grid[0] * header.grid[1] * header.grid[2]
        if not 0 < blocks <= _MOST_BLOCKS or 0 in header.block:
            raise self._wrong(f"grid {header.grid} and block {header.block}: both are needed, and at most "
                              f"{_MOST_BLOCKS:,} blocks")  # fmt: skip
        return header

    def _fact(self, header: Header, name: str, value: bytes) -> None:
        if name == "-kernel name":
            header.name = value.decode("utf-8", "replace")
        elif name == "-grid dim":
            header.grid = self._triple(value)
        elif name == "-block dim":
            header.block = self._triple(value)
        elif name == "-shmem":
            header.shared_bytes = self._integer(value)
        elif name == "-nregs":
            header.registers = self._integer(value)
        elif name == "-cuda stream id":
            header.stream = self._integer(value)
        elif name == "-accelsim tracer version":
            header.version = self._integer(value)
        elif name == "-enable lineinfo":
            header.line_info = self._integer(value) != 0
        elif name == "-shmem base_addr":
            header.shared_base = self._integer(value, 16)
        elif name == "-local mem base_addr":
            header.local_base = self._integer(value, 16)

    def _integer(self, value: bytes, base: int = 10) -> int:
        try:
            number = int(value, base)
        except ValueError:
            number = -1
        if not 0 <= number < 1 << 64:
            raise self._wrong(f"{value[:40]!r} is not a number from 0")
        return number

    def _triple(self, value: bytes) -> Dim:
        match = _TRIPLE.fullmatch(value.replace(b" ", b""))
        if not match or max(map(int, match.groups())) > _MOST_EXTENT:
            raise self._wrong(f"{value[:40]!r}: expected three extents such as (8,1,1)")
        x, y, z = map(int, match.groups())
        return x, y, z

    def _block_number(self, header: Header) -> int:
        line = next(self._stripped(), b"")
        match = _BLOCK.fullmatch(line)
        x, y, z = map(int, match.groups()) if match else header.grid
        (nx, ny, nz) = header.grid
        if not (x < nx and y < ny and z < nz):
            raise self._wrong(f"{line[:60]!r} is not a `thread block = x,y,z` of grid {header.grid}")
        return grids.number(header.grid, x, y, z)

    def _block(self, log: KernelLog, block: int) -> None:
        """The rest of a block's section, to its #END_TB."""
        accesses: dict[tuple[int, int], list[int]] = defaultdict(list)
        pieces, waiting, expected = [], 0, 0
        for line in self._stripped():
            if line == b"#END_TB":
                break
            if line.startswith(b"insts"):
                expected += self._matched(_COUNT, line)
            elif line.startswith(b"warp"):
                self._matched(_WARP, line)
                if expected:
                    raise self._wrong(f"the warp before has {expected:,} instructions fewer than it says")
            elif not line[:1].isalnum() or expected == 0:
                if not _CLUSTER.fullmatch(line):
                    raise self._wrong("neither an instruction of a warp, nor warp, insts or #END_TB")
            else:
                expected -= 1
                waiting += self._instruction(log, line, accesses)
                if waiting > _ADDRESSES_AT_ONCE:
                    pieces.append(self._united(accesses, block))
                    accesses.clear()
                    waiting = 0
        else:
            raise self._wrong("the log ends inside a thread block; was the program killed while it was traced?")
        if expected:
            raise self._wrong(f"the warp before has {expected:,} instructions fewer than it says")
        pieces.append(self._united(accesses, block))
        self._entries += pieces
        self._accesses_so_far += sum(map(len, pieces))
        if self._accesses_so_far > MOST_ENTRIES:
            raise self._wrong(f"more than {MOST_ENTRIES:,} ranges of bytes; trace fewer blocks")

    def _instruction(self, log: KernelLog, line: bytes, accesses: dict[tuple[int, int], list[int]]) -> int:
        try:
            instruction = parse(line, log.header.skipped)
        except ValueError as error:
            raise self._wrong(f"an instruction that cannot be read: {error}") from None
        log.flops += instruction.flops
        log.tensor_flops += instruction.tensor_flops
        if instruction.kind is Kind.UNSEEN:
            log.unseen.add(instruction.opcode.decode("utf-8", "replace"))
        if instruction.kind is Kind.UNKNOWN:
            log.unknown.add(instruction.opcode.decode("utf-8", "replace")[:40])
            accesses[WRITE, instruction.width] += instruction.addresses
        if instruction.addresses:
            accesses[instruction.mode, instruction.width] += _of_global_memory(instruction, log.header)
        return len(instruction.addresses)

    def _united(self, accesses: dict[tuple[int, int], list[int]], block: int) -> Entries:
        """Return what one block touches as strided boxes; each byte once per mode."""
        if not accesses:
            return np.empty(0, ENTRY)
        low = [np.array(addresses, np.int64) for addresses in accesses.values()]
        sizes = [len(addresses) for addresses in low]
        start = np.concatenate(low)
        mode = np.repeat(np.array([mode for mode, _ in accesses], np.int64), sizes)
        end = start + np.repeat(np.array([width for _, width in accesses], np.int64), sizes)
        order = np.lexsort((start, mode))
        mode = mode[order]
        row, begin, end = grouped_union(mode, start[order], end[order])
        by_start = np.argsort(begin, kind="stable")
        self._touched.append(joined(begin[by_start], end[by_start]))
        if len(self._touched) > _RANGES_AT_ONCE:
            self._touched = [self._joined_ranges()]
        boxes = runs.boxes(runs.Runs(mode[row], begin, end, np.zeros(len(row), np.int64)))
        entries = np.zeros(len(boxes), ENTRY)
        entries["address"], entries["length"], entries["mode"] = boxes.address, boxes.length, boxes.tile
        for level in (0, 1):
            entries[f"count_{level}"], entries[f"stride_{level}"] = boxes.count[:, level], boxes.stride[:, level]
        entries["block"] = block
        return entries

    def _joined_ranges(self) -> tuple[I64, I64]:
        low = np.concatenate([_NONE, *(low for low, _ in self._touched)])
        high = np.concatenate([_NONE, *(high for _, high in self._touched)])
        order = np.argsort(low, kind="stable")
        return joined(low[order], high[order])

    def _matched(self, pattern: re.Pattern[bytes], line: bytes) -> int:
        match = pattern.fullmatch(line)
        if not match:
            raise self._wrong(f"{line[:60]!r} is not a `{pattern.pattern.split(b'(')[0].decode()}n`")
        return int(match[1])

    def _wrong(self, what: str) -> UserError:
        return UserError(f"{self._path}, line {self._number:,}: {what}")


def _of_global_memory(instruction: Instruction, header: Header) -> tuple[int, ...]:
    """Return generic addresses without those in the windows of shared and local memory, where the log says where these
    lie.
    """
    if not (instruction.generic and header.shared_base and header.local_base):
        return instruction.addresses
    low, high = header.shared_base, header.local_base + _LOCAL_WINDOW
    return tuple(address for address in instruction.addresses if not low <= address < high)
