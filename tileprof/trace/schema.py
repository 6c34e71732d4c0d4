"""Trace format 1: every table, column, type, unit and meaning, in this one place.

A trace is a folder ``<name>.tileprof/``::

    manifest.json                what was recorded, how, on which device, and what is missing
    launches/000000.parquet      one row per kernel launch, in issue order
    operands/000000.parquet      which buffer, at which offset, a launch's operand slot is bound to
    tiles/000000.parquet         one row per tile of a footprint
    accesses/000000.parquet      one row per strided box that a tile touches, relative to an operand
    times/000000.parquet         measured begin, end and SM of a tile of a launch (may be empty)
    buffers/000000.parquet       one row per allocation

Each table is a folder of zstd Parquet parts, so that a writer can stream and a killed run leaves whole
parts; pandas, Polars and DuckDB read the folder as one table.

**Footprints.** A model repeats its layers, and the same kernel on another layer's buffers touches the same
bytes relative to its operands. The *footprint* of a launch is its tiles and their accesses relative to
operand slots; launches with the same footprint share its rows, and ``operands`` binds the slots. A
LLaMA-2-70B forward has 80 layers of about 10^6 tiles: with footprints the trace holds one layer, and the
analysis computes one. A recorder that finds no repetition writes one footprint per launch. Joined::

    launches -(footprint)-> accesses -(launch, operand)-> operands -(buffer)-> buffers
    byte in the buffer = operands.offset + accesses.offset

**Strided boxes.** A row of ``accesses`` stands for the bytes ::

    { offset + i*stride_0 + j*stride_1 + [0, length)  |  0 <= i < count_0, 0 <= j < count_1 }

``stride_0`` is the inner stride. Unused levels have count 1 and stride 0. A 2 x 3 box of 16-byte runs, 64 bytes
apart, with planes 512 bytes apart has ``length=16, count_0=3, stride_0=64, count_1=2, stride_1=512``.

**A worked example.** Two layers square, in two tiles each, the columns of a 4 x 8 matrix of float32: tile 0 the left
four, tile 1 the right four, so a tile's rows are 16-byte runs, 32 bytes apart. ``x`` holds 128 bytes, and so do the
two activations; ``x`` existed before recording began, and the first activation is freed after the second launch::

    launches   launch footprint kernel grid_x tiles duration_ns timing   coverage ...
               0      0         square 2      2     1400        modelled exact
               1      0         square 2      2     1400        modelled exact
    operands   launch operand buffer offset
               0      0       0      0          the first reads x ...
               0      1       1      0
               1      0       1      0          ... the second what the first wrote
               1      1       2      0
    tiles      footprint tile block_x bytes_read bytes_written ...
               0         0    0       64         64
               0         1    1       64         64
    accesses   footprint tile operand mode  offset length count_0 stride_0 count_1 stride_1 first last
               0         0    0       read  0      16     4       32       1       0        0.0   0.4
               0         0    1       write 0      16     4       32       1       0        0.6   1.0
               0         1    0       read  16     16     4       32       1       0        0.0   0.4
               0         1    1       write 16     16     4       32       1       0        0.6   1.0
    buffers    buffer base bytes allocated_at freed_at name kind       dtype   shape   strides
               0      4096 128   -1           -1       x    input      float32 [4, 8]  [8, 1]
               1      8192 128   0            2             activation float32 [4, 8]  [8, 1]
               2      8320 128   1            -1            activation float32 [4, 8]  [8, 1]

**Calls.** ``launches.call`` says which tensors of the operator's call the operand slots are, and what else it was
called with; empty where the recorder does not know. Shapes and strides are in elements, from the operand's byte 0; a
slot that is workspace is null::

    {"operands": [{"argument": "self", "shape": [4, 8], "strides": [8, 1], "dtype": "float32"},
                  {"argument": "out",  "shape": [4, 8], "strides": [8, 1], "dtype": "float32"}],
     "arguments": {"exponent": 2}}

Recorders on a GPU add ``number`` (equal for all launches of one call), ``tensors`` (every tensor of the call as an
operand with ``buffer``, -1 for memory that is not in the trace, ``offset`` in bytes, and ``written``) and ``places``
(which of ``tensors`` each argument is). Where several tensors share a buffer, ``operands`` is empty. The model recorder
adds these to products of several launches; all but the last of these have no ``tensors`` and ``places``.

Byte 20 of buffer 1 is written by tile 1 of launch 0 (16 + 4) and read by tile 1 of launch 1: a RAW dependency.
``tests/unit/trace/test_worked_example.py`` writes this trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tileprof.trace.sources import ShapeSource, TimeSource

FORMAT_VERSION: Final = 1
SUFFIX: Final = ".tileprof"

MODES: Final = ("read", "write", "atomic")
TIMINGS: Final = ("measured", "modelled")
COVERAGES: Final = ("exact", "inferred", "conservative")
SHAPE_SOURCES: Final = ("", *ShapeSource)
TIME_SOURCES: Final = ("", *TimeSource)
KINDS: Final = ("parameter", "input", "activation", "workspace", "unknown")

NEVER: Final = -1
"""``freed_at`` of a buffer that outlives the recording; ``graph`` of a launch outside any graph."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``type`` is int8..int64, float32, float64, string, enum or list<int64>.

    An ``optional`` one, a string, may be absent from a file, and is empty then. A string with ``values`` is one of
    them: what an enum would be that older traces lack.
    """

    name: str
    type: str
    unit: str
    meaning: str
    nullable: bool = False
    values: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table; ``key`` names the columns that identify a row and by which rows are sorted."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def column(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)


def _xyz(prefix: str, type_: str, meaning: str) -> tuple[Column, ...]:
    return tuple(Column(f"{prefix}_{axis}", type_, "", f"{meaning}, {axis}") for axis in "xyz")


LAUNCHES: Final = Table(
    "launches",
    (
        Column("launch", "int64", "", "issue order, dense from 0"),
        Column("footprint", "int64", "", "tiles and accesses of this launch"),
        Column("kernel", "string", "", "demangled kernel name, or the tile model's name"),
        Column("fingerprint", "string", "", "hash of the kernel's code or of the tile model and its parameters"),
        Column("op", "string", "", "framework operator that issued it, e.g. aten::addmm"),
        Column("module", "string", "", "module path, e.g. transformer.h.3.mlp.c_fc"),
        Column("stream", "int32", "", "stream, dense from 0"),
        Column("graph", "int32", "", "CUDA graph launch it belongs to, -1 outside graphs"),
        *_xyz("grid", "int32", "grid, in thread blocks"),
        *_xyz("block", "int32", "thread block, in threads"),
        *_xyz("cluster", "int32", "cluster, in thread blocks"),
        Column("registers", "int32", "a thread", "registers"),
        Column("shared_bytes", "int32", "bytes per block", "static and dynamic shared memory"),
        Column("blocks_per_sm", "int32", "", "resident blocks per SM (occupancy)"),
        Column("tiles", "int64", "", "number of tiles"),
        Column("begin_ns", "int64", "ns", "begin, from the start of the recording"),
        Column("duration_ns", "int64", "ns", "uninstrumented duration, or modelled"),
        Column("flops", "int64", "flop", "floating point operations (a multiply-add is two)"),
        Column("timing", "enum", "", "where duration_ns comes from", values=TIMINGS),
        Column("coverage", "enum", "", "how the accesses are known, worst of all operands", values=COVERAGES),
        Column("note", "string", "", "what the recorder does not know about this launch, and other remarks"),
        Column(
            "call",
            "string",
            "",
            "JSON: layouts of the operand slots and the operator's numbers; see below",
            optional=True,
        ),
        Column(
            "device",
            "string",
            "",
            "which GPU of several it ran on, by the program's count; empty for the only one",
            optional=True,
        ),
        Column(
            "shape_source",
            "string",
            "",
            "how the model recorder knows the kernel, its grid and tiles; empty where they were recorded",
            values=SHAPE_SOURCES,
            optional=True,
        ),
        Column(
            "time_source",
            "string",
            "",
            "where a modelled duration_ns comes from; empty where it was measured",
            values=TIME_SOURCES,
            optional=True,
        ),
    ),
    ("launch",),
)

OPERANDS: Final = Table(
    "operands",
    (
        Column("launch", "int64", "", "launch"),
        Column("operand", "int32", "", "operand slot, dense from 0 within the launch"),
        Column("buffer", "int64", "", "buffer the slot is bound to"),
        Column("offset", "int64", "bytes", "where the operand's byte 0 lies in the buffer"),
    ),
    ("launch", "operand"),
)

TILES: Final = Table(
    "tiles",
    (
        Column("footprint", "int64", "", "footprint"),
        Column("tile", "int32", "", "tile, dense from 0 within the footprint, in hardware dispatch order"),
        *_xyz("block", "int32", "coordinates of the tile (of its first block) in the grid"),
        Column("duration_ns", "float64", "ns", "modelled life of the tile, co-resident as recorded", nullable=True),
        Column("bytes_read", "int64", "bytes", "distinct bytes read"),
        Column("bytes_written", "int64", "bytes", "distinct bytes written or updated"),
    ),
    ("footprint", "tile"),
)

ACCESSES: Final = Table(
    "accesses",
    (
        Column("footprint", "int64", "", "footprint"),
        Column("tile", "int32", "", "tile"),
        Column("operand", "int32", "", "operand slot"),
        Column("mode", "enum", "", "read, write (plain), or atomic (read-modify-write that commutes)", values=MODES),
        Column("offset", "int64", "bytes", "first byte, from the operand's byte 0; may be negative"),
        Column("length", "int64", "bytes", "contiguous run, > 0"),
        Column("count_0", "int32", "", "inner repetitions, >= 1"),
        Column("stride_0", "int64", "bytes", "inner stride"),
        Column("count_1", "int32", "", "outer repetitions, >= 1"),
        Column("stride_1", "int64", "bytes", "outer stride"),
        Column(
            "first", "float32", "", "when in the tile's life the first of these bytes is touched, 0..1", nullable=True
        ),
        Column("last", "float32", "", "when the last of them is touched, 0..1", nullable=True),
    ),
    ("footprint", "tile"),
)

TIMES: Final = Table(
    "times",
    (
        Column("launch", "int64", "", "launch"),
        Column("tile", "int32", "", "tile"),
        Column("sm", "int32", "", "SM it ran on"),
        Column("begin_ns", "int64", "ns", "begin, from the launch's begin"),
        Column("end_ns", "int64", "ns", "end, from the launch's begin"),
    ),
    ("launch", "tile"),
)

BUFFERS: Final = Table(
    "buffers",
    (
        Column("buffer", "int64", "", "buffer, dense from 0 in order of allocation"),
        Column("base", "int64", "bytes", "address"),
        Column("bytes", "int64", "bytes", "size"),
        Column(
            "allocated_at", "int64", "launch", "launches issued before it was allocated; -1 = before recording began"
        ),
        Column("freed_at", "int64", "launch", "launches issued before it was freed; -1 = never freed"),
        Column("name", "string", "", "parameter or tensor name, where known"),
        Column("kind", "enum", "", "what it holds", values=KINDS),
        Column("dtype", "string", "", "e.g. float16"),
        Column("shape", "list<int64>", "elements", "shape of the tensor it was allocated for"),
        Column("strides", "list<int64>", "elements", "strides of that tensor"),
    ),
    ("buffer",),
)

TABLES: Final = {t.name: t for t in (LAUNCHES, OPERANDS, TILES, ACCESSES, TIMES, BUFFERS)}
