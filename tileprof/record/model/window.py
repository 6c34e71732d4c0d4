"""Which launches are kept: captured regions, module names, and a count."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tileprof.record import Options


class Window:
    """Decides launch by launch; counts what it leaves out."""

    def __init__(self, options: Options) -> None:
        self.captures = False
        self.left_out = 0
        self.initialisations = 0
        self._module = re.compile(options.module) if options.module is not None else None
        self._skip = options.skip
        self._count = options.count
        self._open = 0

    def begin_capture(self) -> bool:
        """Enter a captured region; True for the first one of the program."""
        first, self.captures = not self.captures, True
        self._open += 1
        return first

    def end_capture(self) -> None:
        """Leave a captured region."""
        self._open -= 1

    @property
    def closed(self) -> bool:
        """Whether every launch is left out for now, whatever its module."""
        return (self.captures and not self._open) or self._count == 0

    def covers(self, module: str) -> bool:
        """Whether operators of ``module`` are looked at now; a whole operator is, or is not."""
        if self.closed or (self._module is not None and not self._module.search(module)):
            self.left_out += 1
            return False
        return True

    def keeps(self) -> bool:
        """Whether to keep the next launch of an operator that is covered."""
        if self._skip:
            self._skip -= 1
        elif self._count is None:
            return True
        elif self._count:
            self._count -= 1
            return True
        self.left_out += 1
        return False

    def notes(self) -> list[str]:
        """What the trace has to say about its being a window."""
        said = []
        if self.left_out:
            said.append(
                f"A window of the program: {self.left_out} operators or launches were left out (capture, --module, "
                "--skip, --count); what they wrote has no producer here."
            )
        if self.initialisations:
            said.append(
                f"{self.initialisations} operators that only initialise parameters were left out; --initialisation keeps them."
            )
        return said
