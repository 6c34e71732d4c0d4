"""Decides which launches are kept: captured regions, module names, and a count."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tileprof.nesting import compile_pattern

if TYPE_CHECKING:
    from tileprof.record import Options


_CAPTURE, _NVTX, _MODULE, _COUNT = (
    "outside tileprof.capture()",
    "outside the NVTX ranges that --nvtx asks for",
    "of modules that --module leaves out",
    "beyond --skip and --count",
)


class Window:
    """Decides launch by launch; counts what it leaves out."""

    def __init__(self, options: Options) -> None:
        self.captures = options.nvtx is not None
        self._left_out: Counter[str] = Counter()
        self.initialisations = 0
        self._module = compile_pattern(options.module) if options.module is not None else None
        self._limits = options.skip, options.count
        self._skip, self._count = self._limits
        self._open = 0
        self._outside = _CAPTURE if options.nvtx is None else _NVTX

    def begin_capture(self) -> bool:
        """Enter a captured region; True for the first one of the program."""
        first, self.captures = not self.captures, True
        self._open += 1
        if first:
            self._skip, self._count = self._limits
        return first

    def before_capture(self, launches: int) -> None:
        """The number of launches that had been kept when the first captured region began; they are left out."""
        self._left_out = Counter({_CAPTURE: self._left_out.total() + launches})

    def begin_range(self) -> None:
        """Enter an NVTX range that matches; `end_capture` leaves it."""
        self._open += 1

    def end_capture(self) -> None:
        """Leave a captured region."""
        self._open -= 1

    @property
    def closed(self) -> bool:
        """True while every launch is left out, whatever its module."""
        return (self.captures and not self._open) or self._count == 0

    def covers(self, module: str) -> bool:
        """Return whether operators of ``module`` are looked at now; a whole operator is, or is not."""
        if self.captures and not self._open:
            reason = self._outside
        elif self._count == 0:
            reason = _COUNT
        elif self._module is not None and not self._module.search(module):
            reason = _MODULE
        else:
            return True
        self._left_out[reason] += 1
        return False

    def keeps(self) -> bool:
        """Return whether to keep the next launch of an operator that is covered."""
        if self._skip:
            self._skip -= 1
        elif self._count is None:
            return True
        elif self._count:
            self._count -= 1
            return True
        self._left_out[_COUNT] += 1
        return False

    def notes(self) -> list[str]:
        """Return what the trace has to say about its being a window."""
        sentences = [
            f"{count} operator{'s or launches' if count > 1 else ' or launch'} {reason} "
            f"{'were' if count > 1 else 'was'} left out; "
            f"what {'they' if count > 1 else 'it'} wrote has no producer here."
            for reason, count in sorted(self._left_out.items())
        ]
        if self.initialisations:
            many = self.initialisations > 1
            sentences.append(
                f"{self.initialisations} operator{'s that only initialise' if many else ' that only initialises'} "
                f"modules {'were' if many else 'was'} left out; --initialisation keeps {'them' if many else 'it'}."
            )
        return sentences
