"""A policy laid over the tile matrix: missing waits, excess waits, and the verdict in the header."""

import pytest

from tests.support.small_programs import transformer
from tileprof.cli.entry import main

NORM, GEMM = 1, 2  # every tile in row y of the GEMM needs the norm's tile y
MISSING, EXCESS = "200,16,46", "141,150,163"


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return transformer(tmp_path_factory.mktemp("policy") / "t", layers=2)


def dependencies(row, consumer=GEMM):
    """Write the two launches, and which of the norm's tiles a tile (x, y) of the GEMM waits for."""
    return (
        f"tileprof dependencies 1\ngrid norm 8 launch {NORM}\ngrid gemm 24 x 8 launch {consumer}\n"
        f"dep gemm on norm({row})\n"
    )


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Write a policy that waits for what it needs, and one whose waits are a row too low."""
    folder = tmp_path_factory.mktemp("policies")
    (folder / "exact.dep").write_text(dependencies("y"))
    (folder / "low.dep").write_text(dependencies("max(0, y - 1)"))
    return folder


def page_of(trace, policy, folder):
    target = folder / f"{policy.stem}.html"
    assert main(["view", str(trace), str(policy), "-o", str(target), "--quick", "--force"]) == 0
    return target


@pytest.fixture(scope="module")
def page_file(trace, policies):
    return page_of(trace, policies / "low.dep", policies)


def cell(consumer_x, consumer_y, producer):
    """Return the middle of a cell in the matrix; the GEMM is 24 tiles wide."""
    return [consumer_x + 24 * consumer_y + 0.5, producer + 0.5]


READY = "() => tileprof.matrix.parts.length > 0 && tileprof.matrix.missing !== null"


def test_an_unsound_policy_is_counted_in_the_header_and_its_pair_comes_first(tab):
    page = tab().page
    assert "low.dep: UNSOUND: 168 of 192 dependencies missing, 168 tiles awaited in excess" in page.inner_text("#facts")
    assert "waits missing" in page.inner_text("#ranking tbody tr >> nth=0")


def test_the_gain_of_the_policy_is_listed_among_the_gains(tab):
    view = tab("#view=gain")
    assert "low.dep" in view.page.inner_text("#gains")
    policy = view.ask("() => tileprof.doc.policy")
    assert 0 < policy["policy_ns"] < policy["stream_ns"]
    assert "under the policy" in view.page.inner_text("#policy-gain")


def test_missing_waits_are_red_and_excess_waits_grey(tab):
    view = tab(f"#pair={NORM},{GEMM}", color_scheme="light")
    view.until(READY)
    colours = view.palette("matrix")
    assert colours.get(MISSING, 0) > 1_000
    assert colours.get(EXCESS, 0) > 1_000
    place = "(at) => at"
    assert "MISSING" in view.tip("matrix", place, cell(3, 4, 4))
    assert "excess" in view.tip("matrix", place, cell(3, 4, 3))
    assert "policy: waited for" in view.tip("matrix", place, cell(3, 0, 0))
    view.page.click("#pair .chip:has-text('missing')")
    assert view.palette("matrix").get(MISSING, 0) == 0
    view.page.click("#pair .chip:has-text('excess')")
    assert view.palette("matrix").get(EXCESS, 0) == 0


def test_a_sound_policy_is_called_sound_and_shows_no_red(tab, trace, policies):
    view = tab(f"#pair={NORM},{GEMM}", path=page_of(trace, policies / "exact.dep", policies), color_scheme="light")
    view.until("() => tileprof.matrix.parts.length > 0")
    assert view.page.inner_text("#verdict") == "exact.dep: sound"
    assert MISSING not in view.palette("matrix")
    assert "policy: waited for" in view.tip("matrix", "(at) => at", cell(3, 4, 4))


def test_a_policy_of_another_trace_has_a_page_that_says_so(tab, trace, tmp_path, capsys):
    other, target = tmp_path / "other.dep", tmp_path / "page.html"
    other.write_text(dependencies("y", consumer=4))
    assert main(["view", str(trace), str(other), "-o", str(target), "--quick"]) == 1
    assert "other.dep is not of this trace" in capsys.readouterr().err
    view = tab("#view=gain", path=target)
    assert "not of this trace" in view.page.inner_text("#verdict")
    assert "another shape" in view.page.inner_text("#notes")
    assert "under the policy" not in view.page.inner_text("#gains")


def test_a_policy_that_is_none_is_refused_before_anything_is_written(trace, tmp_path, capsys):
    broken_file = tmp_path / "broken.dep"
    broken_file.write_text("tileprof dependencies 1\nnonsense\n")
    assert main(["view", str(trace), str(broken_file), "-o", str(tmp_path / "page.html")]) == 2
    assert "broken.dep" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
