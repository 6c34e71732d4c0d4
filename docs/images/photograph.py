"""Takes the pictures of the page: ``python docs/images/photograph.py`` writes the .png files beside it; needs
chromium.
"""

# ruff: noqa: INP001 - a script, no package
from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
GOLDEN = Path("tests/golden/gpt2_graph.tileprof")
FLAGS = ["--no-sandbox", "--disable-gpu"]


CONVOLUTIONS = """
import tileprof, torch
layers = torch.nn.Sequential(
    *(torch.nn.Conv2d(64, 64, 3, padding=1, bias=False, dtype=torch.float16) for _ in range(2))
)
image = torch.randn(1, 64, 56, 56, dtype=torch.float16).contiguous(memory_format=torch.channels_last)
with torch.no_grad(), tileprof.capture():
    layers(image)
"""
"""Two 3 x 3 convolutions of equal shape, one after the other."""


def viewed(trace: Path, page: Path) -> Path:
    """The page of a trace."""
    command = [sys.executable, "-m", "tileprof.cli", "view", "-o", str(page), str(trace)]
    subprocess.run(command, check=True, cwd=HERE.parents[1])
    return page


def written(trace: Path, *command: str) -> Path:
    """The page of a recording."""
    tool = [sys.executable, "-m", "tileprof.cli"]
    subprocess.run([*tool, "record", "-o", str(trace), *command], check=True, cwd=trace.parent)
    return viewed(trace, trace.with_suffix(".html"))


def photograph(page: Page, path: Path, address: str, name: str, keys: str = "") -> None:
    """Open a page at an address, press keys, and keep what is shown."""
    page.goto(f"file://{path}#{address}")
    page.wait_for_selector("html[data-ready]")
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_timeout(1500)  # canvases draw in the next frames, and simulations of lanes take a moment
    page.screenshot(path=HERE / name)


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        place = Path(folder)
        (place / "convolutions.py").write_text(CONVOLUTIONS, encoding="utf-8")
        gpt2 = viewed(GOLDEN, place / "gpt2.html")
        tiles = ("--fake", "--tile", "conv=64x64x32,split=1")
        halo = written(place / "halo.tileprof", *tiles, "--", "python", "convolutions.py")
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        photograph(page, gpt2, "view=gain&beside=list", "page-gpt2.png")
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        photograph(page, halo, "pair=0,1&tile=1,24", "halo.png", keys="2f")
        browser.close()


if __name__ == "__main__":
    main()
