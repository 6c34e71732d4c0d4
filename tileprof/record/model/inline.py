"""Recording a part of a running program: what ``with tileprof.record(path):`` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tileprof import devices
from tileprof.errors import UserError
from tileprof.record import Options, capture


@contextmanager
def recording(
    path: str | os.PathLike[str],
    *,
    device: str = "H200",
    fake: bool = False,
    force: bool = False,
    module: str | None = None,
    tile: Sequence[str] = (),
) -> Iterator[None]:
    """Write a trace of the PyTorch operators that run inside, as the model recorder does; options as of ``tileprof
    record``.

    Inside a program that is already being recorded it limits that recording, as `tileprof.capture` does. A program that
    raises leaves a partial trace. Raises UserError where PyTorch is missing, the trace exists, or an option is wrong.
    """
    if capture.listening():
        with capture.capture():
            yield
        return
    if find_spec("torch") is None:
        raise UserError(f"PyTorch is not installed for {sys.executable}: `{sys.executable} -m pip install torch`.")
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
    try:
        yield
    except BaseException as error:
        session.stop()
        session.writer.abandon(f"{type(error).__name__}: {error}".removesuffix(": "))
        raise
    session.stop()
    if session.failure is not None:
        session.writer.abandon(session.failure)
        raise UserError(f"the recording stopped: {session.failure}")
    session.writer.close(0)
