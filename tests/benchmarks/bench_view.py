"""Pages of large traces: time and memory to write one, its size, and how fast a browser opens, selects and zooms.

Synthetic traces of `bench_graph`, ten edges a tile; milliseconds until the frame after the action has been drawn, the middle of
five. Needs playwright and a chromium.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import bench_graph
from measuring import header, table, tileprof
from playwright.sync_api import sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRAWN = "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
LAST_PAIR = "const i = tileprof.pairs.producer.length - 1 - k; tileprof.select({ pair: [tileprof.pairs.producer[i], tileprof.pairs.consumer[i]] });"
ACTIONS = {
    "select a launch": "(k) => tileprof.select({ launch: k + 1 })",
    "select a pair": f"(k) => {{ {LAST_PAIR} }}",
    "zoom tiles": "(k) => tileprof.views.matrix.zoom(1.3)",
    "zoom timeline": "(k) => tileprof.views.lanes.zoom(1.3)",
    "zoom launches": "(k) => tileprof.views.graph.zoom(1.1)",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, nargs="+", default=[100_000, 1_000_000])
    options = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("no chromium on this machine: apt-get install chromium")
    header(f"view of synthetic traces, {bench_graph.PARENTS} edges a tile")
    rows = [(shape, f"{tiles:,}", *measure(shape, tiles)) for shape in bench_graph.SHAPES for tiles in options.tiles]
    table(("shape", "tiles", "write", "peak memory", "page", "open ms", *(f"{name} ms" for name in ACTIONS)), rows)


def measure(shape, tiles):
    with tempfile.TemporaryDirectory() as folder:
        trace, page = Path(folder) / "synthetic.tileprof", Path(folder) / "page.html"
        bench_graph.write(trace, shape, *bench_graph.SHAPES[shape](tiles))
        cost = tileprof("view", str(trace), "-o", str(page))
        written = f"{cost.wall_s:.1f} s", f"{cost.peak_bytes / 1e9:.2f} GB", f"{page.stat().st_size / 1e6:.1f} MB"
        return (*written, *in_browser(page))


def in_browser(page):
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        begin = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
        opened = (time.perf_counter() - begin) * 1000
        found = [statistics.median(drawn_ms(tab, action, k) for k in range(5)) for action in ACTIONS.values()]
        browser.close()
    return [f"{ms:.0f}" for ms in (opened, *found)]


def drawn_ms(tab, action, k):
    begin = time.perf_counter()
    tab.evaluate(action, k)
    if "pair" in action:
        tab.wait_for_function("() => tileprof.matrix.parts.length > 0")
    tab.evaluate(DRAWN)
    return (time.perf_counter() - begin) * 1000


if __name__ == "__main__":
    main()
