"""Pages against their targets: time, memory and size to write one, and how fast a browser opens, selects and zooms.

GPT-2 as `tileprof.examples.gpt2` records it, and the synthetic traces of `bench_graph`, ten edges per tile.
Milliseconds until the frame after the action has been drawn, two frames included; the middle of five, and the slowest.
Needs playwright and a chromium.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

import bench_graph
from measuring import header, table, tileprof

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRAWN = "await new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)));"
UNTIL = "while (!({ready})) await new Promise((go) => setTimeout(go, 1));"
LAST_PAIR = (
    "const i = tileprof.pairs.producer.length - 1 - k; "
    "tileprof.select({ pair: [tileprof.pairs.producer[i], tileprof.pairs.consumer[i]] });"
)
# Name: what is done in the k-th round, and when its answer is there.
ACTIONS = {
    "select a launch": ("tileprof.select({ launch: k + 1 });", "true"),
    "select a pair": (LAST_PAIR, "tileprof.matrix.parts.length > 0"),
    "select a tile": (
        "tileprof.select({ pair: tileprof.state.pair, tile: [tileprof.state.pair[1], 7 * k + 1] });",
        "tileprof.flow.ready",
    ),
    "zoom the matrix": ("tileprof.views.matrix.zoom(1.3);", "true"),
    "zoom the timeline": ("tileprof.views.lanes.zoom(1.3);", "true"),
    "zoom the launches": ("tileprof.views.graph.zoom(1.1);", "true"),
}
ACTION_MS = 200
LARGE = 1_000_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, default=LARGE, help="of the synthetic traces; targets are for the default")
    options = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("no chromium on this machine: apt-get install chromium")
    header(f"view of GPT-2 and of synthetic traces of {options.tiles:,} tiles, {bench_graph.PARENTS} edges each")
    rows = gpt2()
    for shape in bench_graph.SHAPES:
        rows += synthetic(shape, options.tiles)
    table(("page", "what", "measured", "slowest", "target", "met"), rows)


def gpt2():
    with tempfile.TemporaryDirectory() as folder:
        trace, page = Path(folder) / "gpt2.tileprof", Path(folder) / "page.html"
        tileprof("record", "-o", str(trace), "--", sys.executable, "-m", "tileprof.examples.gpt2")
        cost = tileprof("view", str(trace), "-o", str(page))
        size_mb, opened_ms, actions = page.stat().st_size / 1e6, *in_browser(page)
    return [
        row("GPT-2", "written", cost.wall_s, None, "s"),
        row("GPT-2", "size", size_mb, 3, "MB"),
        row("GPT-2", "interactive", opened_ms, 1000, "ms"),
        *(row("GPT-2", name, middle, ACTION_MS, "ms", slowest) for name, (middle, slowest) in actions.items()),
    ]


def synthetic(shape, tiles):
    with tempfile.TemporaryDirectory() as folder:
        trace, page = Path(folder) / "synthetic.tileprof", Path(folder) / "page.html"
        bench_graph.write(trace, shape, *bench_graph.SHAPES[shape](tiles))
        cost = tileprof("view", str(trace), "-o", str(page))
        size_mb, opened_ms, actions = page.stat().st_size / 1e6, *in_browser(page)
    return [
        row(shape, "written", cost.wall_s, 60, "s"),
        row(shape, "peak memory", cost.peak_bytes / 1e9, 6, "GB"),
        row(shape, "size", size_mb, 20, "MB"),
        row(shape, "opened", opened_ms, 3000, "ms"),
        *(row(shape, name, middle, ACTION_MS, "ms", slowest) for name, (middle, slowest) in actions.items()),
    ]


def row(page, what, measurement, target, unit, slowest=None):
    expected, verdict = (
        ("-", "-") if target is None else (f"< {target:,} {unit}", "yes" if measurement < target else "NO")
    )
    return (
        page,
        what,
        f"{measurement:.3g} {unit}",
        "" if slowest is None else f"{slowest:.0f} {unit}",
        expected,
        verdict,
    )


def in_browser(page):
    """Milliseconds until the page is ready and drawn, and of every action the middle and the slowest of five."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        begin = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
        tab.evaluate(f"async () => {{ {DRAWN} }}")
        open_ms = (time.perf_counter() - begin) * 1000
        times = {name: [drawn_ms(tab, *action, k) for k in range(5)] for name, action in ACTIONS.items()}
        browser.close()
    return open_ms, {name: (statistics.median(ms), max(ms)) for name, ms in times.items()}


def drawn_ms(tab, action, ready, k):
    tab.wait_for_timeout(200)  # what the action before left to do is not this one's
    script = (
        f"async (k) => {{ const begin = performance.now(); {action} {UNTIL.format(ready=ready)} {DRAWN} "
        "return performance.now() - begin; }"
    )
    return tab.evaluate(script, k)


if __name__ == "__main__":
    main()
