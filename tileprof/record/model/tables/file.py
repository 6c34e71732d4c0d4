"""A table on the disk: keys of integers, values beside them, and what they hold for.

An ``.npz`` of ::

    about       JSON: gpu, architecture, sms, library, version, columns, key, made, digest
    key_<name>  [entries]    one column of the key
    <name>      [...]        values: one per entry, or lists that entries refer to

``digest`` is of all arrays, so that a damaged file is noticed when it is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

_KEY: Final = "key_"
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
"""An odd number with well-spread bits: keys become one word each by multiplication."""


class Table:
    """A measured table. ``keys`` is ``[entries, columns of the key]`` int64; ``columns`` are the values by name."""

    def __init__(self, about: Mapping[str, Any], keys: NDArray[np.int64], columns: Mapping[str, NDArray[Any]]) -> None:
        self.about = dict(about)
        self.keys = keys
        self.columns = dict(columns)
        self.derived: dict[Hashable, Any] = {}
        """Results that users of the table compute once."""

    def __len__(self) -> int:
        return len(self.keys)

    def row(self, key: Sequence[int]) -> int | None:
        """Return the entry of exactly this key; None where there is none."""
        words, order = self._words
        word = _mixed(np.array([key], np.int64))[0]
        for at in range(int(np.searchsorted(words, word)), len(words)):
            if words[at] != word:
                return None
            if (self.keys[order[at]] == key).all():
                return int(order[at])
        return None

    def nearest(
        self,
        group: Mapping[int, int],
        distance: Callable[[NDArray[np.int64]], NDArray[np.float64]],
        *,
        without: int | None = None,
    ) -> tuple[int, float] | None:
        """Return the nearest entry and its distance, among those whose key columns are as ``group`` says.

        ``distance`` maps keys ``[some, columns]`` to numbers; infinite ones are no neighbours. ``without`` leaves an
        entry out: what leave-one-out tests ask for.
        """
        rows = self.members(group)
        if without is not None:
            rows = rows[rows != without]
        if not len(rows):
            return None
        apart = distance(self.keys[rows])
        best = int(apart.argmin())
        return (int(rows[best]), float(apart[best])) if np.isfinite(apart[best]) else None

    @cached_property
    def _words(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        words = _mixed(self.keys)
        order = np.argsort(words, kind="stable")
        return words[order], order

    def members(self, columns: Mapping[int, int]) -> NDArray[np.int64]:
        """Return the entries whose key columns are as ``columns`` says."""
        group = tuple(sorted(columns.items()))
        if group not in self._groups:
            inside = np.ones(len(self.keys), bool)
            for column, value in group:
                inside &= self.keys[:, column] == value
            self._groups[group] = np.flatnonzero(inside)
        return self._groups[group]

    @cached_property
    def _groups(self) -> dict[tuple[tuple[int, int], ...], NDArray[np.int64]]:
        return {}


def write(
    path: Path,
    about: Mapping[str, Any],
    key: Sequence[str],
    keys: NDArray[np.int64],
    columns: Mapping[str, NDArray[Any]],
) -> None:
    """Write a table; ``key`` names the columns of ``keys``. Keys are stored in the smallest type that holds them."""
    arrays = {f"{_KEY}{name}": _smallest(keys[:, number]) for number, name in enumerate(key)} | dict(columns)
    text = json.dumps({**about, "key": list(key), "digest": _digest(arrays)})
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays["about"] = np.frombuffer(text.encode(), np.uint8)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:  # a third smaller than `np.savez_compressed`
        for name, values in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.asanyarray(values), allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue(), zipfile.ZIP_LZMA)


def read(path: Path) -> Table:
    """Return the table in a file. Raises UserError when the file is damaged."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(arrays.pop("about").tobytes())
        intact = about["digest"] == _digest(arrays)
        keys = np.column_stack([arrays.pop(f"{_KEY}{name}").astype(np.int64) for name in about["key"]])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zipfile.error) as error:
        raise UserError(f"the table {path} is damaged ({error}): install tileprof again") from error
    if not intact:
        raise UserError(f"the table {path} is damaged (its digest is another): install tileprof again")
    return Table(about, keys, arrays)


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    total = hashlib.blake2b(digest_size=8)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def _smallest(values: NDArray[np.int64]) -> NDArray[Any]:
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    for kind in (np.uint8, np.uint16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values


def _mixed(keys: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a word per key: different ones for nearly all different keys."""
    words = np.zeros(len(keys), np.uint64)
    with np.errstate(over="ignore"):
        for column in keys.T:
            words = (words ^ column.astype(np.uint64)) * _MIX
            words ^= words >> np.uint64(29)
    return words
