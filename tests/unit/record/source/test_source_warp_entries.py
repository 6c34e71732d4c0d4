"""The device code that gathers a warp's accesses into entries, run on the CPU by the header's emulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileprof.record.source import layout
from tileprof.record.source.host import Host
from tileprof.record.source.machine import Place, Program

SOURCE = """
#include <tileprof.cuh>
extern "C" __global__ void lanes(const tileprof::u64* address, unsigned mask, unsigned bytes) {
    if (mask >> threadIdx.x & 1) tileprof::record_lanes(mask, tileprof::kWrite, address[threadIdx.x], bytes);
}
"""
ROOM = 40


@pytest.fixture(scope="module")
def entry_library():
    """Provide ``entry_library(addresses, mask, bytes, capacity)``, which returns a warp's entries and their number."""
    machine = Host("H200")
    kernel = machine.compile(Program(SOURCE, "lanes.cu", "lanes"), record=True)

    def run(addresses: list[int], mask: int, size: int, capacity: int = ROOM) -> tuple[np.ndarray, int]:
        entries, count = np.zeros(ROOM, layout.ENTRY), np.zeros(1, np.uint64)
        kernel.attach(layout.log(entries.ctypes.data, 0, count.ctypes.data, capacity))
        lanes = np.array(addresses, np.uint64)
        kernel.run(Place((1, 1, 1), (32, 1, 1)), [np.uint64(lanes.ctypes.data), np.uint32(mask), np.uint32(size)], [])
        assert not entries[capacity:].view(np.uint8).any()
        return entries[: min(int(count[0]), capacity)], int(count[0])

    return run


def touched_bytes(entries: np.ndarray) -> set[int]:
    actual: set[int] = set()
    for row in entries:
        assert (row["mode"], row["block"], row["count_1"]) == (1, 0, 1)
        for i in range(int(row["count_0"])):
            begin = int(row["address"]) + i * int(row["stride_0"])
            actual.update(range(begin, begin + int(row["length"])))
    return actual


anywhere = st.lists(st.integers(1000, 1200), min_size=32, max_size=32)
regular = st.builds(
    lambda base, step, width, jump: [base + (i % width) * step + i // width * jump for i in range(32)],
    st.integers(10_000, 20_000), st.integers(-8, 8), st.integers(1, 32), st.integers(-100, 100),
)  # fmt: skip


@settings(deadline=None)  # the first call compiles
@given(st.one_of(anywhere, regular), st.integers(1, (1 << 32) - 1), st.sampled_from([1, 2, 4, 8, 16]))
def test_entries_hold_the_lanes_bytes_and_no_others(entry_library, addresses: list[int], mask: int, size: int) -> None:
    entries, request = entry_library(addresses, mask, size)
    active = [a for lane, a in enumerate(addresses) if mask >> lane & 1]
    assert touched_bytes(entries) == {a + byte for a in active for byte in range(size)}
    assert request == len(entries) <= len(active)


@pytest.mark.parametrize(
    ("addresses", "mask", "entry"),
    [
        ([64 + 4 * i for i in range(32)], 0xFFFFFFFF, (64, 128, 1, 0)),
        ([64 + 4 * i for i in range(32)], 0x00FF0000, (128, 32, 1, 0)),
        ([64] * 32, 0xFFFFFFFF, (64, 4, 1, 0)),
        ([64 + 12 * i for i in range(32)], 0xFFFFFFFF, (64, 4, 32, 12)),
        ([900 - 4 * i for i in range(32)], 0xFFFFFFFF, (900, 4, 32, -4)),
        ([64 + 4 * (i % 16) + 1000 * (i // 16) for i in range(32)], 0xFFFFFFFF, (64, 64, 2, 1000)),
        ([64 + 4 * i for i in range(32)], 0x55555555, (64, 4, 16, 8)),
    ],
    ids=["coalesced", "half", "broadcast", "strided", "backwards", "two rows", "every other lane"],
)
def test_a_regular_warp_is_one_entry(entry_library, addresses: list[int], mask: int, entry: tuple[int, ...]) -> None:
    (row,), _ = entry_library(addresses, mask, 4)
    assert (row["address"], row["length"], row["count_0"], row["stride_0"]) == entry


def test_entries_beyond_the_log_are_counted_and_dropped(entry_library) -> None:
    scattered = [1000 + 7 * i * i for i in range(32)]
    entries, request = entry_library(scattered, 0xFFFFFFFF, 4, capacity=5)
    assert (len(entries), request) == (5, 32)
