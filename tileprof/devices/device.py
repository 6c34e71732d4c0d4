"""The facts about a GPU that the analysis uses: one frozen record of numbers, each with its source."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from tileprof.errors import UserError

RATES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
"""Keys of ``Device.peak_flops``."""

SUSTAINED_MEMORY: Final = 0.9
SUSTAINED_FLOPS: Final = 0.8
"""Fractions of the datasheet's peaks that large copies and large matrix products reach where nothing was
measured: what an H200 reaches (4.3 of 4.8 TB/s, 790 of 989 bf16 TFLOP/s)."""

LINK_WAYS: Final = ("ring", "host", "relay", "copy", "write", "batch")
"""Ways in which a CPU thread answers blocks of a running kernel (`tests/gpu/measuring/programs/link_ways.cu`): words in
page-locked memory of the CPU, which blocks read with pauses between (``ring``, as the runtime's co-pilot does), without
(``host``), or which one block reads and passes on (``relay``); words in the GPU's memory, which a copy engine brings
(``copy``), or streams write one by one (``write``) or in batches (``batch``).
"""

LINK_TRIP_NS: Final[dict[str, dict[str, float]]] = {
    "ring": {"1": 3000, "8": 3200, "32": 4100, "132": 5000},
    "host": {"1": 3223, "8": 4055, "32": 8210, "128": 12331},
    "relay": {"1": 3190, "8": 3388, "32": 3578, "128": 5367},
    "copy": {"1": 5609, "8": 4890, "32": 6618, "128": 5582},
    "write": {"1": 5579, "8": 15499, "32": 60248, "128": 88046},
    "batch": {"1": 5775, "8": 14510, "32": 51311, "128": 211919},
}
"""Round trips over an H200's PCIe, medians by number of blocks."""

_OPTIONAL: Final = (
    "sustained", "sources", "host_issue_ns", "host_issue_shared_ns", "graph_issue_ns", "link_read_ns",
    "link_release_ns", "link_trip_ns",
)  # fmt: skip
"""Keys that a description may leave out; traces from before launch rates and links were known do."""

_STANDS_IN: Final = {"tf32": "fp32", "bf16": "fp32", "fp16": "fp32", "fp8": "fp16", "int8": "fp16"}
"""The type in which libraries compute when a GPU has no unit for a type."""

_RATE_RANGE: Final = (1e6, 1e24)
_RANGES: Final[dict[str, tuple[float, float]]] = {
    "sms": (1, 1e6), "threads_per_sm": (1, 1e6), "threads_per_block": (1, 1e6), "blocks_per_sm": (1, 1024),
    "warp_size": (1, 1024), "registers_per_sm": (1, 2**30), "registers_per_block": (1, 2**30),
    "registers_per_thread": (1, 2**20), "register_allocation_unit": (1, 2**20), "shared_bytes_per_sm": (1, 2**40),
    "shared_bytes_per_block": (1, 2**40), "shared_bytes_reserved": (0, 2**40), "shared_allocation_bytes": (1, 2**40),
    "clock_mhz": (1, 1e6), "l2_bytes": (1, 2**60), "dram_bytes": (1, 2**60), "launch_gap_ns": (0, 1e12),
    "graph_gap_ns": (0, 1e12), "host_issue_ns": (0, 1e12), "host_issue_shared_ns": (0, 1e12),
    "graph_issue_ns": (0, 1e12), "link_read_ns": (0, 1e12), "link_release_ns": (0, 1e12), "link_trip_ns": (0, 1e12),
}  # fmt: skip
"""Least and most that a number may be, far beyond any GPU: what the models compute of them stays finite, and
times fit int64 nanoseconds. Rates: `_RATE_RANGE`."""

_ZERO_ALLOWED: Final = {
    "shared_bytes_reserved", "launch_gap_ns", "graph_gap_ns", "host_issue_ns", "host_issue_shared_ns", "graph_issue_ns",
    "link_read_ns", "link_release_ns", "link_trip_ns",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the models see it. Sizes in bytes, rates per second, gaps in nanoseconds.

    ``peak_flops`` are dense datasheet peaks by type (keys in `RATES`; missing = the GPU has no such unit);
    ``sustained`` holds measured ceilings, by the same keys and ``dram_bytes_per_s``, where there are any;
    ``sources`` says for each number, or group of numbers, where it comes from.
    """

    name: str
    architecture: str
    """Compute capability, e.g. ``sm_90``."""
    sms: int
    threads_per_sm: int
    threads_per_block: int
    blocks_per_sm: int
    warp_size: int
    registers_per_sm: int
    registers_per_block: int
    registers_per_thread: int
    register_allocation_unit: int
    """Registers are handed out to a warp in multiples of this many."""
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    """Largest a block may ask for (opt-in), without ``shared_bytes_reserved``."""
    shared_bytes_reserved: int
    """Shared memory that CUDA itself takes in every block."""
    shared_allocation_bytes: int
    clock_mhz: float
    """Boost clock."""
    l2_bytes: int
    dram_bytes: int
    dram_bytes_per_s: float
    peak_flops: Mapping[str, float]
    launch_gap_ns: float
    """Time from the end of a kernel to the begin of the next in its stream."""
    graph_gap_ns: float
    """The same figure inside a CUDA graph."""
    host_issue_ns: float = 3700.0
    """One host thread's time per launch, however many streams it launches into; the default is an H200's."""
    host_issue_shared_ns: float = 1400.0
    """The least time per launch of any number of host threads together, which share the driver's locks."""
    graph_issue_ns: float = 210.0
    """The GPU's time per kernel of a CUDA graph whose branches are independent."""
    link_read_ns: float = 1060.0
    """A block's time to read a word of the CPU's memory; this and what follows are an H200's over PCIe by default."""
    link_release_ns: float = 520.0
    """A block's time to release a word into the CPU's memory."""
    link_trip_ns: Mapping[str, Mapping[str, float]] = field(
        default_factory=lambda: {way: dict(trips) for way, trips in LINK_TRIP_NS.items()}
    )
    """From a block's question to the CPU to its answer, by way (`LINK_WAYS`) and number of blocks that ask."""
    sustained: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def issue_ns(self, threads: int = 1) -> float:
        """Time per launch of host threads side by side: each as fast as one alone, up to what they share."""
        return max(self.host_issue_ns / threads, min(self.host_issue_ns, self.host_issue_shared_ns))

    def link_one_way_ns(self, blocks: int, way: str = LINK_WAYS[0]) -> float:
        """Return half the round trip to the CPU of this many blocks; between measured numbers of blocks in proportion,
        beyond them that of the nearest.

        Raises UserError for a way that was not measured on this device.
        """
        if way not in self.link_trip_ns:
            raise UserError(
                f"{self.name} has no times of the link by way of {way!r} ({', '.join(self.link_trip_ns)}); "
                "a device file may give them as link_trip_ns"
            )
        points = sorted((int(count), ns) for count, ns in self.link_trip_ns[way].items())
        below = max((point for point in points if point[0] <= blocks), default=points[0])
        above = min((point for point in points if point[0] >= blocks), default=points[-1])
        share = (blocks - below[0]) / (above[0] - below[0]) if above[0] > below[0] else 0.0
        return (below[1] + share * (above[1] - below[1])) / 2

    @property
    def sustained_bytes_per_s(self) -> float:
        """DRAM bandwidth that large copies reach: measured, else `SUSTAINED_MEMORY` of the peak."""
        return self.sustained.get("dram_bytes_per_s", SUSTAINED_MEMORY * self.dram_bytes_per_s)

    def sustained_flops(self, rate: str) -> float:
        """Return FLOP/s that large matrix products of a type reach: measured, else `SUSTAINED_FLOPS` of the peak.

        A type without units of its own runs as the next wider one (bf16 as fp32 on a V100).
        Raises KeyError for a rate that is not in `RATES`.
        """
        if rate not in RATES:
            raise KeyError(rate)
        while rate not in self.peak_flops and rate in _STANDS_IN:
            rate = _STANDS_IN[rate]
        if rate in self.sustained:
            return self.sustained[rate]
        return SUSTAINED_FLOPS * self.peak_flops[rate if rate in self.peak_flops else "fp32"]

    def to_dict(self) -> dict[str, Any]:
        """Return the device as JSON values; `from_dict` gives an equal one back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = "the device description") -> Device:
        """Return a device from plain values, checked.

        Raises UserError for an unknown key (with a close match), missing keys, and values that are not
        positive numbers or beyond what any GPU has; ``origin`` names the file in the message.
        """
        field_names = [f.name for f in fields(cls)]
        for key in values:
            if key not in field_names:
                raise UserError(f"{origin}: unknown key {key!r:.40}{close_match(str(key), field_names)}")
        missing = [key for key in field_names if key not in values and key not in _OPTIONAL]
        if missing:
            raise UserError(f"{origin}: missing {', '.join(missing)} (tileprof's own GPUs show every key)")
        for f in fields(cls):
            if f.name in values:
                _check(f.name, str(f.type), values[f.name], origin)
        return cls(**values)


def close_match(word: str, choices: list[str]) -> str:
    """Return ``; did you mean X?`` for the best match of a mistyped word, or nothing."""
    folded = {k.casefold(): k for k in choices}
    matches = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[matches[0]]}?" if matches else ""


def _check(key: str, type_: str, value: Any, origin: str) -> None:
    if type_ == "str":
        if not isinstance(value, str) or not value:
            raise UserError(f"{origin}: {key} is {value!r:.40}, expected a word")
    elif key == "sources":
        if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
            raise UserError(f"{origin}: sources must map a key to a sentence")
    elif key in ("peak_flops", "sustained"):
        _check_rates(key, value, origin)
    elif key == "link_trip_ns":
        _check_trips(key, value, origin)
    else:
        _check_number(key, value, origin, whole=type_ == "int")


def _check_rates(key: str, value: Any, origin: str) -> None:
    if not isinstance(value, Mapping):
        raise UserError(f"{origin}: {key} is {value!r:.40}, expected a table of FLOP/s by type")
    types = [*RATES, "dram_bytes_per_s"] if key == "sustained" else [*RATES]
    for rate, flops in value.items():
        if rate not in types:
            raise UserError(
                f"{origin}: {key} has no type {rate!r:.40}{close_match(str(rate), types)} ({', '.join(types)})"
            )
        _check_number(f"{key}.{rate}", flops, origin)
    if key == "peak_flops" and "fp32" not in value:
        raise UserError(f"{origin}: peak_flops has no fp32, which every GPU supports")


def _check_trips(key: str, value: Any, origin: str) -> None:
    if not isinstance(value, Mapping):
        raise UserError(
            f"{origin}: {key} is {value!r:.40}, expected a table of round trips by way and number of blocks"
        )
    for way, trips in value.items():
        if way not in LINK_WAYS:
            raise UserError(
                f"{origin}: {key} has no way {way!r:.40}{close_match(str(way), [*LINK_WAYS])} ({', '.join(LINK_WAYS)})"
            )
        if not isinstance(trips, Mapping) or not trips:
            raise UserError(f"{origin}: {key}.{way} is {trips!r:.40}, expected nanoseconds by number of blocks")
        for blocks, ns in trips.items():
            if not (
                isinstance(blocks, str)
                and blocks.isascii()
                and blocks.isdigit()
                and 0 < len(blocks) <= 6
                and int(blocks)
            ):
                raise UserError(
                    f"{origin}: {key}.{way} has {blocks!r:.40}, expected a number of blocks from 1 to 999999"
                )
            _check_number(f"{key}.{way}.{blocks}", ns, origin, range_of=key)


def _check_number(key: str, value: Any, origin: str, *, whole: bool = False, range_of: str | None = None) -> None:
    range_name = range_of or key
    kind = "a whole number" if whole else "a number"
    # Integers of any size are compared, never converted: a float holds no integer of 400 digits.
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not number or (isinstance(value, float) and not math.isfinite(value)):
        raise UserError(f"{origin}: {key} is {value!r:.40}, expected {kind}")
    if value < 0 or (value == 0 and range_name not in _ZERO_ALLOWED):
        raise UserError(f"{origin}: {key} is {value!r:.40}, expected {kind} above zero")
    least, most = _RANGES.get(range_name, _RATE_RANGE)
    if not least <= value <= most:
        raise UserError(f"{origin}: {key} is {value!r:.40}, expected {kind} from {least:g} to {most:g}")
