import numpy as np
import pytest

from tests.support.packed_values import unpacked
from tests.support.small_programs import Program, norm, transformer
from tileprof.analysis import build_graph
from tileprof.analysis.reporting.report import build_report
from tileprof.analysis.simulate import SCHEDULERS
from tileprof.errors import UserError
from tileprof.trace import load
from tileprof.viz import study as run_study
from tileprof.viz.comparisons import OCCUPANCIES, SIZES, Study, cost
from tileprof.viz.document import document
from tileprof.viz.tables.schedules import gain_tables


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build_graph(load(transformer(tmp_path_factory.mktemp("schedules") / "t", layers=2)))


@pytest.fixture(scope="module")
def schedule_study(graph):
    return run_study(graph)


@pytest.fixture(scope="module")
def value(graph, schedule_study):
    return document(graph, build_report(graph), schedule_study)


def test_the_parts_of_a_schedule_add_up_to_its_time(value):
    assert len(value["schedules"]) >= 3
    for s in value["schedules"]:
        parts = sum(s[name] for name in ("work_ns", "wait_ns", "idle_ns", "gap_ns"))
        assert parts == pytest.approx(s["time_ns"], rel=1e-6)
        assert min(s[name] for name in ("work_ns", "wait_ns", "idle_ns", "gap_ns")) >= 0


def test_every_schedule_does_the_same_work(value):
    work = [s["work_ns"] for s in value["schedules"]]
    assert work == pytest.approx([work[0]] * len(work), rel=0.02)


def test_the_browser_gets_every_tiles_begin_life_and_sm(graph, schedule_study, value):
    counts = np.diff(graph.tile_base)
    for schedule, packed in zip(schedule_study.schedules, value["schedules"], strict=True):
        lanes = packed["lanes"]
        begin = unpacked(lanes["begin"]) + np.repeat(unpacked(lanes["open"]), counts)
        np.testing.assert_allclose(begin, schedule.begin_ns, atol=0.51)
        np.testing.assert_allclose(begin + unpacked(lanes["life"]), schedule.end_ns, atol=0.51)
        np.testing.assert_array_equal(unpacked(lanes["sm"]), schedule.sm)


def test_schedules_beyond_the_budget_become_shares_and_then_nothing(graph, schedule_study):
    notes = []
    tables = gain_tables(graph, None, schedule_study, budget=12_000, notes=notes)
    kinds = [("sm" in s["lanes"], "share" in s["lanes"]) for s in tables["schedules"]]
    assert (True, False) in kinds
    assert (False, False) in kinds
    shares = gain_tables(graph, None, schedule_study, budget=10**9, notes=[])
    assert all("sm" in s["lanes"] for s in shares["schedules"])


def test_aggregated_lanes_hold_as_much_slot_time_as_the_tiles(graph, schedule_study, monkeypatch):
    monkeypatch.setattr("tileprof.viz.tables.schedules._TOO_MANY", 10)
    notes = []
    tables = gain_tables(graph, None, schedule_study, budget=10**9, notes=notes)
    list_entry = next(i for i, s in enumerate(schedule_study.schedules) if s.scheduler == "list")
    lanes, schedule = tables["schedules"][list_entry]["lanes"], schedule_study.schedules[list_entry]
    share = unpacked(lanes["share"]).reshape(lanes["rows"], lanes["bins"]) / 1000
    busy_ns = share.sum(axis=1) * lanes["end"] / lanes["bins"] * graph.device.sms
    tiles = schedule.end_ns - schedule.begin_ns
    assert busy_ns.sum() == pytest.approx(tiles.sum(), rel=0.02)  # one slot per SM
    kernel = np.repeat(graph.launches["kernel"].to_numpy(str), np.diff(graph.tile_base))
    assert len(lanes["kernels"]) == lanes["rows"] - 1
    for name, row in zip(lanes["kernels"], busy_ns, strict=False):
        assert row == pytest.approx(tiles[kernel == name].sum(), rel=0.05)
    assert "aggregated" in notes[0]


def test_programs_too_large_for_all_schedulers_name_those_left_out(graph):
    small = run_study(graph, simulated_tiles=3 * cost(graph))
    assert [s.scheduler for s in small.schedules] == ["stream", "graph", "list"]
    assert "cusync" in small.skipped
    assert small.sizes == ()
    assert gain_tables(graph, None, small, budget=10**9, notes=[])["skipped"] == list(small.skipped)


def test_a_scheduler_that_does_not_take_the_program_is_named_with_its_reason(graph, monkeypatch):
    class Picky:
        name, renames = "picky", False

        def draft(self, program):
            raise UserError(f"{program.count} launches are too many")

    monkeypatch.setitem(SCHEDULERS, "picky", Picky())
    schedule_study = run_study(graph)
    assert "picky" not in [s.scheduler for s in schedule_study.schedules]
    notes = []
    gain_tables(graph, None, schedule_study, budget=10**9, notes=notes)
    assert notes == ["Not simulated, picky: 23 launches are too many"]


def test_the_table_of_sizes_is_whole_rows_and_more_sms_never_cost_time(graph, schedule_study):
    assert len(schedule_study.sizes) == len(SIZES) * len(OCCUPANCIES)
    for occupancy in OCCUPANCIES:
        row = [s for s in schedule_study.sizes if s.occupancy == occupancy]
        assert sorted(s.sms for s in row) == [66, 99, 132, 198, 264]
        assert [s.stream_ns for s in row] == sorted((s.stream_ns for s in row), reverse=True)
        assert all(s.list_ns <= s.graph_ns <= s.stream_ns for s in row)
    recorded = next(s for s in schedule_study.sizes if (s.sms, s.occupancy) == (132, 0))
    list_entry = next(s for s in schedule_study.schedules if s.scheduler == "list")
    assert recorded.list_ns == list_entry.time_ns


def test_a_trace_without_launches_is_not_simulated(tmp_path):
    assert run_study(build_graph(load(Program(tmp_path / "t").writer.close()))) == Study((), (), ())


def test_launches_name_the_buffers_that_they_read_and_write(tmp_path):
    program = Program(tmp_path / "t")
    x, y = program.buffer(kind="parameter", name="weight"), program.buffer(name="hidden")
    program.launch("row", norm(), (x, y))
    value = document(build_graph(load(program.writer.close())))
    names = [value["strings"][int(i)] for i in unpacked(value["buffers"]["name"])]
    uses = zip(unpacked(value["uses"]["buffer"]).astype(int), unpacked(value["uses"]["how"]), strict=True)
    assert [(names[buffer], how) for buffer, how in uses] == [("weight", 1), ("hidden", 2)]
    grid = value["grids"][0]
    assert unpacked(grid["read"]).tolist() == unpacked(grid["written"]).tolist() == [64 * 1024] * 8
