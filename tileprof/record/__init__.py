"""Recorders: each runs the user's program and writes a trace; one folder a recorder.

A recorder is a module with ``record(options: Options) -> int``: it runs the program, writes the trace at
``options.output`` and returns the program's exit code. It raises `UserError` before the program starts when it
cannot work here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from tileprof.errors import UserError
from tileprof.record.command import parse
from tileprof.trace.schema import SUFFIX

RECORDERS: Final = {"model": "tileprof.record.model", "cuda": "tileprof.record.cuda"}
"""Recorder name to the module that holds it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to record, where to, and how much of it.

    ``skip`` and ``count`` are launches: of those that the other limits keep, the first ``skip`` are left out and
    at most ``count`` kept (None: all). ``module`` keeps launches whose module path it matches anywhere.
    """

    program: tuple[str, ...]
    output: Path
    force: bool = False
    device: str = "H200"
    fake: bool = False
    skip: int = 0
    count: int | None = None
    module: str | None = None
    initialisation: bool = False
    """Keep launches that only initialise parameters, before the first module is called."""
    tile: tuple[str, ...] = ()
    """Tile shapes that the user dictates (`tileprof.record.model.tiles.overrides`)."""

    def __post_init__(self) -> None:
        if not self.program:
            raise UserError("No program to record; type for example `tileprof record python infer.py`.")
        if self.skip < 0:
            raise UserError(f"--skip takes a number of launches from 0, not {self.skip}.")
        if self.count is not None and self.count < 1:
            raise UserError(f"--count takes a number of launches from 1, not {self.count}.")
        try:
            re.compile(self.module or "")
        except re.error as error:
            raise UserError(f"--module {self.module!r} is not a regular expression: {error}.") from None

    def arguments(self) -> list[str]:
        """The command line of ``tileprof record`` that gives these options, without the program."""
        given = [f"--output={self.output}", f"--device={self.device}", f"--skip={self.skip}"]
        given += ["--force"] * self.force + ["--fake"] * self.fake + ["--initialisation"] * self.initialisation
        given += [] if self.count is None else [f"--count={self.count}"]
        given += [f"--tile={word}" for word in self.tile]
        return given + ([] if self.module is None else [f"--module={self.module}"])


class Recorder(Protocol):
    """The one thing a recorder's module offers."""

    def record(self, options: Options) -> int: ...


def recorder(name: str) -> Recorder:
    """The recorder of that name; "auto" is `automatic`."""
    return cast("Recorder", import_module(RECORDERS[automatic() if name == "auto" else name]))


def automatic() -> str:
    """What "auto" stands for: "model", which works everywhere.

    To become ``"cuda" if tileprof.record.cuda.works_here() else "model"`` once every step of ``tests/gpu/run.py`` has passed
    on a GPU; ``--fake`` and ``--device`` ask for the model whatever is here.
    """
    return "model"


def default_output(program: tuple[str, ...]) -> Path:
    """``./<stem>.tileprof``, after the script or module that ``program`` names."""
    return Path(parse(program).stem + SUFFIX)
