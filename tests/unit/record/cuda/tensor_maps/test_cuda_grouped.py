"""Grouped products: a kernel that overwrites the maps of its last group, and the trace of it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.cuda.cuda_records import KERNEL, entry, launch, process
from tileprof.devices import get
from tileprof.record.cuda.decode import Decoder
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.tensor_maps import grouped
from tileprof.trace import READ, WRITE, TraceWriter, load, validate

FIRST, SECOND, OUT, SPACE = 0x100000, 0x200000, 0x300000, 0x400000
SIZES = {FIRST: 1 << 20, SECOND: 1 << 20, OUT: 1 << 20, SPACE: 1 << 16}
ELEMENT = 2
PRODUCT = {**KERNEL, "tensor_load": 1, "tensor_store": 1, "parameters": [528, 1408]}


def words(base, sizes, strides, box):
    """Return a map of a bf16 matrix, inner size first; ``strides`` in bytes, of the outer dimension."""
    w = np.zeros(16, "<u4")
    w[0], w[1], w[2] = base & 0xFFFFFFFF, base >> 32, 1 << 4 | 10 << 7
    w[3], w[8], w[9] = strides >> 4, sizes[0] - 1, sizes[1] - 1
    w[13], w[14] = box[0] - 1 << 24, box[1] - 1
    return w


class Grouped:
    """``out[rows, n] = first[rows of group g, k] @ second[g, k, n]``, in tiles that clusters of two blocks take in
    turn.

    The blocks of a cluster load half of a tile's rows each, and each half of the columns in turn.
    """

    def __init__(self, counts, n, k, tile, step, clusters, *, columns_inner=True):
        self.counts, self.n, self.k, self.tile, self.step = counts, n, k, tile, step
        self.clusters, self.columns_inner = clusters, columns_inner
        self.ends = np.cumsum(counts).tolist()
        of_all = [
            (g, x, y)
            for g, count in enumerate(counts)
            for x in range(-(-count // tile[0]))
            for y in range(-(-n // tile[1]))
        ]
        self.of_cluster = [of_all[c::clusters] for c in range(clusters)]
        self.names = {}
        self.now = {}

    def maps(self, group):
        """Return the content of the two maps for a group."""
        start = self.ends[group] - self.counts[group]
        n, k, (tall, wide) = self.n, self.k, self.tile
        first = words(FIRST + start * k * ELEMENT, (k, self.counts[group]), k * ELEMENT, (self.step, tall // 2))
        base = SECOND + group * n * k * ELEMENT
        if self.columns_inner:
            return first, words(base, (n, k), n * ELEMENT, (wide // 2, self.step))
        return first, words(base, (k, n), k * ELEMENT, (self.step, wide // 2))

    def load(self, side, block, held, at):
        """Return the entries of one load, and of the map if it is new."""
        address = SPACE + (block * 2 + side) * 128
        content, out = held.tobytes(), []
        parts = held.reshape(4, 4).tolist()
        if address not in self.now:
            out += [entry(raw.MAP, address + 16 * i, raw.MAP_LOADED, 1, tuple(p)) for i, p in enumerate(parts)]
        self.now[address] = content
        if content not in self.names:
            self.names[content] = name = 77_000 + len(self.names)
            out.append(entry(raw.MAP, name, raw.MAP_NAME, 1, (address & 0xFFFFFFFF, address >> 32, 0, 0)))
            out += [entry(raw.MAP, address + 16 * i, raw.MAP_CONTENTS, 1, tuple(p)) for i, p in enumerate(parts)]
        out.append(entry(raw.TENSOR, address, block, 1, (*at, 0, 0)))
        out.append(entry(raw.TENSOR_TAIL, self.names[content], block, 1, (0, 0, 2, 1000)))
        return out

    def entries(self):
        (tall, wide), out = self.tile, []
        page = [entry(raw.MAP, SPACE + 16 * i, raw.MAP_BESIDE, 1, (0, 0, 0, 0)) for i in range(256)]
        for cluster, mine in enumerate(self.of_cluster):
            for group, x, y in mine:
                first, second = self.maps(group)
                for depth in range(0, self.k, self.step):
                    for half in range(2):
                        block = cluster * 2 + half
                        out += self.load(0, block, first, (depth, x * tall + half * tall // 2))
                        column = y * wide + half * wide // 2
                        out += self.load(1, block, second, (column, depth) if self.columns_inner else (depth, column))
        return page + out

    def events(self):
        rows, shape = sum(self.counts), (len(self.counts), self.k, self.n)
        strides = (self.k * self.n, self.n, 1) if self.columns_inner else (self.k * self.n, 1, self.k)
        tensors = [
            ["self", FIRST, [rows, self.k], [self.k, 1], "bfloat16", 2, False, "cuda"],
            ["mat2", SECOND, list(shape), list(strides), "bfloat16", 2, False, "cuda"],
            ["out", OUT, [rows, self.n], [self.n, 1], "bfloat16", 2, True, "cuda"],
        ]
        allocs = [{"e": "alloc", "address": a, "bytes": b, "device": 0, "flags": 0} for a, b in SIZES.items()]
        mark = {"e": "mark", "op": grouped.OPERATOR, "module": "", "t": 1}
        call_event = {"e": "called", "op": grouped.OPERATOR, "arguments": {}, "tensors": tensors, "t": 2}
        grid = {"grid": (2 * self.clusters, 1, 1), "cluster": (2, 1, 1)}
        return [*allocs, PRODUCT, mark, launch(1, **grid), call_event]

    def expected(self, *, of):
        """Return the elements that each work item reads of the second operand's group or writes of the result, in
        order.
        """
        out = []
        for mine in self.of_cluster:
            for group, x, y in mine:
                start, (tall, wide) = self.ends[group] - self.counts[group], self.tile
                rows = range(start + x * tall, min(start + (x + 1) * tall, self.ends[group]))
                columns = range(y * wide, min((y + 1) * wide, self.n))
                out.append({(r, c) for r in (rows if of == WRITE else [group]) for c in columns})
        return out


def traced(folder, events, entries):
    path = folder / "t.tileprof"
    with TraceWriter(path, recorder="cuda", command=["x"], device=get("H200"), granule=32, force=True) as writer:
        Decoder(process(folder, events, entries), writer, get("H200")).run()
    trace = load(path)
    assert validate(trace) == []
    return trace


def elements(trace, base, mode):
    """Return the elements of a buffer that each tile touches in a mode."""
    boxes = trace.footprint(int(trace.launches.footprint[0])).boxes
    buffer, offset = trace.operands_of(0)
    begins = trace.buffers.base.to_numpy()[buffer]
    out = [set() for _ in range(int(trace.launches.tiles[0]))]
    columns = (boxes.tile, boxes.operand, boxes.mode, boxes.offset, boxes.length, boxes.count_0, boxes.stride_0)
    for tile, operand, of_mode, at, length, count, stride in zip(*columns, strict=True):
        if of_mode != mode or begins[operand] != base:
            continue
        for i in range(int(count)):
            first = (int(offset[operand]) + int(at) + i * int(stride)) // ELEMENT
            out[int(tile)] |= set(range(first, first + int(length) // ELEMENT))
    return out


problems = st.builds(
    Grouped,
    st.lists(st.integers(0, 70), min_size=1, max_size=5).filter(any),
    st.sampled_from([32, 64, 80]),
    st.sampled_from([32, 64]),
    st.just((32, 32)),
    st.just(16),
    st.integers(1, 4),
    columns_inner=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(problem=problems)
def test_each_item_writes_its_rows_by_its_columns_and_reads_its_group(tmp_path_factory, problem):
    trace = traced(tmp_path_factory.mktemp("t"), problem.events(), problem.entries())
    assert trace.launches.coverage[0] == "inferred"
    writes = problem.expected(of=WRITE)
    idle = [tile for tile in elements(trace, OUT, WRITE) if not tile]
    assert len(idle) == sum(not mine for mine in problem.of_cluster)
    assert [t for t in elements(trace, OUT, WRITE) if t] == [{r * problem.n + c for r, c in w} for w in writes]
    whole = problem.n * problem.k
    reads = [{i // whole for i in tile} for tile in elements(trace, SECOND, READ) if tile]
    assert reads == [{g for g, _ in r} for r in problem.expected(of=READ)]


def test_without_its_call_the_launch_covers_all_memory(tmp_path):
    problem = Grouped([40, 30], 64, 64, (32, 32), 16, 2)
    events = [e for e in problem.events() if e["e"] != "called"]
    trace = traced(tmp_path, events, problem.entries())
    assert trace.launches.coverage[0] == "conservative"
    buffer, _ = trace.operands_of(0)
    boxes = trace.footprint(int(trace.launches.footprint[0])).boxes
    written_bases = set(trace.buffers.base.to_numpy()[buffer][boxes.operand[boxes.mode == WRITE]].tolist())
    assert written_bases == set(SIZES)


def test_items_that_omit_a_tile_are_rejected(tmp_path):
    problem = Grouped([40, 30], 64, 64, (32, 32), 16, 2)
    problem.of_cluster[1].pop()
    assert traced(tmp_path, problem.events(), problem.entries()).launches.coverage[0] == "conservative"


def test_contents_of_which_a_part_is_missing_make_reads_a_superset(tmp_path):
    problem = Grouped([40, 30], 64, 64, (32, 32), 16, 2)
    entries = problem.entries()
    kinds = [(key >> raw.KIND_SHIFT, block) for key, block, _, _ in entries]
    del entries[kinds.index((raw.MAP, raw.MAP_NAME)) + 2]
    trace = traced(tmp_path, problem.events(), entries)
    assert trace.launches.coverage[0] == "conservative"
    assert "loads through a tensor map that could not be decoded" in trace.launches.note[0]
