"""One physical memory is one buffer at all addresses where a program maps it, and other memory never is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.record.cuda.cuda_records import KERNEL, access, block_record, launch, process
from tileprof.analysis import build_graph
from tileprof.devices import get
from tileprof.record.cuda.decode import Decoder
from tileprof.record.cuda.footprints.lifetimes import SHARED_BASE, Lifetimes
from tileprof.record.cuda.footprints.physical import Physical
from tileprof.trace import TraceWriter, load, validate

PAGE = 0x10000
CREATE = {"e": "physical", "handle": 7}


def mapped(address, handle=7, pages=1, offset=0):
    alloc = {"e": "alloc", "address": address, "bytes": pages * PAGE, "mapped": 1}
    return [alloc, {"e": "map", "address": address, "bytes": pages * PAGE, "handle": handle, "offset": offset}]


def unmap_event(address):
    return [{"e": "unmap", "address": address}, {"e": "free", "address": address}]


def touching_all(n, *addresses):
    """Return a launch of one block that touches 32 bytes at each address, in the mode after it."""
    entries = [block_record(n, 0, 1000, 1100)]
    for address, mode in addresses:
        window, granule = divmod(address // 32, 32)
        entries.append(access(n, 0, window, **{mode: 1 << granule}))
    return {**launch(n, grid=(1, 1, 1)), "ordinal": n - 1}, entries


def touching(n, address, *, write):
    return touching_all(n, (address, "write" if write else "read"))


@pytest.fixture
def dependencies(tmp_path):
    """Return the pairs of launches whose later one reads what the earlier one wrote, and the trace."""

    def of(*steps, tensors=(), changed=()):
        events, entries = [KERNEL, *tensors], []
        for step in steps:
            if isinstance(step, tuple):
                events.append(step[0])
                entries += step[1]
            else:
                events += step if isinstance(step, list) else [step]
        name = tmp_path / "t.tileprof"
        with TraceWriter(name, recorder="cuda", command=["x"], device=get("H200"), granule=32, force=True) as writer:
            decoder = Decoder(process(tmp_path, [*events, *changed], entries), writer, get("H200"))
            decoder.run()
        trace = load(name)
        assert validate(trace) == []
        pairs = build_graph(trace).pairs
        pairs = pairs[pairs.raw > 0]
        return set(zip(pairs.producer.tolist(), pairs.consumer.tolist(), strict=True)), trace, decoder

    return of


A, B, C = 0x1000000, 0x2000000, 0x3000000


TENSOR = {"e": "tensor", "address": B, "bytes": 0x100, "kind": "activation"}


@pytest.mark.parametrize("tensors", [[], [TENSOR], [TENSOR, {"e": "untensor", "address": B}]])
def test_what_is_written_at_one_address_is_read_at_the_other(dependencies, tensors):
    pairs, trace, _ = dependencies(
        CREATE, mapped(A), mapped(B), *tensors, touching(1, A + 64, write=True), touching(2, B + 64, write=False),
        touching(3, B + 96, write=False),
    )  # fmt: skip
    assert pairs == {(0, 1)}
    assert trace.buffers.base.max() == SHARED_BASE


def test_a_block_may_touch_both_addresses(dependencies):
    pairs, _, _ = dependencies(
        CREATE, mapped(A), mapped(B), touching(1, A + 64, write=True),
        touching_all(2, (A + 64, "read"), (B + 64, "read")),
        touching_all(3, (A + 96, "write"), (B + 128, "write")), touching(4, B + 96, write=False),
        touching(5, A + 128, write=False),
    )  # fmt: skip
    assert pairs == {(0, 1), (2, 3), (2, 4)}


@pytest.mark.parametrize("pages", [1, 4])
def test_an_access_may_cross_from_one_mapping_into_the_other(dependencies, pages):
    """Such a range crosses the end of a ring of memory whose start is mapped again behind it."""
    end = C + PAGE
    pairs, _, _ = dependencies(
        CREATE, mapped(C), mapped(end, pages=pages), touching_all(1, (end - 32, "write"), (end, "write")),
        touching(2, C, write=False), touching(3, end + PAGE - 32, write=False),
    )  # fmt: skip
    assert pairs == {(0, 1), (0, 2)}


def test_memory_that_moves_to_another_address_keeps_its_content(dependencies):
    pairs, _, _ = dependencies(
        CREATE, mapped(A), touching(1, A, write=True), unmap_event(A), mapped(A, handle=8), touching(2, A, write=False),
        mapped(C), touching(3, C, write=False),
    )  # fmt: skip
    assert pairs == {(0, 2)}


def test_memory_that_is_mapped_again_at_its_old_address_keeps_its_content(dependencies):
    pairs, _, _ = dependencies(
        CREATE,
        mapped(A),
        touching(1, A, write=True),
        unmap_event(A),
        mapped(A),
        touching(2, A, write=False),
    )
    assert pairs == {(0, 1)}


def test_a_handle_that_is_given_out_again_is_other_memory(dependencies):
    pairs, trace, _ = dependencies(
        CREATE, mapped(A), touching(1, A, write=True), unmap_event(A), CREATE, mapped(A), touching(2, A, write=False)
    )
    assert pairs == set()
    assert set(trace.buffers.base) == {A}


@pytest.mark.parametrize(("file", "pairs"), [(40, {(0, 1)}), (41, set())])  # the recorder complains about 41
def test_what_a_program_imports_of_its_own_is_one_memory(dependencies, file, pairs):
    out, back = ({"e": what, "handle": h, "file": f} for what, h, f in (("exported", 7, 40), ("imported", 9, file)))
    actual, _, _ = dependencies(
        CREATE, mapped(A), out, back, mapped(B, 9), touching(1, A, write=True), touching(2, B, write=False)
    )
    assert actual == pairs


def test_memory_is_shared_until_it_is_freed_however_often_it_is_reported(dependencies):
    """Compute Sanitizer reports a mapping when it may be used."""
    report_event = {"e": "alloc", "address": B, "bytes": PAGE}
    pairs, trace, _ = dependencies(
        CREATE, mapped(A), mapped(B), report_event, touching(1, A, write=True), touching(2, B, write=False)
    )
    assert pairs == {(0, 1)}
    assert trace.operands.buffer.nunique() == 1


def test_memory_is_shared_until_it_is_unmapped_whatever_may_be_done_with_it_meanwhile(dependencies):
    """Compute Sanitizer reports memory that may not be used any more as freed."""
    revoke_event, grant_event = {"e": "free", "address": B}, {"e": "alloc", "address": B, "bytes": PAGE}
    pairs, _, _ = dependencies(
        CREATE, mapped(A), mapped(B), touching(1, A, write=True), revoke_event, grant_event, touching(2, B, write=False)
    )
    assert pairs == {(0, 1)}


def test_where_shared_memory_was_other_memory_may_be(dependencies):
    pairs, _, _ = dependencies(
        CREATE, mapped(A), mapped(B), touching(1, A, write=True), unmap_event(B), {**CREATE, "handle": 8}, mapped(B, 8),
        touching(2, B, write=True), touching(3, A, write=False),
    )  # fmt: skip
    assert pairs == {(0, 2)}


def test_offsets_into_memory_are_kept(dependencies):
    pairs, _, _ = dependencies(
        CREATE, mapped(A, pages=2), mapped(B, offset=PAGE), touching(1, A + PAGE + 32, write=True),
        touching(2, B + 32, write=False), touching(3, B, write=False),
    )  # fmt: skip
    assert pairs == {(0, 1)}


def test_several_memories_are_several_buffers(dependencies):
    pairs, trace, _ = dependencies(
        CREATE, mapped(A), mapped(B), {**CREATE, "handle": 8}, mapped(C, 8), mapped(C + PAGE, 8),
        touching(1, A, write=True), touching(2, C, write=False), touching(3, C + PAGE, write=True),
        touching(4, B, write=False),
    )  # fmt: skip
    assert pairs == {(0, 3)}
    assert [b for b in trace.buffers.base if b >= SHARED_BASE] == [SHARED_BASE, SHARED_BASE + PAGE]


def test_an_address_that_such_memory_has_left_is_anybodys(dependencies):
    segment = {"e": "alloc", "address": B, "bytes": PAGE}
    _, trace, _ = dependencies(
        CREATE,
        mapped(A, pages=2),
        mapped(B, offset=PAGE),
        unmap_event(B),
        segment,
        TENSOR,
        touching(1, B + 64, write=True),
    )
    assert trace.buffers.set_index("buffer").base[trace.operands.buffer].tolist() == [B]
    assert trace.operands.offset.tolist() == [64]


def test_the_write_check_covers_both_addresses(dependencies):
    changed_event = {"e": "changed", "launch": 1, "ranges": [[A + 64, A + 96], [B + 64, B + 96]]}
    _, _, decoder = dependencies(CREATE, mapped(A), mapped(B), touching(1, A + 64, write=True), changed=[changed_event])
    assert (decoder.checked, decoder.unrecorded) == (32, {})
    changed_event["ranges"][1][1] += 4  # more at one address than at the other
    _, _, decoder = dependencies(CREATE, mapped(A), mapped(B), touching(1, A + 64, write=True), changed=[changed_event])
    assert decoder.unrecorded == {0: 4}


steps = st.lists(
    st.tuples(
        st.sampled_from(["create", "map", "unmap", "tensor", "untensor", "segment"]),
        st.integers(0, 5),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(1, 2),
    ),
    max_size=25,
)


class Writer:
    def __init__(self):
        self.bases, self.live = [], set()

    def add_buffer(self, *, base, **_):
        self.bases.append(base)
        self.live.add(len(self.bases) - 1)
        return len(self.bases) - 1

    def free_buffer(self, buffer):
        self.live.remove(buffer)


@given(steps, st.booleans())
def test_equal_bytes_have_equal_places_and_others_do_not(steps, tensors):
    """Compare with memory that is followed byte by byte; pages here have 64 bytes."""
    events, now, generation, oracle = [], {}, dict.fromkeys(range(3), 0), []
    for what, at, handle, offset, pages in steps:
        base, size = 1024 * at, 64 * pages
        if what == "create":
            if any(m[0] == handle for m in now.values()):
                continue
            generation[handle] += 1
            events.append({"e": "physical", "handle": handle})
        elif what == "map" and base not in now:
            now[base] = (handle, generation[handle], 64 * offset, size)
            events.append({"e": "map", "address": base, "bytes": size, "handle": handle, "offset": 64 * offset})
        elif what == "segment" and base not in now:
            now[base] = (-1, len(events), 0, size)
            events.append({"e": "alloc", "address": base, "bytes": size})
        elif what == "unmap" and base in now:
            del now[base]
            events.append({"e": "unmap", "address": base})
        elif what in {"tensor", "untensor"} and tensors and base in now and 16 * (offset + 1) <= now[base][3]:
            events.append({"e": what, "address": base, "bytes": 16 * (offset + 1)})
        else:
            continue
        oracle.append(dict(now))
    writer, physical = Writer(), Physical.of(events)
    lifetimes, actual = Lifetimes(writer, tensors=tensors), {}
    for event, memory in zip(events, oracle, strict=True):
        if event["e"] == "physical":
            physical.follow(event)
        elif event["e"] == "unmap":
            lifetimes.unshare(event["address"])
            lifetimes.free(event["address"])
        elif event["e"] == "tensor":
            lifetimes.allocate_tensor(event["address"], event["bytes"], "activation")
        elif event["e"] == "untensor":
            lifetimes.free_tensor(event["address"])
        else:
            lifetimes.allocate(event["address"], event["bytes"])
            shared = physical.mapped(event) if event["e"] == "map" else None
            if shared is not None:
                lifetimes.share(event["address"], event["bytes"], shared[0], event["offset"], shared[1])
        for base, (handle, generation_, into, size) in memory.items():
            for byte in (0, 31, size - 1):
                address = np.array([base + byte])
                leaves = lifetimes.leaves()
                if not len(leaves.edges) or leaves.buffer[leaves.find(address)[0]] < 0:
                    lifetimes.adopt(address)
                leaves = lifetimes.leaves()
                piece = leaves.find(address)[0]
                buffer, place = int(leaves.buffer[piece]), base + byte - int(leaves.base[piece])
                assert buffer in writer.live
                assert lifetimes.in_trace(address)[0] == writer.bases[buffer] + place
                if any(key[:2] == (handle, generation_) for key in physical.shared):
                    truth = (handle, generation_, into + byte)
                    assert actual.setdefault(truth, (buffer, place)) == (buffer, place)
                    assert actual.setdefault((buffer, place), truth) == truth
                else:
                    assert writer.bases[buffer] + place == base + byte
