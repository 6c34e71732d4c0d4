"""The injection library's event log: one dataclass per kind, with the unit of each field.

A line of ``events.jsonl`` is an object with its kind under ``e``. Fields without a default are in every event of the
kind; others may be absent. Addresses and sizes are in bytes, ``t`` is the host's clock in nanoseconds since the epoch,
and ``launch`` numbers launches from 1 in a process. The native side writes them in native/log/events.cpp, hooks inside
Python programs in inprocess/*.py; a test compares both with this module.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from tileprof.errors import UserError


@dataclass(frozen=True)
class Event:
    """A kind of event; ``KIND`` is what stands under ``e``."""

    KIND: ClassVar[str] = ""


# ---- the process


@dataclass(frozen=True)
class Start(Event):
    """The first event. ``pass``, a keyword in Python, says which pass this is; ``arena`` bytes of the GPU hold
    records.
    """

    KIND: ClassVar[str] = "start"
    version: int
    granule: int
    pid: int = 0
    arena: int = 0
    ranged: int = 0
    """Launches outside captured ranges are not counted."""


@dataclass(frozen=True)
class Failed(Event):
    """The recorder could not start in this process."""

    KIND: ClassVar[str] = "failed"
    why: str


@dataclass(frozen=True)
class Complaint(Event):
    """A complaint that the trace must show."""

    KIND: ClassVar[str] = "complaint"
    text: str
    t: int = 0


@dataclass(frozen=True)
class End(Event):
    """The process ended by itself, and all records are in the files."""

    KIND: ClassVar[str] = "end"
    t: int


@dataclass(frozen=True)
class Hung(Event):
    """The process was ended because this kernel (its name) did not."""

    KIND: ClassVar[str] = "hung"
    kernel: str
    t: int


@dataclass(frozen=True)
class Drain(Event):
    """Records left the device: how many, and how many found no room."""

    KIND: ClassVar[str] = "drain"
    entries: int = 0
    lost: int = 0


@dataclass(frozen=True)
class Filters(Event):
    """The Bloom filters of a launch's ``blocks``: those of reads, then those of writes and updates, from word ``first``
    of ``file`` on.
    """

    KIND: ClassVar[str] = "filters"
    launch: int
    file: str
    first: int
    blocks: int


@dataclass(frozen=True)
class Ranges(Event):
    """NVTX ranges: the pattern, how many matched, names with counts, and ranges beyond those listed."""

    KIND: ClassVar[str] = "ranges"
    pattern: str
    matched: int
    names: list[Any]
    unlisted: int


@dataclass(frozen=True)
class Capture(Event):
    """The program begins (1) or ends (0) a region that is to be recorded."""

    KIND: ClassVar[str] = "capture"
    on: int


@dataclass(frozen=True)
class Benchmark(Event):
    """A compiler begins (1) or ends (0) to time kernels it chooses between: not the program's launches (from the
    hooks).
    """

    KIND: ClassVar[str] = "benchmark"
    on: int
    t: int = 0


# ---- kernels and launches


@dataclass(frozen=True)
class Kernel(Event):
    """A kernel at its first launch. ``parameters``: where they begin in a page, and their bytes; flags are 0 or 1."""

    KIND: ClassVar[str] = "kernel"
    id: int
    name: str
    symbol: str
    scanned: int
    """Its machine code was read, so the flags below are known."""
    fingerprint: str
    registers: int
    static_shared: int
    parameters: list[int]
    tensor_load: int
    tensor_store: int
    tensor_reduce: int
    texture: int = 0
    surface: int = 0
    launches: int = 0
    """Kernels of its module launch kernels or graphs."""
    constants: int = 0
    """Number of constant variables of its module."""
    code: list[int] | None = None
    """Address and bytes of its machine code; zeros where the library does not tell."""


@dataclass(frozen=True)
class Launch(Event):
    """A launch; ``graph`` is the graph launch it is a node of (-1: none), ``generation`` its place among that graph's
    kernels.
    """

    KIND: ClassVar[str] = "launch"
    launch: int
    kernel: int
    grid: list[int]
    block: list[int]
    cluster: list[int]
    stream: str
    context: int
    device: int
    graph: int
    generation: int
    ordinal: int
    """Its place among all launches of the program, recorded or not."""
    aside: int = 0
    """It was left alone, since it waits for other launches, GPUs or processes."""
    counted: int = 0
    """Its kernel has patches, so its blocks and accesses are counted."""
    t: int = 0
    unpatched: list[str] | None = None
    """Patches that the library refused in its module."""
    parameters: list[int] | None = None
    """Place and bytes in ``parameters.bin`` of the parameters of a launch without patches, whose accesses follow from
    them and from the machine code of its kernel.
    """
    pointers: list[int] | None = None
    """Those 8-byte words of the parameters that are addresses in device memory."""


@dataclass(frozen=True)
class Learn(Launch):
    """A launch outside what is recorded, from which equal launches learn what they write."""

    KIND: ClassVar[str] = "learn"


@dataclass(frozen=True)
class Constants(Event):
    """Constant variables that a kernel may read: addresses and sizes."""

    KIND: ClassVar[str] = "constants"
    kernel: int
    ranges: list[Any]


@dataclass(frozen=True)
class Captured(Event):
    """A launch was captured into a graph; kernel -1 never ran by itself."""

    KIND: ClassVar[str] = "captured"
    kernel: int
    t: int = 0


@dataclass(frozen=True)
class Capturing(Event):
    """A CUDA graph is about to be captured (from the hooks)."""

    KIND: ClassVar[str] = "capturing"
    t: int = 0


@dataclass(frozen=True)
class Graph(Event):
    """A graph is launched; its kernels follow as launches."""

    KIND: ClassVar[str] = "graph"
    graph: int
    exec: str = ""
    stream: str = ""


@dataclass(frozen=True)
class GraphEnd(Event):
    """The nodes of a graph launch have all been announced; ``launch`` is the number that they share."""

    KIND: ClassVar[str] = "graph_end"
    launch: int
    nodes: int


@dataclass(frozen=True)
class Nodes(Event):
    """The number of nodes of a graph launch that ended, and of threads that have left since."""

    KIND: ClassVar[str] = "nodes"
    launch: int
    ended: int
    threads: int


@dataclass(frozen=True)
class Unfinished(Event):
    """Records were copied while this launch was made: some may be missing."""

    KIND: ClassVar[str] = "unfinished"
    launch: int


@dataclass(frozen=True)
class Spinning(Event):
    """A launch, or a node of a graph, that had not ended after this many seconds."""

    KIND: ClassVar[str] = "spinning"
    launch: int
    kernel: int | None = None
    seconds: float | None = None
    graph: int | None = None


@dataclass(frozen=True)
class Spill(Event):
    """Accesses of a launch that found no room in the arena, and those at addresses beyond 48 bits."""

    KIND: ClassVar[str] = "spill"
    launch: int
    accesses: int
    beyond: int = 0


@dataclass(frozen=True)
class SpilledPage(Event):
    """A page of 2 MiB that accesses without room touched, up to launch ``until``."""

    KIND: ClassVar[str] = "spilled_page"
    page: int
    read: int
    written: int
    until: int


@dataclass(frozen=True)
class Changed(Event):
    """Bytes that changed in a launch, ``[begin, end)`` (the write check)."""

    KIND: ClassVar[str] = "changed"
    launch: int
    ranges: list[Any]


@dataclass(frozen=True)
class Owners(Event):
    """The result of replaying a launch: regions ``[place of the map, bytes]``, with granules' owners in ``file``."""

    KIND: ClassVar[str] = "owners"
    id: int
    launch: int
    file: str
    granule: int
    clusters: int
    regions: list[Any]
    refused: str
    """Why there is none; empty where there is."""


@dataclass(frozen=True)
class Owned(Event):
    """A launch writes as the replays ``id`` told, to regions at these addresses."""

    KIND: ClassVar[str] = "owned"
    launch: int
    id: int
    bases: list[int]


# ---- copies and fills


@dataclass(frozen=True)
class Copy(Event):
    """A copy of ``bytes``, or of ``depth`` planes of ``height`` rows of ``width`` bytes; ``direction`` as in CUmemcpy
    kinds.
    """

    KIND: ClassVar[str] = "copy"
    to: int
    bytes: int
    width: int
    height: int
    depth: int
    from_pitch: int
    to_pitch: int
    direction: int
    stream: str
    graph: int
    t: int = 0


@dataclass(frozen=True)
class Set(Event):
    """Rows of ``width`` elements of ``element`` bytes are filled."""

    KIND: ClassVar[str] = "set"
    to: int
    width: int
    height: int
    to_pitch: int
    element: int
    stream: str
    graph: int
    t: int = 0


@dataclass(frozen=True)
class ArrayCopy(Event):
    """A copy from or to a CUDA array, whose handle stands for its address."""

    KIND: ClassVar[str] = "array_copy"
    from_array: int
    from_device: int
    from_bytes: int
    from_pitch: int
    to: int
    to_array: int
    to_device: int
    to_bytes: int
    to_pitch: int
    width: int
    height: int
    depth: int
    stream: str
    graph: int
    t: int = 0


@dataclass(frozen=True)
class Value(Event):
    """A stream writes (1) or awaits (0) a word in memory."""

    KIND: ClassVar[str] = "value"
    to: int
    bytes: int
    writes: int
    stream: str
    graph: int
    t: int = 0


@dataclass(frozen=True)
class Opaque(Event):
    """Work that says nothing of what it touches; ``node`` is its CUgraphNodeType, -1 outside of graphs."""

    KIND: ClassVar[str] = "opaque"
    node: int
    graph: int
    stream: str


# ---- memory


@dataclass(frozen=True)
class Alloc(Event):
    """The driver hands out memory; ``pool`` 1: from a pool, ``host``: pinned, ``mapped``: reserved and mapped."""

    KIND: ClassVar[str] = "alloc"
    address: int
    bytes: int
    device: int = 0
    flags: int = 0
    pool: int = 0
    host: int = 0
    mapped: int = 0


@dataclass(frozen=True)
class Free(Event):
    """The driver takes memory back."""

    KIND: ClassVar[str] = "free"
    address: int
    bytes: int = 0
    device: int = 0
    flags: int = 0
    host: int = 0


@dataclass(frozen=True)
class Map(Event):
    """Physical memory is mapped at an address."""

    KIND: ClassVar[str] = "map"
    address: int
    bytes: int
    handle: int
    offset: int


@dataclass(frozen=True)
class Unmap(Event):
    """A mapping ends."""

    KIND: ClassVar[str] = "unmap"
    address: int


@dataclass(frozen=True)
class Physical(Event):
    """Physical memory is made."""

    KIND: ClassVar[str] = "physical"
    handle: int


@dataclass(frozen=True)
class Exported(Event):
    """Physical memory goes out through a file descriptor."""

    KIND: ClassVar[str] = "exported"
    handle: int
    file: int


@dataclass(frozen=True)
class Imported(Event):
    """Physical memory comes in through a file descriptor."""

    KIND: ClassVar[str] = "imported"
    handle: int
    file: int


# ---- PyTorch, from the hooks


@dataclass(frozen=True)
class Mark(Event):
    """A mark: later launches belong to this operator and module; empty for none."""

    KIND: ClassVar[str] = "mark"
    op: str = ""
    module: str = ""
    t: int = 0


@dataclass(frozen=True)
class OperatorCall(Event):
    """The call of the operator of the last mark: see inprocess/tileprof_calls.py."""

    KIND: ClassVar[str] = "called"
    op: str
    arguments: dict[str, Any]
    tensors: list[Any]
    t: int = 0


@dataclass(frozen=True)
class Describe(Event):
    """The contents of the buffer at an address."""

    KIND: ClassVar[str] = "describe"
    address: int
    name: str
    kind: str
    t: int = 0


@dataclass(frozen=True)
class TensorMade(Event):
    """PyTorch's allocator hands out a part of a segment."""

    KIND: ClassVar[str] = "tensor"
    address: int
    bytes: int
    kind: str
    t: int = 0


@dataclass(frozen=True)
class TensorFreed(Event):
    """PyTorch's allocator takes a part back."""

    KIND: ClassVar[str] = "untensor"
    address: int
    t: int = 0


@dataclass(frozen=True)
class Live(Event):
    """All that PyTorch's allocator has handed out now: addresses and sizes."""

    KIND: ClassVar[str] = "live"
    tensors: list[Any]
    t: int = 0


_WORDS = {"start": {"pass": False}, "copy": {"from": True}, "array_copy": {"from": True}}
"""Fields whose names are keywords of Python, and whether each event has them."""


def _kinds(base: type[Event]) -> dict[str, type[Event]]:
    kinds = {}
    for kind in base.__subclasses__():
        kinds[kind.KIND] = kind
        kinds |= _kinds(kind)
    return kinds


KINDS: dict[str, type[Event]] = _kinds(Event)


def fields_of(kind: str) -> dict[str, bool]:
    """Return the fields of a kind, and whether every event of it has them."""
    own = {field.name: field.default is MISSING for field in fields(KINDS[kind])}
    return own | _WORDS.get(kind, {})


_REQUIRED_FIELDS = {kind: [name for name, required in fields_of(kind).items() if required] for kind in KINDS}


def checked(event: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the event itself. Raises `UserError` for an unknown kind, and for one that lacks a field."""
    kind = event.get("e", "")
    required = _REQUIRED_FIELDS.get(kind)
    if required is None:
        raise UserError(
            f"{where} holds an event of the kind {kind!r}, which this tileprof does not know: another version recorded "
            "it"
        )
    for name in required:
        if name not in event:
            raise UserError(f"{where} holds an event {kind!r} without {name!r}: {event}")
    return event
