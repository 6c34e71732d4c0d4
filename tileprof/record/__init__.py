"""Recorders: each runs the user's program and writes a trace; one folder a recorder.

A recorder is a module with ``record(options: Options) -> int``: it runs the program, writes the trace at
``options.output`` and returns the program's exit code. It raises `UserError` before the program starts when it
cannot work here.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from tileprof.errors import UserError
from tileprof.nesting import compile_pattern
from tileprof.record.command import parse
from tileprof.trace.schema import SUFFIX

if TYPE_CHECKING:
    from tileprof.record.model.recording_context import Recording

RECORDERS: Final = {"model": "tileprof.record.model", "cuda": "tileprof.record.cuda"}
"""Recorder name to the module that holds it."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a recording: the program, the output, and how much of the program to record.

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
    nvtx: str | None = None
    """Keep launches inside NVTX ranges whose name this matches anywhere."""
    initialisation: bool = False
    """Keep launches that only construct, initialise or convert modules, before the first one is called."""
    json: bool = False
    """End with one JSON object on stderr instead of sentences."""
    tile: tuple[str, ...] = ()
    """Tile shapes that the user dictates (`tileprof.record.model.tiles.foundations.overrides`)."""

    def __post_init__(self) -> None:
        if not self.program:
            raise UserError("no program to record; type for example `tileprof record python infer.py`")
        if self.skip < 0:
            raise UserError(f"--skip takes a number of launches from 0, not {self.skip}")
        if self.count is not None and self.count < 1:
            raise UserError(f"--count takes a number of launches from 1, not {self.count}")
        for option, pattern in (("--module", self.module), ("--nvtx", self.nvtx)):
            try:
                compile_pattern(pattern or "")
            except re.error as error:
                raise UserError(f"{option} {pattern!r} is not a regular expression: {error}") from None

    def arguments(self) -> list[str]:
        """Return the command line of ``tileprof record`` that gives these options, without the program."""
        options = [f"--output={self.output}", f"--device={self.device}", f"--skip={self.skip}"]
        options += ["--force"] * self.force + ["--fake"] * self.fake + ["--initialisation"] * self.initialisation
        options += ["--json"] * self.json
        options += [] if self.count is None else [f"--count={self.count}"]
        options += [f"--tile={word}" for word in self.tile]
        options += [] if self.nvtx is None else [f"--nvtx={self.nvtx}"]
        return options + ([] if self.module is None else [f"--module={self.module}"])


class Recorder(Protocol):
    """The one thing a recorder's module offers."""

    def record(self, options: Options) -> int: ...


def recorder(name: str) -> Recorder:
    """Return the recorder of that name; "auto" is `automatic`."""
    return cast("Recorder", import_module(RECORDERS[automatic().name if name == "auto" else name]))


@dataclass(frozen=True, slots=True)
class Choice:
    """A recorder's name, and why it was taken, as the end of a sentence; "" where there was no choice."""

    name: str
    why: str


def automatic() -> Choice:
    """Return what "auto" stands for: "cuda" where this machine has all that recording real kernels needs, "model"
    elsewhere.

    Only looks: a GPU that can be instrumented, NVIDIA's library, compilers, and no other tool in CUDA programs.
    """
    from tileprof.record import cuda  # noqa: PLC0415 - a recorder, and recorders know this module

    if not cuda.has_gpu():
        return Choice("model", "")
    missing = cuda.missing()
    if missing:
        return Choice("model", f"the kernels of this machine's GPU cannot be recorded: {missing}")
    return Choice("cuda", "this machine has a GPU and what recording on it needs")


def default_output(program: tuple[str, ...]) -> Path:
    """Return ``./<stem>.tileprof``, after the script or module that ``program`` names."""
    return Path(parse(program).stem + SUFFIX)


class _CallableModule(ModuleType):
    """``tileprof.record`` is this package and, as in ``with tileprof.record("x.tileprof"):``, what records from
    Python.
    """

    def __call__(self, path: str | os.PathLike[str], **options: Any) -> AbstractContextManager[Recording]:
        """Record the PyTorch operators that run inside the context; see
        `tileprof.record.model.recording_context.recording`.
        """
        from tileprof.record.model.recording_context import recording  # noqa: PLC0415 - imports this module

        return recording(path, **options)


sys.modules[__name__].__class__ = _CallableModule
