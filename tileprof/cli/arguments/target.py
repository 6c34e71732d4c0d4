"""Files that a verb writes: what may be overwritten, and what never is."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from tileprof.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def check_file(target: Path, *, force: bool) -> None:
    """Raise `UserError` where ``target`` cannot be written, or must not be; cheap, so that it can be asked before the
    work.

    ``force`` overwrites plain files only: no device, pipe or socket, and nothing inside a trace.
    """
    from tileprof.trace.folder import refuse_inside  # noqa: PLC0415 - heavy, and not needed for --help

    if str(target) == "-":
        raise UserError("- names no file, and stdout is not written to; give the name of a file")
    if target.is_dir():
        raise UserError(
            f"{target} is a folder; name the file to write in it, for example {target / 'out'}{target.suffix}"
        )
    refuse_inside(target)
    if target.exists() and not target.is_file():
        raise UserError(f"{target} is not a plain file (a device, a pipe or a socket): will not replace it")
    if target.exists() and not force:
        raise UserError(f"will not overwrite {target} without --force")
    folder = target.resolve().parent
    if not folder.is_dir():
        raise UserError(f"there is no folder {target.parent} to write {target.name} into")
    try:  # to write is the one test that read-only file systems, quotas and rights all answer
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"tileprof")
    except OSError as error:
        raise UserError(f"could not write {target}: {error.strerror or error}") from error
