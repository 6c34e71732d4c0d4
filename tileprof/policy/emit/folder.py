"""Several files into one folder: all of them or none, and nothing overwritten unasked."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from tileprof.errors import UserError
from tileprof.trace.folder import refuse_inside


def check_free(folder: Path, names: list[str], *, force: bool) -> None:
    """Raise `UserError` where ``folder`` cannot take these files; cheap, so that it can be asked before the work."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder to write into: -o DIR")
    if not folder.resolve().parent.is_dir():
        raise UserError(f"there is no folder {folder.resolve().parent} to make {folder.name} in")
    refuse_inside(folder)
    there = [name for name in names if (folder / name).exists()]
    if there and not force:
        raise UserError(f"will not overwrite {folder / there[0]} without --force")
    odd = [name for name in there if not (folder / name).is_file()]
    if odd:
        raise UserError(f"{folder / odd[0]} is not a file, and one is to be written there")


def write_folder(folder: Path, texts: Mapping[str, str], *, force: bool) -> list[Path]:
    """Write ``texts`` by file name; everything is on disk before the first file appears. Raises `UserError`."""
    check_free(folder, list(texts), force=force)
    # The folder's own file system where there is one: files then move whole, and what lies above it need not be
    # writable.
    beside = folder if folder.exists() else folder.resolve().parent
    try:
        with tempfile.TemporaryDirectory(prefix=".tileprof.", dir=beside) as work:
            for name, text in texts.items():
                (Path(work) / name).write_text(text, encoding="utf-8")
            folder.mkdir(exist_ok=True)
            for name in texts:
                (Path(work) / name).replace(folder / name)
    except OSError as error:
        raise UserError(f"could not write into {folder}: {error.strerror or error}") from error
    return [folder / name for name in texts]
