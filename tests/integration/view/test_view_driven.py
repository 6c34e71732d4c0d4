"""One page of a policy and six layers, navigated from view to view as a user would; each step updates the other
views.
"""

import numpy as np
import pytest

from tests.support.small_programs import transformer
from tileprof.cli.entry import main

LAYER = 10
NORM, GEMM, ATTENTION = (1 + 2 * LAYER + i for i in range(3))  # of the last layer
POLICY = (
    f"tileprof dependencies 1\ngrid norm 8 launch {NORM}\ngrid gemm 24 x 8 launch {GEMM}\ndep gemm on "
    "norm(max(0, y - 1))\n"
)
MATRIX = "(pair) => tileprof.matrix.parts.length > 0 && tileprof.matrix.key === pair.join(',')"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driven")
    (folder / "low.dep").write_text(POLICY)
    trace = transformer(folder / "t", layers=3)
    assert main(["view", str(trace), str(folder / "low.dep"), "-o", str(folder / "page.html")]) == 0
    return folder / "page.html"


def test_every_view_follows_the_selection_and_the_address_keeps_it(tab, page_file):
    view = tab()
    page = view.page
    nodes = "() => tileprof.drawing().nodes.length"
    assert view.ask(nodes) == 1 + LAYER + 2
    view.click("graph", "() => { const b = tileprof.drawing().boxes[0]; return [b.ax + 30, b.ay + 16]; }")
    assert view.ask(nodes) == 1 + 3 * LAYER + 2

    page.keyboard.press("/")
    page.keyboard.type("op:layer_norm module:h.2")
    assert page.inner_text("#found") == "2 matches"
    page.keyboard.press("Enter")
    assert view.ask("() => tileprof.state.launch") == NORM
    assert "ln_1" in page.inner_text("#launch")
    page.focus("#graph canvas")
    page.keyboard.press("Enter")  # the heaviest pair of the launch
    view.until("() => tileprof.state.pair !== null")
    page.keyboard.press("/")
    page.keyboard.press("Escape")

    view.ask("(pair) => tileprof.select({ pair })", [NORM, GEMM])
    view.until(MATRIX, [NORM, GEMM])
    view.until("() => tileprof.matrix.missing !== null")
    assert "policy: MISSING" in view.tip("matrix", "(at) => at", [3 + 24 * 4 + 0.5, 4.5])
    assert "UNSOUND" in page.inner_text("#facts")
    before = view.ask("() => tileprof.views.matrix.view.kx")
    for _ in range(12):
        page.mouse.wheel(0, -120)
    view.until("(k) => tileprof.views.matrix.view.kx > 5 * k", before)
    page.keyboard.press("2")
    page.keyboard.press("0")
    view.click("matrix", "(at) => at", [3 + 24 * 4 + 0.5, 4.5])
    view.until("() => tileprof.flow.ready && tileprof.flow.parents.length > 0")
    assert view.ask("() => tileprof.state.tile") == [GEMM, 3 + 24 * 4]

    page.keyboard.press("4")
    view.until("() => tileprof.chain.parents !== null")
    assert view.ask("() => tileprof.chain.launches") == [NORM, GEMM]
    page.keyboard.press("5")
    page.click("#schedulers button:has-text('dataflow') >> nth=0")
    view.until("() => tileprof.simulated()?.top")
    page.keyboard.press(".")
    page.keyboard.press("6")
    page.focus("#slide-sms")
    page.keyboard.press("Home")
    address = view.hash()
    parts = dict(part.split("=", 1) for part in address[1:].split("&"))
    assert set(parts) == {"pair", "tile", "view", "beside", "time", "open", "if"}
    page.reload()
    page.wait_for_selector("html[data-ready]")
    view.until("() => tileprof.simulated()?.top && tileprof.flow.ready")
    assert view.hash() == address
    assert page.inner_text("#slide-sms ~ output") == "66"
    selection = (
        "() => { const { launch, pair, tile, tab, beside } = tileprof.state; return { launch, pair, tile, tab, "
        "beside }; }"
    )
    assert view.ask(selection)["tile"] == [GEMM, 3 + 24 * 4]


def test_arrows_lead_to_the_selected_tile_in_both_timelines(tab):
    tile = 3 + 24 * 4
    window = {"color_scheme": "light", "viewport": {"width": 1280, "height": 1100}}  # rows that arrows do not share
    linked = tab(f"#pair={NORM},{GEMM}&tile={GEMM},{tile}&beside=list", **window)
    linked.until("() => tileprof.flow.ready && tileprof.simulated()?.top")
    bare = tab(f"#pair={NORM},{GEMM}&beside=list", **window)
    bare.until("([i]) => tileprof.simulated()?.top && tileprof.laneTables.ready(tileprof.laneOf[i])", [GEMM])
    heads = """([i, t]) => { const l = tileprof.laneTables.ready(tileprof.laneOf[i]), s = tileprof.simulated();
        const { kx } = tileprof.views.lanes.view, first = tileprof.state.pair[0];
        const all = tileprof.launches.tiles.slice(0, i).reduce((a, b) => a + b, 0) + t;
        const shift = tileprof.startOf(first) - s.open[first];
        return [[tileprof.startOf(i) + l.begin[t] / 10 - 3 / kx, l.sm[t] + 0.5],
            [s.begin[all] + shift - 3 / kx, tileprof.simulatedRow() + s.sm[all] + s.top[all] + 0.5]]; }"""
    places = linked.ask(heads, [GEMM, tile])
    assert places == bare.ask(heads, [GEMM, tile])
    elsewhere = [[x, row - 20] for x, row in places]
    arrow = linked.pixels("lanes", places)
    assert (arrow != bare.pixels("lanes", places)).any(axis=1).all()
    # the producer's colour, and a little of the colour below it
    assert np.abs(arrow - np.array([0, 114, 178])).max() < 60
    np.testing.assert_array_equal(linked.pixels("lanes", elsewhere), bare.pixels("lanes", elsewhere))
