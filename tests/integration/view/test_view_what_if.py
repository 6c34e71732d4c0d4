"""The what-if view of a page in a file, in a real browser: sliders over runs that were computed in advance."""

import pytest

from tests.support.small_programs import transformer
from tileprof.analysis import build_graph
from tileprof.analysis.bounds import Machine
from tileprof.analysis.reporting.report import build_report
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.trace import load
from tileprof.viz import page, study, variants
from tileprof.viz.comparisons import cost

READY = "() => document.querySelector('#what-comes svg.plot') !== null"


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build_graph(load(transformer(tmp_path_factory.mktemp("what-if") / "t", layers=2)))


@pytest.fixture(scope="module")
def sliders(graph):
    return variants(graph, simulated_tiles=100 * cost(graph))


@pytest.fixture(scope="module")
def page_file(graph, sliders, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(page(graph, build_report(graph), study(graph), None, sliders), encoding="utf-8")
    return path


def shown_ns(view):
    return view.ask("() => tileprof.ran.get(location.hash.match(/if=([^&]*)/)[1])")


def test_a_slider_moves_through_runs_of_the_simulator(tab, graph):
    view = tab("#view=sizes")
    view.until(READY)
    view.page.select_option("#try", "cusync")
    view.page.focus("#slide-post_ns")
    view.page.keyboard.press("End")
    assert view.hash() == "#view=sizes&if=cusync:post_ns=800@132,0"
    assert shown_ns(view) == pytest.approx(Simulator(graph).run(scheduler("cusync:post_ns=800")).time_ns)
    assert view.page.inner_text("#slide-post_ns ~ output") == "800 ns"
    view.page.focus("#slide-sms")
    view.page.keyboard.press("Home")
    assert view.hash() == "#view=sizes&if=cusync@66,0"  # in a file one slider moves at a time
    small = Simulator(graph, Machine(graph.device, 66)).run(scheduler("cusync")).time_ns
    assert shown_ns(view) == pytest.approx(small)
    view.page.click("#as-recorded")
    assert view.page.inner_text("#slide-sms ~ output") == "132"


def test_a_slider_is_not_lost_under_the_pointer_that_drags_it(tab):
    view = tab("#view=sizes&if=cusync@132,0")
    view.until(READY)
    box = view.page.locator("#slide-sms").bounding_box()
    middle = box["y"] + box["height"] / 2
    view.page.mouse.move(box["x"] + box["width"] / 2, middle)
    view.page.mouse.down()
    records = []
    for share in (0.3, 0.02, 0.98):
        view.page.mouse.move(box["x"] + box["width"] * share, middle)
        records.append(view.page.inner_text("#slide-sms ~ output"))
    view.page.mouse.up()
    assert records == ["99", "66", "264"]


def test_the_setting_comes_back_with_its_address(tab):
    view = tab("#view=sizes&if=cusync:post_ns=400@132,0")
    view.until(READY)
    assert view.page.inner_text("#slide-post_ns ~ output") == "400 ns"
    view.page.reload()
    view.page.wait_for_selector("html[data-ready]")
    assert view.page.inner_text("#slide-post_ns ~ output") == "400 ns"


def test_a_setting_that_this_file_does_not_have_is_not_taken(tab):
    view = tab("#view=sizes&if=nobody@132,0")
    view.until(READY)
    setting = "() => [tileprof.whatIf.sms, tileprof.whatIf.occupancy, Object.keys(tileprof.whatIf.options)]"
    assert view.ask(setting) == [132, 0, []]
    for words in ("cusync:post_ns=3@132,0", "cusync:depth=1@132,0", "cusync@7,0", "<b>"):
        view.visit(f"#view=sizes&if={words}")
        assert view.ask(setting) == [132, 0, []], words
    view.visit("#view=sizes&if=cusync:post_ns=400@132,0")
    assert view.ask(setting) == [132, 0, ["post_ns"]]


def test_every_scheduler_with_runs_has_sliders(tab, sliders):
    view = tab("#view=sizes")
    view.until(READY)
    for name in ("list", "stream", *sorted({v.scheduler for v in sliders})[:4]):
        view.page.select_option("#try", name)
        assert view.ask("() => document.querySelectorAll('#what-if input[type=range]').length") >= 1
        assert view.ask("() => document.querySelectorAll('#what-comes circle').length") >= 5
