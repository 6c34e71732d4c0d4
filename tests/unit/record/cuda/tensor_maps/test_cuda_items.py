"""Persistent products are split into their work items by the order of their tensor-map loads alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.cuda.cuda_records import KERNEL, access, block_record, entry, launch, process
from tileprof.devices import get
from tileprof.record.cuda.decode import Decoder
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.tiles import Geometry
from tileprof.record.cuda.tensor_maps import items, tensormap
from tileprof.trace import WRITE, TraceWriter, load, validate

PAGE = 0x7FF000000000
A, B, OUT = PAGE + 576, PAGE + 640, PAGE + 704
BASES = {A: 0x100000, B: 0x200000, OUT: 0x300000}
ELEMENT = 2
PRODUCT = {**KERNEL, "tensor_load": 1, "tensor_store": 1, "parameters": [528, 256]}
ALLOCS = [{"e": "alloc", "address": base, "bytes": 0x100000, "device": 0, "flags": 0} for base in BASES.values()]


def words(base, sizes, box):
    """Return a map of a dense bf16 matrix ``sizes`` (inner, outer)."""
    w = np.zeros(16, "<u4")
    w[0], w[1], w[2] = base & 0xFFFFFFFF, base >> 32, 1 << 4 | 10 << 7
    w[3], w[8], w[9] = sizes[0] * ELEMENT >> 4, sizes[0] - 1, sizes[1] - 1
    w[13], w[14] = box[0] - 1 << 24, box[1] - 1
    return w


def map_entries(number, slot, sizes, box, *, loaded):
    parts = words(BASES[slot], sizes, box).reshape(4, 4).tolist()
    return [entry(raw.MAP, slot + 16 * i, int(loaded), number, tuple(p)) for i, p in enumerate(parts)]


def load_entries(slot, block, depth, row, at):
    return [
        entry(raw.TENSOR, slot, block, 1, (depth, row, 0, 0)),
        entry(raw.TENSOR_TAIL, slot, block, 1, (0, 0, 2, at)),
    ]


class Product:
    """Return ``out[m, n]`` of ``a[m, k]`` and ``b[n, k]`` in tiles that blocks take in turn, each k in steps, a in two
    boxes per step.
    """

    def __init__(self, m, n, k, tile, step, blocks, *, ahead=0, order=None):
        self.sizes, self.tile, self.step, self.ahead = (m, n, k), tile, step, ahead
        self.grid = -(-m // tile[0]), -(-n // tile[1])
        tiles = list(np.ndindex(*self.grid))
        if order is not None:
            tiles = [tiles[i] for i in order]
        self.of_block = [tiles[b::blocks] for b in range(blocks)]

    def maps(self, number=1):
        (m, n, k), (tm, tn) = self.sizes, self.tile
        out = map_entries(number, A, (k, m), (self.step, tm // 2), loaded=True)
        out += map_entries(number, B, (k, n), (self.step, tn), loaded=True)
        return out + map_entries(number, OUT, (n, m), (64, tm), loaded=False)

    def loads(self):
        (_, _, k), (tm, tn), out = self.sizes, self.tile, []
        for block, mine in enumerate(self.of_block):
            steps = [(x, y, d) for x, y in mine for d in range(0, k, self.step)]
            a = [[load_entries(A, block, d, x * tm + h, 1000) for h in (0, tm // 2)] for x, _, d in steps]
            b = [load_entries(B, block, d, y * tn, 1000) for _, y, d in steps]
            for i in range(len(steps) + self.ahead):  # b is fetched some steps behind a
                out += [e for pair in a[i : i + 1] for half in pair for e in half]
                out += b[i - self.ahead] if i >= self.ahead else []
        return out


def traced(folder, events, entries):
    path = folder / "t.tileprof"
    with TraceWriter(path, recorder="cuda", command=["x"], device=get("H200"), granule=32, force=True) as writer:
        Decoder(process(folder, events, entries), writer, get("H200")).run()
    trace = load(path)
    assert validate(trace) == []
    return trace


def rectangle(boxes, base, width):
    """Return rows and columns of one tile's boxes of a dense matrix."""
    cells = set()
    for o, length, count, stride in zip(boxes.offset, boxes.length, boxes.count_0, boxes.stride_0, strict=True):
        for i in range(int(count)):
            at = (base + int(o) + i * int(stride)) // ELEMENT
            cells |= {divmod(at + j, width) for j in range(int(length) // ELEMENT)}
    return cells


def written_bytes(trace, width):
    boxes = trace.footprint(int(trace.launches.footprint[0])).boxes
    buffer, offset = trace.operands_of(0)
    base = trace.buffers.base.to_numpy()[buffer] + offset - BASES[OUT]
    tiles = []
    for tile in range(int(trace.launches.tiles[0])):
        mine = boxes.take((boxes.tile == tile) & (boxes.mode == WRITE))
        tiles.append(rectangle(mine, int(base[mine.operand[0]]), width))
    return tiles


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_items_are_the_tiles_for_every_assignment_and_lead_of_an_operand(tmp_path_factory, data):
    rows, columns, steps = (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)), data.draw(st.integers(2, 3)))
    ragged = data.draw(st.integers(0, 7))
    m, n, k = rows * 16 - ragged, columns * 32, steps * 16
    order = data.draw(st.permutations(range(rows * columns)))
    blocks = data.draw(st.integers(1, rows * columns))
    problem = Product(m, n, k, (16, 32), 16, blocks, ahead=data.draw(st.integers(0, 2)), order=order)
    events = [*ALLOCS, PRODUCT, launch(1, grid=(blocks, 1, 1))]
    folder = tmp_path_factory.mktemp("product")
    trace = traced(folder, events, [*problem.maps(), *problem.loads()])
    if blocks == rows * columns or m == n:
        assert trace.launches.tiles[0] == blocks, "one item per block, or a square, which may be the transpose"
        return
    assert trace.launches.coverage[0] == "inferred"
    assert trace.launches.tiles[0] == rows * columns
    expected = [
        {(r, c) for r in range(x * 16, min(x * 16 + 16, m)) for c in range(y * 32, y * 32 + 32)}
        for mine in problem.of_block
        for x, y in mine
    ]
    assert written_bytes(trace, n) == expected
    assert trace.tiles.block_x.tolist() == [b for b, mine in enumerate(problem.of_block) for _ in mine]


def test_what_replays_saw_makes_items_exact_and_what_contradicts_them_keeps_whole_blocks(tmp_path):
    problem = Product(32, 64, 32, (16, 32), 16, 2)
    owners = np.array([[next(b for b, mine in enumerate(problem.of_block) if (r // 16, c // 32) in mine)
                        for c in range(0, 64, 8)] for r in range(32)], "<i4")  # fmt: skip
    actual = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    actual |= {"regions": [[176, 32 * 64 * ELEMENT]], "refused": ""}
    owner_event = {"e": "owned", "launch": 1, "id": 0, "bases": [BASES[OUT]]}
    events = [*ALLOCS, PRODUCT, launch(1), actual, owner_event]
    entries = [*problem.maps(), *problem.loads(), access(1, 0, BASES[A] // 1024 + 64, atomic=1)]
    owners.tofile(tmp_path / "owners-0.bin")
    trace = traced(tmp_path, events, entries)
    assert (trace.launches.coverage[0], trace.launches.tiles[0]) == ("exact", 4)
    counters = trace.accesses[trace.accesses["mode"] == "atomic"]
    assert counters.tile.tolist() == [0, 1], "a block's counter counts for each of its items"
    owners[0, 0] = 1
    owners.tofile(tmp_path / "owners-0.bin")
    assert traced(tmp_path, events, entries).launches.tiles[0] == 2


def test_a_block_that_also_stores_in_plain_ways_stays_whole(tmp_path):
    problem = Product(32, 64, 32, (16, 32), 16, 2)
    entries = [*problem.maps(), *problem.loads(), access(1, 0, BASES[OUT] // 1024 + 100, write=1)]
    assert traced(tmp_path, [*ALLOCS, PRODUCT, launch(1)], entries).launches.tiles[0] == 2


def test_blocks_of_a_cluster_share_their_items(tmp_path):
    """Two blocks per cluster, each loads half of a's rows: the item is their union."""
    out = []
    for item, column in enumerate((0, 32)):
        for depth in (0, 16):
            for block in (0, 1):
                out += load_entries(A, block, depth, 8 * block, 1000 + item)
                out += load_entries(B, block, depth, column, 1000 + item)
    maps = map_entries(1, A, (32, 16), (16, 8), loaded=True) + map_entries(1, B, (32, 64), (16, 32), loaded=True)
    maps += map_entries(1, OUT, (64, 16), (32, 16), loaded=False)
    trace = traced(tmp_path, [*ALLOCS, PRODUCT, launch(1, cluster=(2, 1, 1))], [*maps, *out])
    assert [len(cells) for cells in written_bytes(trace, 64)] == [16 * 32] * 2


def test_items_run_from_their_first_load_to_the_next_ones(tmp_path):
    out = []
    for item, column in enumerate((0, 32)):
        for depth in (0, 16):
            out += load_entries(A, 0, depth, 0, 1000 + 400 * item) + load_entries(
                B, 0, depth, column, 1000 + 400 * item
            )
    maps = map_entries(1, A, (32, 16), (16, 16), loaded=True) + map_entries(1, B, (32, 64), (16, 32), loaded=True)
    maps += map_entries(1, OUT, (64, 16), (32, 16), loaded=False)
    entries = [*maps, *out, block_record(1, 0, 900, 2000)]
    trace = traced(tmp_path, [*ALLOCS, PRODUCT, launch(1, grid=(1, 1, 1))], entries)
    assert trace.times[["tile", "begin_ns", "end_ns"]].to_numpy().tolist() == [[0, 0, 500], [1, 500, 1100]]


@pytest.mark.parametrize(
    "loads",
    [
        [(A, 0, 0, 0), (B, 0, 0, 0), (A, 0, 0, 16), (B, 0, 0, 32)],  # one step: the coordinate never decreases
        [(A, 0, d, 0) for d in (0, 16, 0, 16)] + [(B, 0, d, 0) for d in (0, 16)],  # as many items of a as of b, or none
    ],
)
def test_ambiguous_orders_leave_blocks_whole(loads):
    maps = {slot: tensormap.decode(words(BASES[slot], (32, 64), (16, 16))) for slot in (A, B)}
    entries = np.array([e for slot, b, d, r in loads for e in load_entries(slot, b, d, r, 0)], raw.ENTRY)
    assert items.readings(items.Walk.of(entries), Geometry((1, 1, 1), (32, 1, 1), (1, 1, 1)), maps) == []


def test_items_that_do_not_tile_the_result_exactly_once_are_rejected():
    maps = {slot: tensormap.decode(words(BASES[slot], (32, 64), (16, 16))) for slot in (A, B)}
    loads = [(A, d, 0) for d in (0, 16, 0, 16)] + [(B, d, r) for r in (0, 16) for d in (0, 16)]
    entries = np.array([e for slot, d, r in loads for e in load_entries(slot, 0, d, r, 0)], raw.ENTRY)
    walk = items.Walk.of(entries)
    actual = items.readings(walk, Geometry((1, 1, 1), (32, 1, 1), (1, 1, 1)), maps)
    result = tensormap.decode(words(BASES[OUT], (32, 64), (16, 16)))
    assert actual
    assert all(items.product(result, walk, reading, maps) is None for reading in actual)
