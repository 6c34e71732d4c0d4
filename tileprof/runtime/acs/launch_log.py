"""The launches of a process, as the preloaded library logs them (`native/launch_log.cpp`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Logged:
    """A launch as the program made it: when the call began and returned (ns), the kernel, grid, block and shared
    memory.
    """

    begin: int
    end: int
    symbol: str
    shape: tuple[int, ...]
    whole: bool
    """Its parameters were read, and it may be made in another stream."""
    parameters: bytes


def read_log(path: Path) -> list[Logged]:
    """Return the launches of a process, in order; without lines that say something else, and one that a killed process
    left unfinished.
    """
    out = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split(" ")
        if len(words) != 13 or not line.endswith("."):  # as launch_log.cpp writes them
            continue
        numbers = tuple(map(int, words[3:10]))
        block = bytes.fromhex(words[12][:-1])[: int(words[11])]
        out.append(Logged(int(words[0]), int(words[1]), words[2], numbers, words[10] == "1", block))
    return out


def read_stack(path: Path) -> int:
    """Return an address in the stack of the process's first thread, as its log says it; 0 where it does not."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        words = lines.readline().split()
    return int(words[1]) if len(words) == 2 and words[0] == "stack" else 0
