"""The card that the page opens with, sorting, tabs, the timeline's overview, and narrow windows, in a real browser."""

import pytest

from tests.support.small_programs import transformer
from tileprof.analysis import build_graph
from tileprof.analysis.guidance import guide
from tileprof.analysis.reporting.report import build_report
from tileprof.analysis.simulate import Simulator
from tileprof.trace import load
from tileprof.viz import page


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build_graph(load(transformer(tmp_path_factory.mktemp("advice") / "t", layers=3)))


@pytest.fixture(scope="module")
def guidance(graph):
    return guide(build_report(graph), Simulator(graph))


@pytest.fixture(scope="module")
def page_file(graph, guidance, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(page(graph, build_report(graph), guidance=guidance), encoding="utf-8")
    return path


def test_the_page_opens_with_the_verdict_the_actions_and_the_schedules(tab, guidance):
    open_page = tab().page
    text = open_page.inner_text("#advice")
    assert guidance.verdict.sentence[1:] in text
    assert open_page.locator("#advice li").count() == min(len(guidance.actions), 6)
    assert guidance.actions[0].command in text
    assert open_page.locator("#advice tbody tr").count() == len(guidance.schedules)
    cut = "(all) => all.filter((e) => e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight + 2).length"
    assert open_page.eval_on_selector_all("#advice .what", cut) == 0, "titles of actions are shown whole"


def test_an_action_shows_its_reason_and_its_launches(tab, guidance):
    view = tab()
    view.page.click("#advice summary >> nth=0")
    assert guidance.actions[0].reason in view.page.inner_text("#advice li >> nth=0")
    number = next(i for i, action in enumerate(guidance.actions) if action.launches)
    view.page.click(f"#advice li >> nth={number} >> button[title='Show these launches']")
    assert view.ask("() => tileprof.state.launch") in guidance.actions[number].launches


def test_the_card_folds_and_stays_folded_after_a_reload_as_the_theme_stays(tab):
    view = tab()
    before = view.ask("() => document.documentElement.dataset.theme")
    view.page.keyboard.press("h")
    view.page.click("#theme")
    assert not view.page.is_visible("#advice ol")
    view.page.reload()
    view.page.wait_for_selector("html[data-ready]")
    assert not view.page.is_visible("#advice ol")
    assert view.ask("() => document.documentElement.dataset.theme") != before
    view.ask("() => localStorage.clear()")


def test_a_header_sorts_the_pairs_and_is_marked(tab):
    view = tab()
    copies = (
        "() => [...document.querySelectorAll('#ranking tbody tr')].map((r) => "
        "Number(r.lastChild.textContent.slice(1) || 1))"
    )
    view.page.click("#ranking th:last-child button")
    actual = view.ask(copies)
    assert actual == sorted(actual, reverse=True)
    assert view.page.get_attribute("#ranking th:last-child", "aria-sort") == "descending"
    view.page.click("#ranking th:last-child button")
    assert view.ask(copies) == sorted(actual)
    view.page.click("#ranking th:last-child button")
    assert view.page.get_attribute("#ranking th:last-child", "aria-sort") == "none"


def test_a_search_leaves_the_pairs_of_the_launches_found(tab):
    view = tab()
    rows = view.page.locator("#ranking tbody tr").count()
    view.page.fill("#search", "sdpa")
    assert 0 < view.page.locator("#ranking tbody tr").count() < rows
    view.page.fill("#search", "no such launch")
    assert "No matching launch has a pair." in view.page.inner_text("#ranking")


def test_tabs_are_tabs(tab):
    view = tab()
    view.page.focus("#matrix [role=tab][aria-selected=true]")
    view.page.keyboard.press("ArrowRight")
    assert view.ask("() => tileprof.state.tab") == "tiles"
    assert view.page.get_attribute("#tiles [role=tab][aria-selected=true]", "aria-controls") == "tiles"
    assert view.page.get_attribute("#tiles", "role") == "tabpanel"


def test_letters_move_and_zoom_the_timeline(tab):
    view = tab()
    view.page.focus("#lanes canvas")
    scale = "() => tileprof.views.lanes.view.kx"
    before = view.ask(scale)
    view.page.keyboard.press("w")
    assert view.ask(scale) == pytest.approx(1.3 * before)
    place = view.ask("() => tileprof.views.lanes.view.x")
    view.page.keyboard.press("d")
    assert view.ask("() => tileprof.views.lanes.view.x") == pytest.approx(place - 60)
    view.page.keyboard.press("s")
    assert view.ask(scale) == pytest.approx(before)


def test_a_drag_with_shift_describes_a_time_range(tab):
    view = tab()
    box = view.page.locator("#lanes canvas").bounding_box()
    x, y = box["x"] + 60, box["y"] + box["height"] - 20
    view.page.keyboard.down("Shift")
    view.page.mouse.move(x, y)
    view.page.mouse.down()
    view.page.mouse.move(x + 300, y)
    view.page.mouse.up()
    view.page.keyboard.up("Shift")
    view.until("() => document.getElementById('lanes-says').textContent.startsWith('range of')")
    assert "a kernel runs" in view.page.inner_text("#lanes-says")


def test_modules_stand_nested_over_the_launches_and_a_click_fills_the_view(tab):
    view = tab(viewport={"width": 1280, "height": 1400})  # room for every level
    rows = view.ask("() => tileprof.overviewRows()")
    assert [row["names"][:3] for row in rows] == [
        ["wte", "transformer", "lm_head"],
        ["h.0", "h.1", "h.2"],
        ["ln_1", "attn", "ln_2"],
        ["c_attn", "c_proj", "c_fc"],
        ["launches"],
    ]
    box = view.page.locator("#lanes canvas").bounding_box()
    x, _ = view.at("lanes", "(i) => [tileprof.startOf(i) + 1, 0]", 1)
    view.page.mouse.move(x, box["y"] + rows[1]["y"])
    assert view.page.inner_text("#tip").startswith("transformer.h.0")
    before = view.ask("() => tileprof.views.lanes.view.kx")
    view.page.mouse.click(x, box["y"] + rows[1]["y"])
    assert view.ask("() => tileprof.views.lanes.view.kx") > 1.05 * before
    view.page.keyboard.press("0")
    x, _ = view.at("lanes", "(i) => [tileprof.startOf(i) + 1, 0]", 2)
    view.page.mouse.click(x, box["y"] + rows[4]["y"])
    assert view.ask("() => tileprof.state.launch") == 2


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_nothing_is_wider_than_the_window(tab, width):
    view = tab(viewport={"width": width, "height": 800})
    assert view.ask("() => document.documentElement.scrollWidth") <= width
    assert view.page.is_visible("#ranking tbody tr >> nth=0 >> td >> nth=1")
