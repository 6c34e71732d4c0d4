"""The tile graph against an oracle that walks every byte."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.analysis.dependencies.traces import MemoryTrace, TraceBuilder, oracle
from tileprof.analysis import build_graph
from tileprof.errors import TraceError
from tileprof.trace.footprint import ATOMIC, READ, WRITE

SIZE = 48
LAG = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@st.composite
def boxes(draw: st.DrawFn) -> dict:
    length, count_0, count_1 = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    stride_0 = draw(st.integers(1, 7))
    inner = length + (count_0 - 1) * stride_0
    stride_1 = draw(st.integers(0, min(9, SIZE // 2 - inner)))
    span = inner + (count_1 - 1) * stride_1
    first, last = sorted((draw(LAG), draw(LAG)))
    return {
        "tile": draw(st.integers(0, 3)), "operand": draw(st.integers(0, 1)),
        "mode": draw(st.sampled_from([READ, READ, WRITE, WRITE, ATOMIC])),
        "offset": draw(st.integers(0, SIZE // 2 - span)), "length": length, "count_0": count_0,
        "stride_0": stride_0, "count_1": count_1, "stride_1": stride_1, "first": first, "last": last,
    }  # fmt: skip


@dataclass(frozen=True)
class Program:
    """Return a program as literals, so that a failing example can be pasted: boxes of each footprint, then events."""

    footprints: list[list[dict]]
    events: list[tuple]

    def trace(self) -> MemoryTrace:
        builder = TraceBuilder()
        for rows in self.footprints:
            builder.footprint(4, rows)
        for name, *arguments in self.events:
            getattr(builder, name)(*arguments)
        return builder.trace()


@st.composite
def programs(draw: st.DrawFn) -> Program:
    footprints = [draw(st.lists(boxes(), min_size=1, max_size=6)) for _ in range(draw(st.integers(1, 3)))]
    events: list[tuple] = []
    ranges: list[tuple[int, int]] = []
    live: list[int] = []
    for _ in range(draw(st.integers(1, 8))):
        if live and draw(st.booleans()):
            events.append(("free", live.pop(draw(st.integers(0, len(live) - 1)))))
        base = draw(st.sampled_from([0, 16, SIZE // 2, SIZE]))
        end = base + draw(st.sampled_from([SIZE, SIZE + 8]))
        if all(end <= ranges[b][0] or ranges[b][1] <= base for b in live):
            live.append(len(ranges))
            ranges.append((base, end))
            events.append(("buffer", base, end - base))
        if live:
            bound = [(draw(st.sampled_from(live)), draw(st.integers(0, SIZE // 2))) for _ in range(2)]
            events.append(("launch", draw(st.integers(0, len(footprints) - 1)), *bound))
    return Program(footprints, events)


@settings(max_examples=300, deadline=None)
@given(programs())
def test_every_edge_equals_the_byte_by_byte_oracle(program: Program) -> None:
    trace = program.trace()
    edges = build_graph(trace).edges
    actual = {
        (a, b, c, d, e, bool(f)): (n, last, first) for a, b, c, d, e, f, n, last, first in edges.itertuples(index=False)
    }
    assert len(actual) == len(edges)
    expected = oracle(trace)
    missing = expected.keys() - actual.keys()
    assert not missing
    # A read beside a write of another tile of the same launch may add a WAR where there is a WAW already.
    for edge in actual.keys() - expected.keys():
        assert edge[4] == "WAR", edge
        assert (*edge[:4], "WAW", edge[5]) in expected, edge
    for edge, value in expected.items():
        if edge[4] != "WAR" or (*edge[:4], "WAW", edge[5]) not in expected:
            assert actual[edge] == pytest.approx(value), edge


def test_a_read_depends_on_the_last_writer_only() -> None:
    builder = TraceBuilder()
    write = builder.footprint(2, [{"tile": [0, 1], "operand": 0, "mode": WRITE, "offset": [0, 8], "length": 8}])
    read = builder.footprint(1, [{"tile": 0, "operand": 0, "mode": READ, "offset": 4, "length": 8}])
    memory = builder.buffer(0, 16)
    for footprint in (write, write, read):
        builder.launch(footprint, (memory, 0))
    edges = build_graph(builder.trace()).edges
    raw = edges[edges["hazard"] == "RAW"]
    assert raw[["producer_launch", "producer_tile", "consumer_tile", "bytes"]].values.tolist() == [
        [1, 0, 0, 4],
        [1, 1, 0, 4],
    ]


@pytest.mark.parametrize(("granule", "met"), [(1, [[0, 0], [1, 1]]), (4, [[0, 0], [0, 1], [1, 0], [1, 1]])])
def test_tiles_meet_in_the_granule_that_they_share(granule: int, met: list[list[int]]) -> None:
    builder = TraceBuilder()
    halves = {"tile": [0, 1], "operand": 0, "offset": [0, 6], "length": 6}
    write, read = (builder.footprint(2, [halves | {"mode": mode}]) for mode in (WRITE, READ))
    memory = builder.buffer(0, 12)
    for footprint in (write, read):
        builder.launch(footprint, (memory, 0))
    edges = build_graph(builder.trace(), granule=granule).edges
    raw = edges[edges["hazard"] == "RAW"]
    assert sorted(raw[["producer_tile", "consumer_tile"]].values.tolist()) == met


def test_repeated_layers_share_blocks() -> None:
    builder = TraceBuilder()
    tiles = np.arange(64)
    layer = builder.footprint(
        64,
        [
            {"tile": tiles, "operand": 0, "mode": READ, "offset": tiles * 4, "length": 4},
            {"tile": tiles, "operand": 1, "mode": WRITE, "offset": tiles * 4, "length": 4},
        ],
    )
    previous = builder.buffer(0, 256)
    for number in range(1, 101):
        following = builder.buffer(1024 * number, 256)
        builder.launch(layer, (previous, 0), (following, 0))
        previous = following
    graph = build_graph(builder.trace())
    assert len(graph.links) == 99
    assert len(graph.blocks) == 1
    assert graph.links["edges"].sum() == 99 * 64


def test_a_box_outside_its_buffer_is_refused_in_memory_as_in_a_file() -> None:
    builder = TraceBuilder()
    write = builder.footprint(1, [{"tile": 0, "operand": 0, "mode": WRITE, "offset": 4, "length": 8}])
    builder.launch(write, (builder.buffer(0, 16), 8))
    with pytest.raises(TraceError, match="touches bytes 12 to 20 of buffer 0, which has 16"):
        builder.trace()


def test_overlapping_live_buffers_are_refused() -> None:
    builder = TraceBuilder()
    builder.footprint(1, [{"tile": 0, "operand": 0, "mode": WRITE, "offset": 0, "length": 4}])
    builder.buffer(0, 16)
    builder.buffer(8, 16)
    with pytest.raises(TraceError, match="buffers 0 and 1 overlap"):
        build_graph(builder.trace())


def test_work_beyond_any_memory_is_refused_and_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, tiles = TraceBuilder(), np.arange(40)
    write = builder.footprint(40, [{"tile": tiles, "operand": 0, "mode": WRITE, "offset": tiles * 4, "length": 4}])
    read = builder.footprint(
        40, [{"tile": tiles, "operand": 0, "mode": READ, "offset": 0, "length": 4 * (tiles + 1), "count_1": 9}]
    )
    memory = builder.buffer(0, 160)
    for footprint in (write, read):
        builder.launch(footprint, (memory, 0))
    trace = builder.trace()
    monkeypatch.setattr("tileprof.analysis.dependencies.touched_bytes.MOST_RUNS", 40)
    assert build_graph(trace).links["edges"].tolist() == [820], "repetitions of the same bytes are no runs of their own"
    monkeypatch.setattr("tileprof.analysis.dependencies.blocks.MOST_DEPENDENCIES", 800)
    with pytest.raises(TraceError, match="more than 800 dependencies of different tiles"):
        build_graph(trace)
    monkeypatch.setattr("tileprof.analysis.dependencies.touched_bytes.MOST_RUNS", 30)
    with pytest.raises(TraceError, match="touch 40 separate runs of bytes; at most 30"):
        build_graph(trace)
