"""Files that the workers of a test run share: the first worker that needs one makes it, and the others wait."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass
class Place:
    """Return the folder of shared files; `tests/conftest.py` sets it before the first test."""

    folder: Path | None = None


PLACE: Final = Place()


def once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the file or folder ``name``. ``make`` makes it at the given path."""
    assert PLACE.folder is not None, "no run of tests has begun"
    result, making = PLACE.folder / name, PLACE.folder / f"{name}.new"
    with (PLACE.folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            make(making)
            making.rename(result)
    return result
