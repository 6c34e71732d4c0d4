"""Curves for the terminal: slots that hold a tile over time, and tiles that become ready."""

import io

import numpy as np
import pytest

from tests.support.small_programs import Program, norm, pointwise, transformer
from tileprof.analysis import build_graph
from tileprof.analysis.simulate import SCHEDULERS, Simulator
from tileprof.analysis.timeline import dispatch
from tileprof.cli.text.console import sparkline, terminal
from tileprof.trace import load
from tileprof.viz.figures.report_curves import Curves

GEMM, ATTENTION = 2, 3


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build_graph(load(transformer(tmp_path_factory.mktemp("busy") / "t", layers=2)))


def spans(graph, launch):
    row = graph.launches.iloc[launch]
    lives = graph.footprint(int(row["footprint"])).duration_ns
    lanes = dispatch(lives, sms=132, blocks_per_sm=max(int(row["blocks_per_sm"]), 1))
    return lanes.begin_ns, lanes.end_ns, 132 * lanes.slots


def test_slots_in_use_are_those_of_tiles_that_run_at_the_time(graph):
    bins = 40
    launches = graph.launches
    begin_ns = launches["begin_ns"].to_numpy(float) - launches["begin_ns"].min()
    edges = np.linspace(0, (begin_ns + launches["duration_ns"]).max(), bins + 1)
    expected = np.zeros(bins)
    for launch in range(len(launches)):
        begin, end, slots = spans(graph, launch)
        for b, e in zip(begin_ns[launch] + begin, begin_ns[launch] + end, strict=True):
            expected += np.clip(np.minimum(e, edges[1:]) - np.maximum(b, edges[:-1]), 0, None) / slots
    share = Curves(graph).busy(bins)
    np.testing.assert_allclose(share, expected / np.diff(edges), atol=0.01)
    assert 0.05 < share.mean() < 0.95


def test_a_tile_is_ready_when_the_last_of_its_parents_has_ended(graph):
    bins = 9
    end = spans(graph, GEMM)[1]
    edges = graph.edges
    edges = edges[(edges["producer_launch"] == GEMM) & (edges["consumer_launch"] == ATTENTION) & ~edges["reuse"]]
    ready = [max((end[p] for p in rows["producer_tile"]), default=0) for _, rows in edges.groupby("consumer_tile")]
    moments = end.max() * np.arange(1, bins + 1) / bins
    expected = [np.mean([r <= m + 1e-6 for r in ready]) for m in moments]
    np.testing.assert_allclose(Curves(graph).ready(GEMM, ATTENTION, bins), expected)
    assert expected[-1] == 1


def test_measured_tiles_are_busy_when_they_were_measured(tmp_path):
    program = Program(tmp_path / "t")
    launch = program.launch("row", norm(), [program.buffer() for _ in range(2)], duration=1000, timing="measured")
    program.writer.add_times(launch, np.arange(8), np.arange(8), np.full(8, 500), np.full(8, 1000))
    share = Curves(build_graph(load(program.writer.close()))).busy(4)
    np.testing.assert_allclose(share, np.array([0, 0, 1, 1]) * 8 / 132)


def cluster_page(path):
    """Two launches of 128 clusters of two blocks, one block per SM, 10 us per tile."""
    program = Program(path)
    chunk = pointwise(1, 1, 128)
    chunk.duration_ns = np.full(128, 10_000.0)
    buffers = [program.buffer() for _ in range(3)]
    for i in range(2):
        program.launch(
            "pairs", chunk, buffers[i : i + 2], duration=20_000, cluster=(2, 1, 1), grid=(256, 1, 1), block=(384, 1, 1)
        )
    return build_graph(load(program.writer.close()))


def test_slots_of_clusters_are_busy_as_simulated(tmp_path):
    graph = cluster_page(tmp_path / "t")
    stream = Simulator(graph).run(SCHEDULERS["stream"])
    span = 41_000
    assert Curves(graph).busy(60).mean() == pytest.approx(2 * 128 * 2 * 10_000 / (132 * span), rel=1e-3)
    assert Curves(graph).busy(60).mean() * span == pytest.approx(stream.busy * stream.time_ns, rel=1e-3)


def test_an_empty_trace_has_no_curve(tmp_path):
    assert len(Curves(build_graph(load(Program(tmp_path / "t").writer.close()))).busy(10)) == 0


def test_blocks_are_as_high_as_shares_and_little_is_not_nothing():
    assert sparkline([0, 0.001, 0.5, 0.93, 1]) == " ▁▄▇█"


@pytest.mark.parametrize(
    ("plain", "encoding", "terminal_text"),
    [(False, "utf-8", "→ ▁█"), (True, "utf-8", "> .@"), (False, "ascii", "> .@")],
)
def test_a_terminal_shows_what_it_can(plain, encoding, terminal_text):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    terminal(plain=plain, file=file).print("→ ▁█")
    file.flush()
    assert raw.getvalue().decode(encoding) == terminal_text + "\n"
