"""The report as a value, as JSON, and as text for a terminal."""

import io
import json
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from tests.support.synthetic_graphs import all_to_all, footprint, graph, one_to_one, trace
from tileprof.analysis.bounds import Machine
from tileprof.analysis.guidance import guide
from tileprof.analysis.guidance.guide import host_is_late
from tileprof.analysis.reporting.report import build_report
from tileprof.analysis.simulate import Simulator
from tileprof.analysis.times_and_counts import duration
from tileprof.cli.text.console import plain
from tileprof.cli.text.guidance_text import percent
from tileprof.cli.text.report_text import print_report, quantity


def program(rows, links=(), *, tiles=4, **kwargs):
    """Return a graph of launches with these numbers of tiles, and a trace; each row changes a 20 ns launch."""
    plain_launch = {
        "footprint": 0,
        "timing": "modelled",
        "duration_ns": 20,
        "op": "aten::mm",
        "kernel": "mm",
        "block_x": 256,
    }
    rows = [{**plain_launch, "begin_ns": 25 * i, **row} for i, row in enumerate(rows)]
    t = trace(rows, {0: footprint(tiles, duration_ns=10.0)}, **kwargs)
    t.tiles = pd.DataFrame({"footprint": [0], "bytes_read": [100], "bytes_written": [10]})
    g = graph([tiles] * len(rows), list(links), t)
    names = (
        {"pattern": [], "map": [], "reuse_only": []}
        if not links
        else {"pattern": "row", "map": "p.y = c.y", "reuse_only": False}
    )
    g.pairs = g.links[["producer", "consumer", "edges", "bytes"]].assign(**names)
    return g


def text_of(report, *, top=10, width=80):
    out = io.StringIO()
    print_report(report, top, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def chain(layers=3):
    rows = [{"module": f"h.{i // 2}.{'up' if i % 2 == 0 else 'down'}"} for i in range(2 * layers)]
    return program(rows, [(i, i + 1, one_to_one(4)) for i in range(2 * layers - 1)])


def test_the_program_is_summed_up():
    p = build_report(chain()).program
    assert (p.launches, p.tiles, p.waves, p.recorded_ns, p.launch_ns, p.gap_ns) == (6, 24, 12, 145.0, 120.0, 25.0)
    assert (p.bytes_read, p.bytes_written, p.last_wave, p.idle) == (600, 60, 1.0, 0.0)
    assert p.timing == p.tile_times == {"modelled": 6}


def test_json_holds_what_its_documentation_lists():
    report = build_report(chain())
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (document["schema"], document["version"]) == ("tileprof report", 1)
    assert set(document) == {
        "schema", "version", "trace", "device", "program", "bounds", "unknown_lags", "layers", "pairs", "conservative",
        "notes", "dependencies_known", "assumptions", "first_look", "step_graphs",
    }  # fmt: skip
    assert set(document["trace"]) == {"path", "recorder", "command", "complete", "granule"}
    assert set(document["pairs"][0]) == {
        "producers", "consumers", "times", "producer", "consumer", "pattern", "map", "edges", "described_edges",
        "bytes", "early", "lead_ns", "direct", "apart", "last_producer", "reuse_only", "stream_waves",
        "overlapped_waves", "recorded_ns", "bound_ns", "binding", "list_schedule_ns", "gain_ns", "overlap_ns",
        "program_share", "coverage",
    }  # fmt: skip
    assert document["pairs"][0]["producers"] == [0, 2, 4]
    assert document["first_look"] == 0


def test_the_first_look_is_the_direct_pair_with_the_largest_gain():
    text = " ".join(text_of(build_report(chain())).split())
    assert "First pair: launches 0 → 1, mm h.*.up → mm h.*.down, \N{MULTIPLICATION SIGN}3." in text
    assert "Next: tileprof view toy.tileprof" in text


def test_an_empty_trace_says_what_to_do():
    report = build_report(program([]))
    assert report.to_json()["program"]["launches"] == 0
    assert json.dumps(report.to_json(), allow_nan=False)
    assert "nothing that runs on a GPU was recorded" in text_of(report)
    assert "tileprof record" in text_of(report)


def test_one_launch_has_nothing_to_overlap_with():
    assert "nothing to overlap it with" in text_of(build_report(program([{}])))


def test_independent_launches_are_called_so():
    assert "No launch depends on another" in text_of(build_report(program([{}, {}])))


def test_a_trace_without_durations_says_whose_times_its_gains_are():
    links = [(0, 1, all_to_all(4, 4))]
    g = program([{"duration_ns": 0, "begin_ns": 0, "timing": "measured"}] * 2, links)
    report = build_report(g)
    text = " ".join(text_of(report).split())
    assert "2 of 2 launches have no durations" in text
    assert "(modelled: roofline)" in text
    assert "row" in text
    assert report.program.tile_times == {"roofline": 2}
    assert report.program.recorded_ns == report.program.launch_ns > 0
    assert report.pairs["recorded_ns"].tolist() == [report.program.recorded_ns]


def test_a_trace_without_accesses_claims_nothing_of_dependencies():
    g = program([{}, {}])
    g.recording.tiles = pd.DataFrame({"footprint": [0], "bytes_read": [0], "bytes_written": [0]})
    report = build_report(g)
    text = " ".join(text_of(report).split())
    assert "which launches depend on each other is unknown" in text
    assert not [claim for claim in ("same time", "saves", "saved", "list schedul", "critical path") if claim in text]
    actual = report.to_json()
    assert (actual["dependencies_known"], actual["bounds"]["list_schedule_ns"]) == (False, None)
    assert build_report(program([{}, {}])).dependencies_known


def test_edges_of_recycled_memory_are_counted_apart():
    g = chain(1)
    g.pairs = g.pairs.assign(edges=10, raw=4, war=0, waw=0)
    pair = build_report(g).to_json()["pairs"][0]
    assert (pair["edges"], pair["described_edges"]) == (10, 4)
    assert "4 edges" in text_of(build_report(g))


def test_time_without_a_kernel_is_what_no_launch_covers():
    rows = [{"begin_ns": 5, "duration_ns": 20}, {"begin_ns": 10, "duration_ns": 5}, {"begin_ns": 40, "duration_ns": 20}]
    assert build_report(program(rows)).program.gap_ns == 15


def test_a_bound_that_rounds_above_the_record_is_no_alarm():
    report = build_report(chain())
    for less, alarm in ((1e-7, False), (0.9 * report.program.launches, False), (1.1 * report.program.launches, True)):
        near = replace(report.bounds, recorded_ns=report.bounds.bound_ns - less)
        assert ("do not trust" in " ".join(text_of(replace(report, bounds=near)).split())) == alarm


def test_a_partial_trace_is_marked_before_anything_else():
    g = program([{}], complete=False, manifest={"reason": "killed [bold]by\x1b[31m signal 9"})
    first = text_of(build_report(g)).splitlines()[0]
    assert first.startswith("PARTIAL TRACE")
    assert "[bold]by\\x1b[31m" in first


def test_conservative_launches_are_named_and_counted():
    rows = [{}, *({"coverage": "conservative", "op": "aten::unique", "note": "no tile model"} for _ in range(2))]
    report = build_report(program(rows))
    assert report.conservative.to_dict("records") == [
        {"op": "aten::unique", "kernel": "mm", "launches": 2, "tiles": 8, "notes": ["no tile model"]}
    ]
    assert "2 of 3 launches are conservative" in text_of(report)
    assert "unique \N{MULTIPLICATION SIGN}2  no tile model" in text_of(report)


def test_a_record_faster_than_physics_is_not_trusted():
    g = program([{"duration_ns": 1, "begin_ns": 0}, {"duration_ns": 1, "begin_ns": 1}], [(0, 1, one_to_one(4))])
    assert "do not trust gains" in " ".join(text_of(build_report(g)).split())


@pytest.mark.parametrize(
    ("pause_ns", "timing", "message"),
    [(200_000, "measured", True), (9_000, "measured", False), (200_000, "modelled", False)],
)
def test_a_recording_of_mostly_waiting_for_the_host_says_how_to_record_the_rest(pause_ns, timing, message):
    rows = [{"timing": timing, "begin_ns": pause_ns * i} for i in range(4)]
    g = program(rows, [(0, 1, one_to_one(4))])
    report = build_report(g)
    assert host_is_late(report) == message
    verdict = guide(report, Simulator(g)).verdict
    assert ("before tileprof.capture()" in verdict.sentence) == (verdict.kind == "host-bound") == message


def test_notes_of_the_recorder_are_repeated():
    g = program([{}], manifest={"notes": ["three launches [dropped]"], "granule": 4})
    text = " ".join(text_of(build_report(g)).split())
    assert "three launches [dropped]" in text
    assert "in units of 4 bytes" in text


def test_names_of_the_program_cannot_change_the_terminal():
    evil = "a[red]b\x1b]0;title\x07\u202e\n" + "x" * 300
    rows = [{"op": evil, "module": evil, "kernel": evil}] * 2
    report = build_report(program(rows, [(0, 1, one_to_one(4))]))
    text = text_of(report)
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "a[red]b\\x1b]0;title\\x07\\u202e\\n" in "".join(text.split())
    table = text[text.index("Dependent launches") : text.index("kinds of pairs")]
    assert max(map(len, table.splitlines())) <= 80


@pytest.mark.parametrize("width", [40, 80, 132])
def test_no_line_is_wider_than_the_terminal_or_eighty(width):
    text = text_of(build_report(chain()), width=width)
    assert max(map(len, text.splitlines())) <= max(width, 80)


def test_top_limits_the_table_and_says_so():
    rows = [{"module": f"m{'abc'[i]}"} for i in range(3)]
    report = build_report(program(rows, [(0, 1, one_to_one(4)), (1, 2, one_to_one(4))]))
    assert "1 of 2 kinds of pairs shown; --top 0 shows all" in text_of(report, top=1)
    assert "2 of 2 kinds of pairs shown." in text_of(report, top=0)


def test_on_another_gpu_gains_are_against_stream_order_there():
    g = chain(layers=1)
    report = build_report(g, Machine(g.device, sms=4))
    assert (report.replayed, report.program.launch_ns, report.program.recorded_ns) == (True, 20.0, 25.0)
    assert "another GPU than the recorded one" in text_of(report)
    assert not build_report(g).replayed


def test_numbers_are_short():
    assert [duration(x) for x in (0, 1.234, 1234, 56789, 1.5e6, 2.5e9, 3e12)] == [
        "0 ns", "1.23 ns", "1.23 us", "56.8 us", "1.5 ms", "2.5 s", "3,000 s",
    ]  # fmt: skip
    assert [quantity(x) for x in (0, 999, 999.9e3, 1e6, 2.345e12)] == ["0 ", "999 ", "1 M", "1 M", "2.35 T"]
    assert [percent(x) for x in (0, 0.004, 0.0999, 0.5, 0.999, 1)] == ["0%", "0.4%", "10%", "50%", "99.9%", "100%"]
    assert plain("abcdefghij", 5) == "ab…ij"
