"""How the CUDA recorder is told to work: validated options, and the environment that carries them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tileprof.errors import UserError

PASSES: Final = ("accesses", "blocks", "time")
"""In the order they run. The first one owns the program's stdin, stdout and exit code."""

PATCH: Final = ("load", "range")
"""When code is patched: as modules are loaded, or while a captured region lasts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to record with, beyond what every recorder understands.

    ``granule`` is the resolution of recorded addresses in bytes, a power of two; ``arena_bytes`` the device memory for
    records; ``replay`` allows launches to be repeated to learn who stores through tensor maps; ``kernel`` and
    ``exclude`` are regular expressions over demangled kernel names; ``capture_only`` records nothing before
    ``tileprof.capture()`` or ``cudaProfilerStart``; ``patch`` "range" leaves code alone and does not even count launches
    outside of those, so that the program runs there at its own speed, but CUDA graphs made before a region stay
    unseen and are recorded conservatively; ``verify`` compares all device memory
    before and after every launch with what was recorded, slowly; ``raw`` keeps the raw records in this folder.
    """

    passes: tuple[str, ...] = PASSES
    granule: int = 32
    arena_bytes: int = 2 << 30
    replay: bool = True
    hooks: bool = True
    verify: bool = False
    kernel: str | None = None
    exclude: str | None = None
    capture_only: bool = False
    patch: str = "load"
    raw: Path | None = None

    def __post_init__(self) -> None:
        unknown = [p for p in self.passes if p not in PASSES]
        if unknown or not self.passes:
            raise UserError(
                f"--passes takes some of {', '.join(PASSES)}; it was given {', '.join(self.passes) or 'none'}."
            )
        if not 1 <= self.granule <= 4096 or self.granule & (self.granule - 1):
            raise UserError(f"--granule takes a power of two from 1 to 4096, not {self.granule}.")
        if self.patch not in PATCH:
            raise UserError(f"--patch takes {' or '.join(PATCH)}, not {self.patch}.")
        if self.patch == "range" and not self.capture_only:
            raise UserError("--patch range is about captured regions: give --capture as well.")
        if self.arena_bytes < 1 << 16:
            raise UserError(f"--arena takes at least 65536 bytes, not {self.arena_bytes}.")
        for option, pattern in (("--kernel", self.kernel), ("--exclude", self.exclude)):
            try:
                re.compile(pattern or "")
            except re.error as error:
                raise UserError(f"{option} {pattern!r} is not a regular expression: {error}.") from None

    def environment(self, pass_: str, *, skip: int, count: int | None) -> dict[str, str]:
        """The variables that tell the injection library what to do in one pass."""
        out = {
            "TILEPROF_PASS": pass_, "TILEPROF_GRANULE": str(self.granule), "TILEPROF_ARENA": str(self.arena_bytes),
            "TILEPROF_REPLAY": str(int(self.replay)), "TILEPROF_CAPTURE": str(int(not self.capture_only)),
            "TILEPROF_SKIP": str(skip), "TILEPROF_VERIFY": str(int(self.verify)), "TILEPROF_PATCH": self.patch,
        }  # fmt: skip
        out |= {"TILEPROF_COUNT": str(count)} if count is not None else {}
        out |= {"TILEPROF_KERNEL": self.kernel} if self.kernel else {}
        return out | ({"TILEPROF_EXCLUDE": self.exclude} if self.exclude else {})
