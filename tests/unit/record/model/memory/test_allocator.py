"""The model of PyTorch's CUDA caching allocator."""

from hypothesis import given
from hypothesis import strategies as st

from tileprof.record.model.memory.allocator import GRANULE_BYTES, CachingAllocator

MIB = 1 << 20


def test_small_requests_share_a_segment_of_two_mebibytes():
    allocator = CachingAllocator()
    first, second = allocator.allocate(1), allocator.allocate(513)
    assert second - first == 512
    assert allocator.allocate(1) - second == 1024
    assert allocator.reserved_bytes == 2 * MIB


def test_middle_requests_share_twenty_mebibytes_and_large_ones_get_their_own():
    allocator = CachingAllocator()
    allocator.allocate(3 * MIB)
    allocator.allocate(9 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.allocate(11 * MIB)
    assert allocator.reserved_bytes == 32 * MIB


def test_freed_memory_is_handed_out_again_smallest_fit_first():
    allocator = CachingAllocator()
    sizes = (4096, 512, 1024, 512, 2048, 512)
    bases = [allocator.allocate(s) for s in sizes]
    for n in (0, 2, 4):
        allocator.free(bases[n])
    assert allocator.allocate(1000) == bases[2]
    assert allocator.allocate(1025) == bases[4]


def test_neighbours_merge_when_freed():
    allocator = CachingAllocator()
    bases = [allocator.allocate(512) for _ in range(3)]
    for base in (bases[0], bases[2], bases[1]):
        allocator.free(base)
    assert allocator.allocate(MIB) == bases[0]
    assert allocator.reserved_bytes == 2 * MIB


def test_a_large_block_is_not_split_for_a_rest_of_one_mebibyte():
    allocator = CachingAllocator()
    base = allocator.allocate(12 * MIB)
    allocator.free(base)
    assert allocator.allocate(11 * MIB) == base
    assert allocator.allocate(MIB + 1) != base + 11 * MIB


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB), st.integers(0, 100)), max_size=60))
def test_live_allocations_never_overlap_and_are_aligned(steps):
    allocator, live = CachingAllocator(), []
    for allocate, size, which in steps:
        if allocate or not live:
            base = allocator.allocate(size)
            assert base % GRANULE_BYTES == 0
            assert all(base + size <= b or b + s <= base for b, s in live)
            live.append((base, size))
        else:
            allocator.free(live.pop(which % len(live))[0])
    for base, _ in live:
        allocator.free(base)
    assert allocator.reserved_bytes == sum(b.bytes for b in allocator._blocks.values())
    assert all(b.free and b.before == b.after == -1 for b in allocator._blocks.values())
