"""Live buffers are disjoint, and every address belongs to the innermost allocation."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tileprof.record.cuda.footprints.lifetimes import SHARED_BASE, UNKNOWN_BYTES, Lifetimes


class Writer:
    """Stands for a trace, and remembers its buffers."""

    def __init__(self):
        self.buffers = []
        self.frees = []

    def add_buffer(self, **row):
        self.buffers.append(row)
        return len(self.buffers) - 1

    def free_buffer(self, buffer):
        assert buffer not in self.frees
        self.frees.append(buffer)

    def describe_buffer(self, buffer, **changed):
        self.buffers[buffer].update(changed)

    def live(self):
        return [(b["base"], b["base"] + b["bytes"]) for i, b in enumerate(self.buffers) if i not in self.frees]


def owner(lifetimes, address):
    leaves = lifetimes.leaves()
    piece = leaves.find(np.array([address]))[0]
    return (int(leaves.buffer[piece]), int(leaves.base[piece])) if piece >= 0 else (-1, 0)


def test_without_a_framework_each_segment_is_a_buffer():
    writer = Writer()
    lifetimes = Lifetimes(writer)
    lifetimes.allocate(1000, 100)
    lifetimes.allocate(2000, 50)
    assert owner(lifetimes, 1099) == (0, 1000)
    assert owner(lifetimes, 1100)[0] == -1
    lifetimes.free(1000)
    assert writer.frees == [0]
    assert owner(lifetimes, 1050)[0] == -1
    assert owner(lifetimes, 2049) == (1, 2000)


def test_what_lies_between_tensors_becomes_a_workspace_when_it_is_touched():
    writer = Writer()
    lifetimes = Lifetimes(writer, tensors=True)
    lifetimes.allocate(0x1000, 0x1000)
    lifetimes.allocate_tensor(0x1000, 0x100, "activation")
    lifetimes.allocate_tensor(0x1800, 0x100, "activation")
    assert len(writer.buffers) == 2
    lifetimes.adopt(np.array([0x1400, 0x1500]))
    assert writer.buffers[2] == {"base": 0x1100, "bytes": 0x700, "kind": "workspace", "before_start": False}
    lifetimes.allocate_tensor(0x1200, 0x10, "activation")
    assert writer.frees == [2], "the workspace ends where a tensor begins"
    lifetimes.free_tensor(0x1200)
    lifetimes.free(0x1000)
    assert sorted(writer.frees) == [0, 1, 2, 3]


def test_memory_that_was_there_before_becomes_pages_of_unknown_kind():
    writer = Writer()
    lifetimes = Lifetimes(writer)
    lifetimes.allocate(UNKNOWN_BYTES + 100, 100)
    lifetimes.adopt(np.array([UNKNOWN_BYTES + 5, UNKNOWN_BYTES + 300]))
    kinds = [(b["base"], b["bytes"], b["kind"], b["before_start"]) for b in writer.buffers[1:]]
    assert kinds == [
        (UNKNOWN_BYTES, 100, "unknown", True),
        (UNKNOWN_BYTES + 200, UNKNOWN_BYTES - 200, "unknown", True),
    ]


def test_a_description_reaches_the_buffer_that_lives_there_now():
    writer = Writer()
    lifetimes = Lifetimes(writer, tensors=True)
    lifetimes.allocate(0, 1000)
    lifetimes.allocate_tensor(100, 100, "activation")
    lifetimes.describe(150, name="wte.weight", kind="parameter")
    lifetimes.describe(900, name="nobody", kind="parameter")
    assert [b.get("name") for b in writer.buffers] == ["wte.weight"]


moves = st.lists(
    st.tuples(
        st.sampled_from(["segment", "free", "tensor", "untensor", "touch"]), st.integers(0, 15), st.integers(1, 6)
    ),
    max_size=40,
)


@given(moves)
def test_live_buffers_never_overlap_and_hold_every_touched_address(steps):
    writer = Writer()
    lifetimes = Lifetimes(writer, tensors=True)
    for move, at, size in steps:
        base = at * 64
        if move == "segment":
            if not any(base < end and base + size * 64 > start for start, end in lifetimes.live()):
                lifetimes.allocate(base, size * 64)
        elif move == "free":
            lifetimes.free(base)
        elif move == "tensor":
            if any(start <= base and base + size * 32 <= end for start, end in lifetimes.live()):
                lifetimes.allocate_tensor(base, size * 32, "activation")
        elif move == "untensor":
            lifetimes.free_tensor(base)
        elif owner(lifetimes, base)[0] < 0:
            lifetimes.adopt(np.array([base]))
            assert owner(lifetimes, base)[0] >= 0
        live = sorted(writer.live())
        assert all(end <= start for (_, end), (start, _) in pairwise(live))
        for start, end in live:
            assert owner(lifetimes, start)[1] == start == owner(lifetimes, end - 1)[1]


def test_what_a_framework_holds_after_a_pause_is_kept_and_the_rest_is_let_go():
    writer = Writer()
    lifetimes = Lifetimes(writer, tensors=True)
    lifetimes.allocate(0, 4096)
    lifetimes.allocate_tensor(0, 512, "activation")
    lifetimes.allocate_tensor(1024, 512, "activation")
    lifetimes.adopt(np.array([2048]))
    lifetimes.keep_tensors([(0, 512), (512, 1024)], "activation")
    assert writer.frees == [1]
    assert [owner(lifetimes, a)[0] for a in (0, 512, 1024, 2048)] == [0, 3, -1, 2]


def test_a_graph_returns_to_the_tensors_it_was_captured_with_in_turn():
    writer = Writer()
    lifetimes = Lifetimes(writer, tensors=True)
    lifetimes.allocate(0, 4096)
    lifetimes.allocate_tensor(0, 512, "activation")
    for _ in range(2):
        lifetimes.return_to(((512, 1024), (1024, 1536)), np.array([600, 1100]), frozenset())
        first = [owner(lifetimes, a) for a in (600, 1100)]
        assert [base for _, base in first] == [512, 1024]
        lifetimes.return_to(((512, 1536),), np.array([1100]), frozenset())
        assert owner(lifetimes, 600)[1] == 512
        assert owner(lifetimes, 600)[0] not in {buffer for buffer, _ in first}, "another tensor in the same place"
    lifetimes.return_to(((0, 1024),), np.array([100]), frozenset())
    assert owner(lifetimes, 100) == (0, 0), "a living tensor has no other owner"
    lifetimes.return_to(((0, 1024),), np.array([100]), frozenset({(0, 512)}))
    assert writer.buffers[owner(lifetimes, 100)[0]]["bytes"] == 1024, "but of a node of the graph that made it"


def test_memory_with_several_addresses_is_never_divided():
    writer = Writer()
    lifetimes = Lifetimes(writer, tensors=True)
    lifetimes.allocate(0, 4096)
    lifetimes.share(0, 4096, 0, 0, 4096)
    lifetimes.return_to(((0, 512),), np.array([100]), frozenset())
    lifetimes.describe(100, name="w", kind="parameter")
    assert owner(lifetimes, 100) == owner(lifetimes, 4000) == (0, 0)
    assert writer.buffers == [{"base": SHARED_BASE, "bytes": 4096, "kind": "unknown"}]


def test_memory_is_held_across_mappings_that_lie_side_by_side():
    lifetimes = Lifetimes(Writer())
    for base in (UNKNOWN_BYTES, UNKNOWN_BYTES + 100, UNKNOWN_BYTES + 300):
        lifetimes.allocate(base, 100)
    lifetimes.adopt(np.array([UNKNOWN_BYTES + 250]))
    at = UNKNOWN_BYTES
    ranges = ((0, 100), (50, 150), (0, 400), (10, 400), (0, 0))
    assert [lifetimes.holds(at + low, at + high) for low, high in ranges] == [
        True, True, True, True, False,
    ]  # fmt: skip
    lifetimes.free(at + 300)
    assert not lifetimes.holds(at + 50, at + 301)
    assert not lifetimes.holds(at + 5 * UNKNOWN_BYTES, at + 5 * UNKNOWN_BYTES + 1)
