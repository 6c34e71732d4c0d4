"""Names in a trace come from the recorded program; no output may interpret them."""

from __future__ import annotations

import html.parser
import json
import random
import shutil
import subprocess
import unicodedata
from pathlib import Path
from xml.etree import ElementTree as ET

import nbformat
import pytest

import tileprof
from tests.fuzz.inputs import draw_name
from tests.support.synthetic_graphs import write_mlp
from tileprof.cli.entry import main

NAMES = [
    "*/ int main() { return 1; } /*",
    '"); system("true"); ("',
    "back\\slash\\\n#error",
    "line\nbreak\r\n#error",
    "trigraph ??/\n#error",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eevil\u2066\u2028\u200b",
    "\x1b]0;title\x07\x1b[31m\x00",
    "=cmd()|' /C calc'!A0",
    "]]>&<!--${HOME}%s",
    "class",
    "",
    "n" * 5000,
]
NVCC = shutil.which("nvcc")
CUSYNC = next((Path(__file__).parents[3] / "tileprof").rglob("cusync/cusync.h"), None)


@pytest.fixture(params=range(len(NAMES)), ids=[ascii(name)[:24] for name in NAMES])
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name = NAMES[request.param]
    path = tmp_path / "named.tileprof"
    write_mlp(path, layers=1, kernel=name, op=name, module=name, note=name, fingerprint=name, device="H200")
    return path


def export(trace: Path, form: str, *more: str) -> Path:
    out = trace.parent / form
    assert main(["export", "--format", form, *more, "-o", str(out), str(trace)]) == 0
    return out


def terminal_text(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_files_for_other_tools_are_well_formed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = ET.fromstring((export(trace, "graphml") / "graph.graphml").read_text())
    assert len(graph.findall(".//{*}node")) == 2
    assert json.loads((export(trace, "perfetto") / "perfetto.json").read_text())["traceEvents"]
    pair = ("--launches", "0,1")
    assert json.loads((export(trace, "counters", *pair) / "counters.json").read_text())
    policy = json.loads((export(trace, "json", *pair) / "policy.json").read_text())
    assert len(policy["stages"]) == 2
    assert not [c for c in terminal_text(capsys) if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"]


def test_headers_hold_no_code_from_names(trace: Path) -> None:
    text = (export(trace, "cusync", "--launches", "0,1") / "policy.h").read_text()
    assert text.isascii()
    assert "#error" not in [line.strip()[:6] for line in text.splitlines()]
    assert not set("\\?") & set("".join(line for line in text.splitlines() if line.lstrip().startswith(("//", "*"))))


@pytest.mark.skipif(NVCC is None or CUSYNC is None, reason="no nvcc on the PATH")
def test_headers_compile_whatever_the_names_are(tmp_path: Path) -> None:
    """All in one file, each in a namespace: the compiler reads CUDA's headers once."""
    lines = ["#include <cstdio>", "#include <cstdlib>", "#include <stdexcept>", "#include <cusync/cusync.h>"]
    for number, name in enumerate(NAMES[:6]):
        path = tmp_path / f"{number}.tileprof"
        write_mlp(path, layers=1, kernel=name, op=name, module=name, device="H200")
        out = tmp_path / f"{number}"
        assert main(["export", "--format", "cusync", "--launches", "0,1", "-o", str(out), str(path)]) == 0
        lines += [f"#define main main_{number}", f"namespace of_{number} {{", f'#include "{number}/example.cu"', "}"]
        lines += [f"static_assert(sizeof(of_{number}::Stages) > 0);", "#undef main"]
    (tmp_path / "all.cu").write_text("\n".join([*lines, ""]))
    command = [
        str(NVCC), "-std=c++17", "-arch=sm_90", "-Xcicc", "-O0", "-Xptxas", "-O0", "-I", str(CUSYNC.parents[1]),
        "-cubin", "all.cu", "-o", "all.cubin",
    ]  # fmt: skip
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    machine_code = (tmp_path / "all.cubin").read_bytes()
    assert all(f"of_{number}".encode() in machine_code for number in range(6))


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def _tags_of_page(trace: Path) -> _Tags:
    page, tags = trace.with_suffix(".html"), _Tags()
    assert main(["view", "--quick", "-o", str(page), str(trace)]) == 0
    tags.feed(page.read_text())
    return tags


@pytest.fixture(scope="module")
def plain_tags(tmp_path_factory: pytest.TempPathFactory) -> _Tags:
    return _tags_of_page(write_mlp(tmp_path_factory.mktemp("plain") / "plain.tileprof", layers=1, device="H200"))


def test_pages_hold_no_element_from_a_name(trace: Path, plain_tags: _Tags) -> None:
    actual = _tags_of_page(trace)
    assert (actual.tags, actual.handlers) == (plain_tags.tags, plain_tags.handlers)


def test_a_notebook_shows_no_element_from_a_name(tmp_path: Path) -> None:
    """Write one trace with all names, in a folder of such a name, so that a cell can show `load(path)`."""
    hostile, plain = tmp_path / '"><img src=x onerror=alert(1)>.tileprof', tmp_path / "plain.tileprof"
    name = " ".join(NAMES[:-1])
    write_mlp(hostile, layers=1, kernel=name, op=name, module=name, note=name, fingerprint=name, device="H200")
    write_mlp(plain, layers=1, kernel="k", op="o", module="m", note="n", fingerprint="f", device="H200")
    actual, expected = _Tags(), _Tags()
    for path, tags in ((hostile, actual), (plain, expected)):
        cell = nbformat.v4.new_output(
            "execute_result", {"text/html": tileprof.load(path)._repr_html_(), "text/plain": repr(tileprof.load(path))}
        )
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("load(path)", outputs=[cell])])
        file = path.with_suffix(".ipynb")
        nbformat.write(notebook, file)
        [notebook_cell] = nbformat.read(file, as_version=4).cells
        tags.feed(notebook_cell.outputs[0]["data"]["text/html"])
    assert (actual.tags, actual.handlers) == (expected.tags, expected.handlers)
    assert {"table", "td"} <= set(actual.tags)


@pytest.fixture
def page_file() -> None:
    """Give each test pages of its own."""


@pytest.mark.parametrize("seed", range(4))
def test_names_run_no_code_and_cause_no_errors_in_a_browser(tab, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    kernel, op, module, note = ("".join(draw_name(dice) for _ in range(6)) + dice.choice(NAMES) for _ in range(4))
    path = tmp_path / "named.tileprof"
    write_mlp(path, layers=2, kernel=kernel, op=op, module=module, note=note, device="H200")
    page = tmp_path / "page.html"
    assert main(["view", "--quick", "-o", str(page), str(path)]) == 0
    view = tab(path=page)
    for place in ("#pair=0,1", "#launch=1", "#view=timeline", "#view=gain", "#view=matrix"):
        view.ask("(place) => { location.hash = place; }", place)
        view.page.wait_for_timeout(50)
    assert view.ask("() => document.querySelectorAll('img, iframe, object, embed').length") == 0
    assert view.ask("() => document.scripts.length") == page.read_text().count("</script>")
