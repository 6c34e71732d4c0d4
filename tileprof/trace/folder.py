"""The folder of a trace: claims a place for a new one, and puts it there in one step.

A recording writes into ``<name>.tileprof.partial`` and is renamed to ``<name>.tileprof`` when it is whole.
Making the partial folder is the lock: who makes it owns it.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, Final

from tileprof.errors import UserError
from tileprof.trace import manifest
from tileprof.trace.schema import SUFFIX

PARTIAL: Final = ".partial"
_NAME_BYTES: Final = 230  # file systems take 255, of which ".partial" or ".replaced-<pid>" is ours


def places(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the whole trace's folder and the partial one, for a path with or without the suffix.

    Raises UserError for a path that has no name of its own (``.``, ``/``), for ``-``, or for one that is too long for
    a file system.
    """
    path = Path(path)
    if str(path) == "-":
        raise UserError("- (stdin or stdout) cannot carry a trace, which is a folder: give a name such as run.tileprof")
    if path.name in ("", ".."):
        raise UserError(f"{path} cannot name a trace: give a name such as run.tileprof")
    whole = path if path.name.endswith(SUFFIX) else path.with_name(path.name + SUFFIX)
    length = len(os.fsencode(whole.name))
    if length > _NAME_BYTES:
        raise UserError(f"{whole.name[:20]}… is {length} bytes long: a trace's name takes at most {_NAME_BYTES}")
    return whole, whole.with_name(whole.name + PARTIAL)


def claim(whole: Path, partial: Path, first_manifest: dict[str, Any], *, force: bool) -> None:
    """Make the partial folder with ``first_manifest``.

    Raises UserError when a trace, a recording or something else is in the way, OSError when it cannot be made.
    """
    refuse_existing(whole, force=force)
    if partial.exists() or partial.is_symlink():
        pid = manifest.live_writer(partial)
        if pid is not None:
            raise UserError(
                f"{partial} is being written by process {pid}: choose another name with -o (or remove it, if you know "
                "that process is not a recording)"
            )
        if not force:
            holds = "it still loads" if any((partial / "launches").glob("*.parquet")) else "it holds no launches"
            raise UserError(
                f"{partial} is left from a recording that did not end: will not overwrite it without --force ({holds})"
            )
        _refuse_foreign(partial)
        shutil.rmtree(partial)
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
    except FileExistsError:
        raise UserError(f"{partial} was made by another process just now: choose another name with -o") from None
    try:
        manifest.write(partial, first_manifest)
    except OSError:
        partial.rmdir()
        raise


def refuse_existing(whole: Path, *, force: bool) -> None:
    """Raise UserError when ``whole`` exists, unless it is a trace and may be replaced."""
    try:
        if not (whole.exists() or whole.is_symlink()):
            return
    except OSError as error:  # a parent's name that is too long, a folder that may not be read
        raise UserError(sentence(error, f"looking for {whole}")) from None
    _refuse_foreign(whole)
    if not force:
        raise UserError(f"will not overwrite {whole} without --force")


def refuse_inside(path: Path) -> None:
    """Raise UserError for a path within a trace, by its own name or through links: only a recording writes there."""
    for folder in (path, *path.absolute().parents, *path.resolve().parents):
        if manifest.is_trace(folder):
            raise UserError(f"{path} lies in the trace {folder}: will not write there; choose another path")


def _refuse_foreign(path: Path) -> None:
    if not manifest.is_trace(path):
        raise UserError(f"will not replace {path}: it is not a trace; move it away or choose another name with -o")


def publish(partial: Path, whole: Path, *, force: bool) -> None:
    """Rename the partial folder to the whole one; an old trace is removed only after that.

    Raises UserError when something is in the way, OSError when renaming fails; the old trace is then in place.
    """
    refuse_existing(whole, force=force)
    old = whole.with_name(f"{whole.name}.replaced-{os.getpid()}")
    replacing = whole.exists()
    if replacing:
        whole.rename(old)
    try:
        partial.rename(whole)
    except BaseException:
        if replacing:
            old.rename(whole)
        raise
    if replacing:
        shutil.rmtree(old)


def sentence(error: OSError, doing: str) -> str:
    """Return what a user can do about a disk that does not take the trace."""
    if error.errno == errno.ENOSPC:
        return f"the disk is full while {doing}: free some space, or record to another disk with -o"
    if error.errno == errno.EDQUOT:
        return f"your disk quota is used up while {doing}: free some space, or record to another disk with -o"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission while {doing}: record to a folder you may write to with -o"
    return f"{error.strerror or error} while {doing}"
