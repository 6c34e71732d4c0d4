"""A browser for the tests of pages, where there is one."""

import shutil

import numpy as np
import pytest

from tests.support.warm import commands

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first one needs a third less processor time: it has no user interface."""

CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
MOST_MS = 200_000
"""Time limit for anything in the browser: it ends a hang, and is long enough for a slow machine."""


@pytest.fixture(scope="session")
def warm(shared_folder):
    """Provide programs that start at once, for tests that are not about how they start."""
    folder = shared_folder / "warm"
    folder.mkdir(exist_ok=True)
    with commands(folder) as programs:
        yield programs


_open: list[tuple] = []
"""The driver of the browser and the browser's `Windows`, while tests need them."""


@pytest.fixture
def chromium():
    """Provide windows of a browser that stays open for the next test, since starting one takes as long as three
    tests.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium-headless-shell")
    if not _open:
        driver = playwright.sync_playwright().start()
        _open.append((driver, Windows(driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS))))
    return _open[0][1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """End the browser after the last test in a row that may need it: no event loop can run beside its driver."""
    try:
        return (yield)
    finally:
        is_needed = nextitem is not None and (
            nextitem.path.parent.name == "view" or "chromium" in nextitem.fixturenames
        )
        if _open and not is_needed:
            driver, windows = _open.pop()
            windows.browser.close()
            driver.stop()


DRAWN = """async (name) => { const frame = () => new Promise(requestAnimationFrame); await frame();
    do await frame(); while (tileprof.views[name].waiting); }"""
"""Returns when a view has drawn itself: a resized canvas is empty until the next frame."""


class Windows:
    """Windows of a browser.

    A test gets a window that an earlier test has left, reset to a new one: opening another one takes three times the
    processor time.
    """

    EVENTS = ("console", "pageerror", "dialog", "request")

    def __init__(self, browser):
        self.browser, self.free = browser, []

    def take(self, viewport, color_scheme, handlers):
        """Return a blank window of a size and colour scheme, with one handler for each of `EVENTS`."""
        page = self.free.pop() if self.free else self.browser.new_page(viewport=viewport)
        page.set_default_timeout(MOST_MS)
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=color_scheme)
        for event in self.EVENTS:
            page.on(event, handlers[event])
        return page

    def give(self, page, handlers):
        """Forget what a page has stored, leave the page, and keep its window for the next test."""
        page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        page.mouse.move(-1, -1)
        page.goto("about:blank")
        for event in self.EVENTS:
            page.remove_listener(event, handlers[event])
        self.free.append(page)


class Tab:
    """A page in the browser that must stay silent: any error message or request fails the test at the end."""

    def __init__(self, chromium, path, hash_="", allowed="file:", viewport=None, color_scheme="light"):
        self.complaints = []
        self.handlers = {
            "console": lambda m: self.complaints.append(m.text),
            "pageerror": lambda e: self.complaints.append(str(e)),
            "dialog": lambda d: self.complaints.append(d.message),
            "request": lambda r: r.url.startswith((allowed, "data:")) or self.complaints.append(r.url),
        }
        self.chromium = chromium
        self.page = chromium.take(viewport or {"width": 1280, "height": 800}, color_scheme, self.handlers)
        self.page.goto(f"file://{path}{hash_}" if allowed == "file:" else f"{path}{hash_}")
        self.page.wait_for_selector("html[data-ready]")

    def visit(self, address):
        """Go to another address of the open page, as a link in it would."""
        self.page.goto(self.page.url.partition("#")[0] + address)

    def ask(self, script, argument=None):
        return self.page.evaluate(script, argument)

    def until(self, script, argument=None):
        self.page.wait_for_function(script, arg=argument)

    def at(self, view, script, argument=None):
        """Return the screen position of a point of a view; ``script`` gives it in the view's own coordinates."""
        inside = f"""(a) => {{ const view = tileprof.views.{view}; const box = view.canvas.getBoundingClientRect();
            const [x, y] = view.toScreen(...({script})(a)); return [x + box.left, y + box.top]; }}"""
        return self.ask(inside, argument)

    def click(self, view, script, argument=None):
        self.page.mouse.click(*self.at(view, script, argument))

    def tip(self, view, script, argument=None):
        self.page.mouse.move(*self.at(view, script, argument))
        return self.page.inner_text("#tip") if self.page.is_visible("#tip") else ""

    def pixels(self, view, points):
        """Return the colours of a view's canvas at points in its own coordinates: ``[points, 3]`` red, green, blue."""
        return np.array(self.ask(
            f"""async ([name, points]) => {{ await ({DRAWN})(name);
            const view = tileprof.views[name]; const {{ canvas: c }} = view;
            const copy = new OffscreenCanvas(c.width, c.height).getContext("2d");
            copy.drawImage(c, 0, 0); const d = copy.getImageData(0, 0, c.width, c.height).data;
            return points.map((p) => {{ const [x, y] = view.toScreen(...p).map((v) => Math.floor(v * view.ratio));
                if (x < 0 || y < 0 || x >= c.width || y >= c.height) throw new Error(`${{p}} is not in sight`);
                return Array.from(d.subarray(4 * (y * c.width + x), 4 * (y * c.width + x) + 3)); }}); }}""",
            [view, np.asarray(points, float).tolist()],
        ))  # fmt: skip

    def hash(self):
        return self.ask("() => location.hash")

    def colours(self, view):
        """Return the number of different colours on a view's canvas."""
        return len(self.palette(view))

    def palette(self, view):
        """Return the number of pixels of each colour (as "r,g,b") on a view's canvas."""
        return self.ask(
            f"""async (view) => {{ await ({DRAWN})(view);
            const c = tileprof.views[view].canvas;
            const copy = new OffscreenCanvas(c.width, c.height).getContext("2d", {{ willReadFrequently: true }});
            copy.drawImage(c, 0, 0); const d = copy.getImageData(0, 0, c.width, c.height).data;
            const counts = {{}};
            for (let i = 0; i < d.length; i += 4) {{
                const colour = `${{d[i]}},${{d[i + 1]}},${{d[i + 2]}}`; counts[colour] = (counts[colour] ?? 0) + 1; }}
            return counts; }}""",
            view,
        )


@pytest.fixture
def tab(chromium, page_file):
    """Provide a function that opens a page, by default the module's ``page_file``."""
    tabs = []

    def open_tab(hash_="", path=page_file, **options):
        tabs.append(Tab(chromium, path, hash_, **options))
        return tabs[-1]

    yield open_tab
    complaints = []
    for each in tabs:
        chromium.give(each.page, each.handlers)
        complaints += each.complaints
    assert complaints == []
