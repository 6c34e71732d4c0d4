"""Sizes of a layer of experts, as they are compiled into its kernel and its co-pilot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from tileprof.errors import UserError
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.persistent.dealing import COMMANDS
from tileprof.runtime.persistent.source import SHARED_BYTES, multiply

ROWS: Final = 64
COLUMNS: Final = 64
GROUP: Final = 8
"""Tokens of a task that routes."""
LINE: Final = 32
_MOST_NUMBER: Final = 1 << 18
_LINK_HEAD: Final = 16


class Dealing(IntEnum):
    """The authority that assigns tasks to blocks, as numbered in common.cuh: lists of all that may exist, a queue on
    the GPU, or a thread of the CPU.
    """

    LISTS = 0
    QUEUE = 1
    PILOT = 2


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """``tokens`` rows of ``width``, each sent to ``top`` of ``experts`` gated MLPs whose inner layer is ``inner``
    wide.

    Raises `UserError` for sizes that the kernel does not support.
    """

    dtype: Literal["float16", "bfloat16"]
    tokens: int
    width: int
    inner: int
    experts: int
    top: int

    def __post_init__(self) -> None:
        limits = {
            f"a width that {256} divides": self.width % 256 == 0,
            f"an inner width that {COLUMNS} divides": self.inner % COLUMNS == 0,
            "1 to 32 experts, and at most 4 of them for a token": 1 <= self.top <= min(4, self.experts) <= 32,
            "tiles that 18 bits number": self.tiles * max(self.ups, self.downs) < _MOST_NUMBER,
            "at least one token": self.tokens > 0,
        }
        for sentence, holds in limits.items():
            if not holds:
                raise UserError(f"the kernel of experts takes {sentence}; this layer is {self}")

    @property
    def high(self) -> int:
        """Tiles of rows that an expert has room for."""
        return -(-self.tokens // ROWS)

    @property
    def tiles(self) -> int:
        """Tiles of rows of all experts."""
        return self.experts * self.high

    @property
    def ups(self) -> int:
        """Tasks of the inner layer of a tile of rows."""
        return self.inner // COLUMNS

    @property
    def downs(self) -> int:
        """Tasks of the result of a tile of rows."""
        return self.width // COLUMNS

    @property
    def most_tiles(self) -> int:
        """Tiles of rows that can exist: full ones, and one of each expert that is not."""
        entries = self.tokens * self.top
        return entries // ROWS + min(self.experts, entries)

    @property
    def routes(self) -> int:
        """Tasks that route."""
        return -(-self.tokens // GROUP)

    @property
    def counts_words(self) -> int:
        """Words of Arguments::counts."""
        return 2 * self.tiles + LINE * (5 + self.experts) + self.tokens * self.downs

    def kept_words(self, blocks: int) -> int:
        """Words of Arguments::kept."""
        return 3 * LINE + 2 * blocks + self.most_tiles * (self.ups + self.downs)

    def messages(self, blocks: int) -> int:
        """Places in the ring to the CPU: more than may be under way."""
        return 1 << (blocks * COMMANDS + self.tiles).bit_length()

    def link_words(self, blocks: int) -> int:
        """64-bit words of the memory that GPU and CPU share."""
        return _LINK_HEAD + blocks * COMMANDS + self.messages(blocks)

    def header(self, blocks: int, dealing: Dealing, *, delay_ns: int, timeout_ns: int) -> str:
        """Return the text of config.h, for a launch of ``blocks``."""
        sizes = {
            "TOKENS": self.tokens, "WIDTH": self.width, "INNER": self.inner, "EXPERTS": self.experts, "TOP": self.top,
            "MOST_FULL": self.tokens * self.top // ROWS, "BLOCKS": blocks, "DEALING": int(dealing),
            "COMMANDS": COMMANDS, "MESSAGES": self.messages(blocks), "COUNTS_WORDS": self.counts_words,
            "KEPT_WORDS": self.kept_words(blocks),
        }  # fmt: skip
        return "\n".join(
            [
                f"#define BFLOAT16 {int(self.dtype == 'bfloat16')}",
                *(f"constexpr int {name} = {value};" for name, value in sizes.items()),
                f"constexpr unsigned SHARED_BYTES = {SHARED_BYTES}, DELAY_NS = {delay_ns};",
                f"constexpr unsigned long long TIMEOUT_NS = {timeout_ns}ull;",
                "template <int> struct Multiply;",
                multiply(32, self.dtype),
                multiply(64, self.dtype),
                "",
            ]
        )

    def graph(self, blocks: int, choices: Choices) -> str:
        """Return the text of graph.h, for the co-pilot of a launch of ``blocks``."""
        commands = -(-self.routes // blocks) + choices.depth + 2  # of which two end runs
        if commands > COMMANDS:
            raise UserError(
                f"a block would be sent {commands} commands, for which its ring of {COMMANDS} has no room; take fewer "
                "tokens or more blocks"
            )
        sizes = {
            "BLOCKS": blocks, "TILES": self.tiles, "UPS": self.ups, "DOWNS": self.downs, "ROUTES": self.routes,
            "COMMANDS": COMMANDS, "MESSAGES": self.messages(blocks), "DEPTH": choices.depth,
            "SPECULATE": int(choices.speculate),
        }  # fmt: skip
        return "".join(["#pragma once\n", *(f"constexpr int {name} = {value};\n" for name, value in sizes.items())])
