"""Finds the table that holds for a device; read once, when it is first asked for."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tileprof.record.model.tables.file import Table, read

if TYPE_CHECKING:
    from tileprof.devices import Device

FOLDER: Final = Path(__file__).parent


def table(family: str, device: Device) -> Table | None:
    """Return the table of a family that was measured on this GPU; None where there is none.

    The newest of several library versions counts. A device that was changed (other SMs) is another GPU. Raises
    UserError when the file is damaged.
    """
    measured = _table(family, device.name, FOLDER)
    if measured is None or (measured.about["architecture"], measured.about["sms"]) != (device.architecture, device.sms):
        return None
    return measured


@cache
def _table(family: str, gpu: str, folder: Path) -> Table | None:
    files = sorted((folder / gpu.lower()).glob(f"{family}-*.npz"), key=_version)
    return read(files[-1]) if files else None


def _version(path: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", path.stem)))
