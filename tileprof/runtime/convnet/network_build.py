"""Compiling the kernel of convolutional networks, once per machine, dtype and sizes of rings: not per network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tileprof.runtime.convnet.tiling import MOST_SLOT_BYTES, WEIGHT_BYTES, WIDTHS
from tileprof.runtime.persistent.kernel_source import KernelSource
from tileprof.runtime.persistent.persistent_build import SOURCES as PERSISTENT
from tileprof.runtime.persistent.source import SHARED_BYTES, multiply

KERNEL: Final = KernelSource(
    "convnet",
    "the kernel of convolutional networks",
    Path(__file__).parent / "native" / "kernel.cu",
    "persistent",
    included=(PERSISTENT / "ptx.cuh", PERSISTENT / "ring_waits.cuh"),
)

ENDS_BYTES: Final = 1024
"""Bytes behind the weights in a slot: scales and biases of a tile's columns."""

WEIGHT_SLOTS: Final = 4
"""Slots of the ring of weights."""

_RESERVED_BYTES: Final = 18 * 1024  # sums that warpgroups exchange, barriers, what alignment takes


@dataclass(frozen=True, slots=True)
class Options:
    """``delay_ns``: for tests, tiles sleep up to so long. ``timeout_ns``: a wait that lasts longer writes the
    record and gives up. ``timeline``: tasks write down when they wait, multiply and store.
    """

    dtype: str = "float16"
    delay_ns: int = 0
    timeout_ns: int = 2_000_000_000
    slot_bytes: int = MOST_SLOT_BYTES
    timeline: bool = False

    @property
    def activation_slots(self) -> int:
        """Slots of the ring of activations: as many as fit shared memory."""
        free_bytes = SHARED_BYTES - _RESERVED_BYTES - WEIGHT_SLOTS * (WEIGHT_BYTES + ENDS_BYTES)
        return free_bytes // self.slot_bytes


def header(options: Options) -> str:
    """stages.h: sizes, and wgmma for every width of a tile."""
    constants = {
        "A_SLOTS": options.activation_slots, "A_BYTES": options.slot_bytes, "W_SLOTS": WEIGHT_SLOTS,
        "W_BYTES": WEIGHT_BYTES + ENDS_BYTES, "ENDS_AT": WEIGHT_BYTES, "SHARED_BYTES": SHARED_BYTES,
    }  # fmt: skip
    return "\n".join([
        "#pragma once", f"#define BFLOAT16 {int(options.dtype == 'bfloat16')}",
        *(f"constexpr int {name} = {value};" for name, value in constants.items()),
        f"constexpr unsigned long long TIMEOUT_NS = {options.timeout_ns}ull, DELAY_NS = {options.delay_ns}ull;",
        f"constexpr bool TIMELINE = {str(options.timeline).lower()};",
        "template <int> struct Multiply;", *(multiply(width, options.dtype) for width in WIDTHS),
    ]) + "\n"  # fmt: skip
