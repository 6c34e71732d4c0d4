"""Recording a part of a running program: what ``with tileprof.record(path):`` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import tileprof
from tileprof import devices
from tileprof.errors import UserError
from tileprof.record import Options, capture


@dataclass(slots=True)
class Recording:
    """The value of ``with tileprof.record(path) as recording:``; ``notes`` are those of the trace, once it is
    written.
    """

    path: Path
    state: str = "is being written"
    notes: list[str] = field(default_factory=list)

    def trace(self) -> tileprof.LoadedTrace:
        """Return the trace, as `tileprof.load` gives it. Raises UserError before the end of the ``with`` block."""
        if self.state != "written":
            raise UserError(f"{self.path} {self.state}: read its trace after the `with` block")
        return tileprof.load(self.path)

    def __repr__(self) -> str:
        notes = f", {len(self.notes)} notes" if self.notes else ""
        return f"<Recording {self.path}: {self.state}{notes}>"


@contextmanager
def recording(
    path: str | os.PathLike[str],
    *,
    device: str = "H200",
    fake: bool = False,
    force: bool = False,
    module: str | None = None,
    tile: Sequence[str] = (),
) -> Iterator[Recording]:
    """Write a trace of the PyTorch operators that run inside, as the model recorder does; options as of ``tileprof
    record``.

    Inside a program that is already being recorded it limits that recording, as `tileprof.capture` does. A program that
    raises leaves a partial trace. Raises UserError where PyTorch is missing, the trace exists, or an option is wrong.
    """
    if capture.listening():
        with capture.capture():
            yield Recording(Path(path), "is part of the recording of the whole program")
        return
    if find_spec("torch") is None:
        raise UserError(f"PyTorch is not installed for {sys.executable}: `{sys.executable} -m pip install torch`")
    from tileprof.record.model.session import Session  # noqa: PLC0415 - imports PyTorch
    from tileprof.record.model.tiles import load_all  # noqa: PLC0415 - imports PyTorch
    from tileprof.record.model.tiles.foundations import overrides  # noqa: PLC0415 - imports PyTorch

    load_all()
    for word in tile:
        overrides.parse(word)
    command = ("python", sys.argv[0] or "-")
    options = Options(
        program=command, output=Path(path), force=force, device=device, fake=fake, module=module, tile=tuple(tile)
    )
    session = Session(options, devices.get(device), list(command))
    session.start()
    recorder = Recording(Path(path))
    try:
        yield recorder
    except BaseException as error:
        session.stop()
        recorder.state = "ended with an error"
        session.writer.abandon(f"{type(error).__name__}: {error}".removesuffix(": "))
        raise
    recorder.notes = session.stop()
    if session.failure is not None:
        recorder.state = "ended with an error"
        session.writer.abandon(session.failure)
        raise UserError(f"the recording stopped: {session.failure}")
    session.writer.close(0)
    recorder.state = "written"
