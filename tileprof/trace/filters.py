"""Bloom filters that thread blocks filled while they were recorded: a file in the trace's folder, where there are any.

``filters.parquet`` has a row per tile of each launch that had filters: ``launch``, ``tile``, ``read`` and ``written``
(the words of the two filters, little-endian), and ``filling_ns``, how long the tile ran in a pass in which it filled
filters and left no records (-1: not measured). Bits, hashes and granule are in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.errors import TraceError, UserError
from tileprof.trace import folder

FILE: Final = "filters.parquet"
_METADATA: Final = b"tileprof"
_FIELDS: Final = ("bits", "hashes", "granule")


@dataclass(frozen=True, slots=True)
class LaunchFilters:
    """Filters of a launch's tiles: ``words`` ``[tiles, 2, bits / 32]`` of reads, then of writes and updates;
    ``filling_ns`` ``[tiles]``.
    """

    launch: int
    words: NDArray[np.uint32]
    filling_ns: I64


@dataclass(frozen=True, slots=True)
class StoredFilters:
    """Filters of ``bits`` bits, of which ``hashes`` stand for ``granule`` bytes of memory; launches ascend."""

    bits: int
    hashes: int
    granule: int
    launches: Sequence[LaunchFilters]


def write(path: Path, filters: StoredFilters) -> None:
    """Write the file into the folder of a trace. Raises UserError when the disk does not take it."""
    rows = [
        (
            np.full(len(f.words), f.launch, np.int32),
            np.arange(len(f.words), dtype=np.int32),
            *([word.tobytes() for word in f.words[:, side].astype("<u4")] for side in (0, 1)),
            f.filling_ns.astype(np.int64),
        )
        for f in filters.launches
    ]
    binary = pa.binary(filters.bits // 8)
    metadata = {_METADATA: json.dumps({name: getattr(filters, name) for name in _FIELDS})}
    types = [
        ("launch", pa.int32()),
        ("tile", pa.int32()),
        ("read", binary),
        ("written", binary),
        ("filling_ns", pa.int64()),
    ]
    schema = pa.schema(types, metadata=metadata)
    try:
        with pq.ParquetWriter(path / FILE, schema, compression="zstd") as file:
            for columns in rows:
                arrays = [pa.array(values, type=type_) for values, (_, type_) in zip(columns, types, strict=True)]
                file.write_table(pa.Table.from_arrays(arrays, schema=schema))
    except OSError as error:
        raise UserError(folder.sentence(error, f"writing {path / FILE}")) from error


def read(path: Path) -> StoredFilters | None:
    """Return the filters of the trace at ``path``, None where it has none. Raises TraceError for a damaged file."""
    file = path / FILE
    if not file.exists():
        return None
    try:
        table = pq.read_table(file)
        described = json.loads(table.schema.metadata[_METADATA])
        bits, hashes, granule = (int(described[name]) for name in _FIELDS)
        launch, tile, filling = (table[name].to_numpy().astype(np.int64) for name in ("launch", "tile", "filling_ns"))
        sides = [
            np.frombuffer(b"".join(table[name].to_pylist()), "<u4").reshape(len(launch), bits // 32)
            for name in ("read", "written")
        ]
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{file} cannot be read ({error}): delete it, or record the trace again") from None
    words = np.stack(sides, axis=1)
    begins = np.flatnonzero(np.diff(launch, prepend=-1))
    spans = list(zip(begins, np.append(begins[1:], len(launch)), strict=True))
    if (np.diff(launch) < 0).any() or any((tile[b:e] != np.arange(e - b)).any() for b, e in spans):
        raise TraceError(f"{file} is not sorted by launch and tile: delete it, or record the trace again")
    launches = [LaunchFilters(int(launch[b]), words[b:e], filling[b:e]) for b, e in spans]
    return StoredFilters(bits, hashes, granule, launches)
