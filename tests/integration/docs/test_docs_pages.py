"""README and the pages under docs, compared with the program: options, schedulers, links, pictures."""

import argparse
import importlib
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.analysis.dependencies.patterns import classify
from tileprof.analysis.simulate import SCHEDULERS
from tileprof.cli.entry import VERBS
from tileprof.runtime.schedulers import SCHEDULERS as RUNTIME_SCHEDULERS
from tileprof.trace import WRITE, Boxes, Footprint

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = {"--your", "--options", "--help", "--version", "--prepare", "--strict", "--plain", "--type", "--trace"}
"""Options on the pages that belong to recorded programs, or to every verb."""


def parser_of(verb):
    parser = argparse.ArgumentParser(prog=verb, allow_abbrev=False)
    importlib.import_module(f"tileprof.cli.verbs.{verb}").VERB.prepare(parser)
    return parser


def actions_of(verb):
    return [a for a in parser_of(verb)._actions if a.option_strings and "--help" not in a.option_strings]


def documented_options(verb):
    """Return the default of each option, from the first two columns of the tables of options on a verb's page."""
    matches = {}
    text = (ROOT / "docs" / f"{verb}.md").read_text()
    for table in re.findall(r"^\| option \| default \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE):
        for row in table.splitlines():
            cells = [cell.strip() for cell in row.strip("|").split(" | ")]
            for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]*|-[a-z])\b", cells[0]):
                matches[option] = cells[1]
    return matches


@pytest.mark.parametrize("verb", VERBS)
def test_a_page_lists_exactly_the_options_of_its_verb(verb):
    assert set(documented_options(verb)) == {option for action in actions_of(verb) for option in action.option_strings}


@pytest.mark.parametrize("verb", VERBS)
def test_the_defaults_on_a_page_are_those_of_the_program(verb):
    defaults = documented_options(verb)
    for action in actions_of(verb):
        if action.default and isinstance(action.default, str | int):
            assert f"`{action.default}`" in defaults[action.option_strings[-1]], action.option_strings


def test_pages_and_readme_speak_of_no_option_that_does_not_exist():
    reference = {option for verb in VERBS for action in actions_of(verb) for option in action.option_strings}
    examples = {
        "--steps",
        "--kind",
        "--graph",
        "--preset",
        "--tokens",
        "--layers",
        "--channels-last",
        "--batch",
        "--train",
        "--channels",
        "--digest",
        "--experts",
        "--inner",
        "--keep",
        "--leaves",
        "--shape",
        "--size",
        "--width",
        # of `measure_acs_runs.py`
        "--unchecked",
        "--ways",
        # of python -m tileprof.harvest, and of the script that tests its tables
        "--captures",
        "--engines",
        "--launched",
        "--half-precision",
        "--held-out",
        "--leave-one-out",
        "--nets",
        "--odd",
        "--part",
        "--rules",
        "--single-precision",
        "--seconds",
        "--sum",
        "--thin",
        "--turn",
        "--wide",
        "--without-library",
    }
    for page in PAGES:
        text = re.sub(r"^\$ (?!tileprof|.*-m tileprof).*$", "", page.read_text(), flags=re.MULTILINE)
        options_in_text = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text))
        assert options_in_text <= reference | examples | ELSEWHERE | {"--list", "--write"}, page.name


def test_the_page_of_simulate_names_every_scheduler():
    text = (ROOT / "docs" / "simulate.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \| [^|]+ \|$", text, re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", " ".join(rows))) >= set(SCHEDULERS)


def test_the_page_of_run_names_every_scheduler_of_the_runtime():
    text = (ROOT / "docs" / "run.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \| [^|]+ \|$", text, re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", " ".join(rows))) >= {*RUNTIME_SCHEDULERS, "auto"} - {"cusync-streams"}


def test_the_page_of_notebooks_names_every_notebook():
    notebook_names = set(re.findall(r"\(\.\./notebooks/([a-z_]+)\.py\)", (ROOT / "docs" / "notebooks.md").read_text()))
    assert notebook_names == {path.stem for path in (ROOT / "notebooks").glob("*.py")}


@pytest.mark.parametrize("page", ["acs", "bloom", "ccks", "cusync", "spawn"])
def test_pages_of_systems_of_the_field_have_the_same_headings(page):
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE)
    figures = "How far from the published figures, and why"
    assert headings == ["What is implemented", "What was measured", figures, "What is missing"]


def test_the_readme_is_short():
    text = re.sub(r"^<!--.*?^-->\n\n", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(text.splitlines()) <= 150


def anchors(page):
    """Return the anchors of headings, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_relative_link_and_image_exists(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_file_that_a_page_names_exists(page):
    for name in re.findall(r"`((?:tests|tileprof|analysis|viz|notebooks|docs)/[\w./-]*\w)`", page.read_text()):
        # the second one is the include path of exported headers
        places = (ROOT, ROOT / "tileprof" / "runtime" / "include")
        assert any((folder / name).exists() for folder in places), name


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_module_that_a_page_names_exists(page):
    for name in re.findall(r"\btileprof(?:\.[a-z_]+){2,}", page.read_text()):
        parts = name.replace("tileprof.analysis", "analysis").replace("tileprof.viz", "viz").split(".")
        paths = [ROOT.joinpath(*parts[:length]) for length in range(len(parts) - 1, len(parts) + 1)]
        assert any(path.is_dir() or path.with_suffix(".py").exists() for path in paths), name


GROUNDS = {"record", "runtime", "policy", "cli", "trace", "devices"}
"""Folders of `tileprof` within which a short name of a file is unambiguous."""


def test_short_names_of_files_in_contributing_are_near_the_path_before_them():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for row in re.findall(r"^\|.*`(?:tileprof|analysis|viz)/.*\|$", text, re.MULTILINE):
        names = re.findall(r"`([\w/.]+\.(?:py|js|cuh?|cpp|h|toml)|(?:tileprof|analysis|viz)/[\w/]+)`", row)
        first = Path(names[0])
        ground = ROOT.joinpath(*first.parts[: 1 + (first.parts[0] == "tileprof" and first.parts[1] in GROUNDS)])
        near = {path.name for path in ground.rglob("*")}
        for name in names:
            assert (ROOT / name).exists() or Path(name).name in near, f"{name} beside {first}"


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_has_no_archaic_words(page):
    assert re.findall(r"\b(?:whoever|nobody|likewise|by and by|lest)\b", page.read_text(), re.IGNORECASE) == []


def test_no_image_is_left_over():
    uses = {Path(t).name for p in PAGES for t in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", p.read_text())}
    assert uses >= {p.name for p in (ROOT / "docs" / "images").iterdir() if p.suffix in {".png", ".svg"}}


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_cells_of_tables_are_short(page):
    for row in re.findall(r"^\|.*\|$", page.read_text(), re.MULTILINE):
        long = [cell for cell in row.strip("|").split(" | ") if len(cell.split()) > 30]
        assert not long, "make it a note below the table"


@pytest.fixture(scope="module")
def drawing():
    return runpy.run_path(str(ROOT / "docs" / "images" / "draw.py"))


def test_the_picture_of_patterns_shows_what_the_analysis_calls_so(drawing):
    tiles = drawing["TILES"]
    for name, parents in drawing["PATTERNS"].items():
        children = [c for c in range(tiles) if parents(c)]
        width = drawing["GRID_OF"].get(name, (tiles, 1))[0]
        number = np.arange(tiles)
        at = np.stack([number % width, number // width, 0 * number], axis=1).astype(np.int32)
        write_boxes = Boxes.of(tile=number, operand=0, mode=WRITE, offset=4 * number, length=4)
        line = np.stack([np.arange(len(children)), *np.zeros((2, len(children)), int)], axis=1).astype(np.int32)
        counts = [len(parents(c)) for c in children]
        block = EdgeBlock(
            set_of=np.arange(len(children), dtype=np.int32),
            indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            parent=np.concatenate([parents(c) for c in children]).astype(np.int32),
            bytes=np.full(sum(counts), 4, np.int64),
            last=np.full(sum(counts), np.nan, np.float32),
            first=np.full(sum(counts), np.nan, np.float32),
        )
        pattern = classify(block, Footprint(at, write_boxes), Footprint(line, Boxes.concat([])))
        assert pattern.name == name


def test_the_diagrams_are_those_that_the_script_draws(drawing, tmp_path, monkeypatch):
    snapshot = {p.name: p.read_text() for p in (ROOT / "docs" / "images").glob("*.svg")}
    script = tmp_path / "draw.py"
    script.write_text((ROOT / "docs" / "images" / "draw.py").read_text())
    runpy.run_path(str(script), run_name="__main__")
    assert {p.name: p.read_text() for p in tmp_path.glob("*.svg")} == snapshot
