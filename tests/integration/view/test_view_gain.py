"""Gain, what-if and the simulated timeline, in a real browser."""

import re

import pytest

from tests.support.small_programs import Program, pointwise, transformer
from tileprof.analysis import build_graph
from tileprof.analysis.reporting.report import build_report
from tileprof.trace import load
from tileprof.viz import link, page, study

GEMM, ATTENTION = 2, 3


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build_graph(load(transformer(tmp_path_factory.mktemp("gain") / "t", layers=2)))


@pytest.fixture(scope="module")
def schedule_study(graph):
    return study(graph)


@pytest.fixture(scope="module")
def page_file(graph, schedule_study, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(page(graph, build_report(graph), schedule_study), encoding="utf-8")
    return path


def test_every_scheduler_is_listed_with_its_time_and_the_bound(tab, schedule_study):
    view = tab("#view=gain")
    text = view.page.inner_text("#schedulers")
    for schedule in schedule_study.schedules:
        assert schedule.scheduler in text
    assert "bound" in text
    waterfall = view.page.inner_text("#waterfall")
    assert "recorded" in waterfall
    assert "launch gaps" in waterfall
    widths = view.ask(
        "() => [...document.querySelectorAll('#schedulers svg')].map((s) => "
        "[...s.querySelectorAll('rect')].reduce((w, r) => w + r.width.baseVal.value, 0))"
    )
    times = [s.time_ns for s in schedule_study.schedules]
    assert widths[: len(times)] == pytest.approx([w * widths[0] / times[0] for w in times], rel=0.02)


def test_the_waterfall_ends_at_the_work(tab):
    gain = tab("#view=gain").ask("() => tileprof.doc.gain")
    remainder_ns = gain["recorded_ns"] - gain["gap_ns"] - gain["beside_ns"] - gain["idle_ns"]
    assert remainder_ns == pytest.approx(gain["work_ns"], rel=0.01)


def test_the_bracket_is_to_scale_and_names_the_schedulers(tab, schedule_study):
    view = tab("#view=gain")
    assert "bound" in view.page.inner_text("#bracket")
    assert "recorded" in view.page.inner_text("#bracket")
    gain = view.ask("() => tileprof.doc.gain")
    zones = view.ask(
        "() => [...document.querySelectorAll('#bracket rect')].map((r) => [r.x.baseVal.value, r.width.baseVal.value])"
    )
    longest = max(gain["recorded_ns"], *(s.time_ns for s in schedule_study.schedules))
    best = min(s.time_ns for s in schedule_study.schedules)
    scale = sum(width for _, width in zones) / longest
    assert scale * longest > 200
    # The bars below are in the same column, on the same scale.
    column, bar = view.ask("""() => { const column = document.querySelector('#bracket svg').getBoundingClientRect();
        const bar = document.querySelector('#waterfall rect').getBoundingClientRect(); return [column.x, bar.x]; }""")
    assert abs(column - bar) < 3
    bar_width = view.ask("() => document.querySelector('#waterfall rect').getBoundingClientRect().width")
    wide = view.ask("() => document.querySelector('#bracket svg').getBoundingClientRect().width")
    box_width = view.ask("() => document.querySelector('#bracket svg').viewBox.baseVal.width")
    assert bar_width == pytest.approx(scale * gain["recorded_ns"] * wide / box_width, abs=4)
    assert zones[0] == pytest.approx([1, gain["bound_ns"] * scale], rel=0.01)
    assert zones[1] == pytest.approx([1 + gain["bound_ns"] * scale, (best - gain["bound_ns"]) * scale], rel=0.01)


def test_every_mark_of_the_bracket_has_a_name_and_no_name_lies_on_another(tab, schedule_study):
    view = tab("#view=gain")
    names = view.page.inner_text("#bracket")
    assert all(s.scheduler in names for s in schedule_study.schedules)
    assert view.ask("""() => {
        const boxes = [...document.querySelectorAll('#bracket text')].map((t) => t.getBoundingClientRect());
        const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom - 3 && b.top < a.bottom - 3;
        return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => overlap(a, b))).length; }""") == 0  # fmt: skip


def test_gains_are_against_simulated_stream_order_and_shown_whole(tab, schedule_study):
    view = tab("#view=gain")
    stream = next(s.time_ns for s in schedule_study.schedules if s.scheduler == "stream")
    assert "against simulated stream order" in view.page.inner_text("#against")
    cells = view.ask("() => [...document.querySelectorAll('#schedulers > *')].map((e) => e.textContent)")
    for schedule in schedule_study.schedules:
        share = round(100 * (schedule.time_ns / stream - 1))
        page_share = cells[cells.index(schedule.scheduler) + 3].replace("\N{MINUS SIGN}", "-")
        assert page_share == (f"{share:+}%" if share else "±0%")
    assert any(cell.startswith("recorded (idle") for cell in cells)
    assert view.ask(
        "() => [...document.querySelectorAll('#schedulers .number')].every((e) => e.scrollWidth <= e.clientWidth)"
    )


def test_the_chosen_schedulers_time_falls_into_parts_too(tab, schedule_study):
    view = tab("#view=gain&beside=cusync")
    words = view.page.inner_text("#waterfall-beside")
    assert "tiles that wait" in words
    cusync = next(s for s in schedule_study.schedules if s.scheduler == "cusync")
    assert cusync.waiting_ns > 0
    assert not tab("#view=gain").page.query_selector("#waterfall-beside")


def test_choosing_a_scheduler_shows_it_beside_the_recorded_lanes(tab, schedule_study):
    view = tab(f"#pair={GEMM},{ATTENTION}")
    view.page.keyboard.press("5")
    view.page.click("#schedulers button:has-text('list')")
    assert "beside=list" in view.hash()
    view.until("() => tileprof.simulated()?.top")
    begin = next(s for s in schedule_study.schedules if s.scheduler == "list").begin_ns
    page_begin = view.ask("() => Array.from(tileprof.simulated().begin)")
    assert page_begin == pytest.approx(begin.tolist(), abs=1.5)
    where = """(i) => { const s = tileprof.simulated();
        const t = tileprof.launches.tiles.slice(0, i).reduce((a, b) => a + b, 0);
        const shift = tileprof.startOf(2) - s.open[2];
        return [(s.begin[t] + s.end[t]) / 2 + shift, tileprof.simulatedRow() + s.sm[t] + s.top[t] + 0.5]; }"""
    assert "flash_attention_causal, tile 0" in view.tip("lanes", where, ATTENTION)
    view.page.select_option("#beside", "")
    assert "beside" not in view.hash()


def test_no_two_tiles_share_a_place_in_stream_order(tab):
    view = tab("#beside=stream")
    view.until("() => tileprof.simulated()?.top")
    assert view.ask("""() => { const s = tileprof.simulated(); const by = new Map(); let clashes = 0;
        s.order.forEach((t) => { const key = s.sm[t] + ":" + s.top[t].toFixed(4);
            if ((by.get(key) ?? -1) > s.begin[t]) clashes++;
            by.set(key, s.end[t]); });
        return clashes; }""") == 0  # fmt: skip


def test_scrubbing_along_the_axis_keeps_a_moment_and_counts_its_tiles(tab):
    view = tab(f"#pair={GEMM},{ATTENTION}&view=tiles&beside=list")
    view.until("() => tileprof.chain.parents !== null && tileprof.laneTables.ready(tileprof.laneOf[2])")
    x, _ = view.at("lanes", "(i) => [tileprof.startOf(i) + 2000, 0]", GEMM)
    axis = view.page.locator("#lanes canvas").bounding_box()["y"] + 8
    view.page.mouse.move(x - 40, axis)
    view.page.mouse.down()
    view.page.mouse.move(x, axis)
    view.page.mouse.up()
    assert "time=" in view.hash()
    says = view.page.inner_text("#lanes-says")
    assert re.match(r"at [\d.]+ us: 132 tiles of gemm_f16_64x64_qkv, \d+ in list", says)
    before = view.ask("() => tileprof.state.time")
    view.page.keyboard.press(".")
    assert view.ask("() => tileprof.state.time") > before
    view.page.keyboard.press("Escape")
    assert "time=" not in view.hash()


def test_the_key_b_goes_through_the_schedulers(tab, schedule_study):
    view = tab()
    records = []
    for _ in range(len(schedule_study.schedules) + 1):
        view.page.keyboard.press("b")
        records.append(view.ask("() => tileprof.state.beside"))
    assert records == [*[s.scheduler for s in schedule_study.schedules], ""]


@pytest.mark.parametrize("name", ["gain", "sizes", "tiles"])
def test_views_without_anything_to_show_say_so(tab, tmp_path, name):
    program = Program(tmp_path / "t")
    if name == "tiles":
        program.launch("one", pointwise(tiles=1), [program.buffer(), program.buffer()])
    graph = build_graph(load(program.writer.close()))
    path = tmp_path / "page.html"
    path.write_text(page(graph, build_report(graph), study(graph)), encoding="utf-8")
    view = tab(f"#view={name}", path=path)
    if name == "tiles":
        assert view.ask("() => tileprof.chain.problem") == "The trace holds one launch, which depends on nothing."
    else:
        assert "holds no launches" in view.page.inner_text(f"#{name}")


def test_an_address_of_a_missing_item_changes_nothing(tab):
    view = tab("#view=toString")
    state = "() => [tileprof.state.tab, tileprof.state.beside, tileprof.state.time, tileprof.state.chain]"
    assert view.ask(state) == ["matrix", "", None, None]
    for address in (
        "#beside=nobody",
        "#time=-4",
        "#chain=1,2",
        "#pair=2,3&chain=9999,1",
        "#pair=2,3&chain=3,4,5",
        "#if=__proto__@132,0",
        "#if=toString:x=1@1,1",
        "#if=constructor@132,0",
        "#beside=__proto__",
    ):
        view.visit("#view=gain&beside=list&time=4")
        assert view.ask(state) == ["gain", "list", 4, None]
        view.visit(address)
        assert view.ask(state) == ["matrix", "", None, None], address


@pytest.mark.parametrize("view", ["pairs", "tiles", "gain", "what-if"])
def test_a_link_opens_the_page_where_it_says(tab, page_file, view):
    address = link(page_file, pair=(GEMM, ATTENTION), view=view, scheduler="list")
    linked = tab(path=address.removeprefix("file://"))
    assert linked.ask("() => [tileprof.state.pair, tileprof.state.beside]") == [[GEMM, ATTENTION], "list"]
    assert linked.page.is_visible({"pairs": "#matrix", "what-if": "#sizes"}.get(view, f"#{view}"))
