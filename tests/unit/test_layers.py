"""No part of the package imports a part that comes later in the data flow, and folders stay small."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What each part may import. `tileprof` itself is its version and its few names, which every part may use.
ALLOWED = {
    "tileprof": {"trace", "record", "api", "notebook"},
    "errors": set(),
    "nesting": set(),
    "named_file": set(),
    "terminal_text": set(),
    "shell_words": set(),
    "html_table": set(),
    "arrays": set(),
    "building": {"errors"},
    "devices": {"errors", "nesting", "named_file"},
    "trace": {"errors", "nesting", "named_file", "arrays", "devices"},
    "record": {
        "errors",
        "shell_words",
        "terminal_text",
        "nesting",
        "named_file",
        "arrays",
        "building",
        "devices",
        "trace",
    },
    "analysis": {"errors", "shell_words", "arrays", "devices", "trace"},
    "viz": {"errors", "arrays", "devices", "trace", "analysis"},
    "policy": {"errors", "html_table", "nesting", "named_file", "arrays", "devices", "trace", "analysis"},
    "runtime": {"errors", "nesting", "arrays", "building", "devices", "trace", "policy"},
    "examples": set(),
    "harvest": {"errors", "devices", "record"},
    "cli": {
        "errors",
        "shell_words",
        "terminal_text",
        "nesting",
        "devices",
        "trace",
        "record",
        "analysis",
        "viz",
        "policy",
        "runtime",
    },
    "loaded_graph": {"errors", "html_table", "analysis", "viz"},
    "api": {"errors", "html_table", "trace", "record", "analysis", "viz", "loaded_graph", "cli"},
    "notebook": {"errors", "api", "record"},
    "pytest_plugin": {"errors", "api", "cli", "record", "analysis"},
    "__main__": {"cli"},
}


def modules():
    """Yield (dotted name, path) of every module in the package."""
    for folder, prefix in (("tileprof", "tileprof"), ("analysis", "tileprof.analysis"), ("viz", "tileprof.viz")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join((prefix, *parts)), path


def imported_names(name, source):
    """Return the dotted names that a module imports anywhere in it: top level, functions, TYPE_CHECKING blocks."""
    package = name.removesuffix(".__init__").split(".") if name.endswith(".__init__") else name.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def part(name):
    """Return the part of the package that a dotted name belongs to; None for names of other packages."""
    words = name.split(".")
    if words[0] != "tileprof":
        return None
    return words[1] if len(words) > 1 and words[1] in ALLOWED else "tileprof"


def breaches(name, source):
    """Return the imports that the rules forbid, as sentences."""
    mine = part(name)
    for other in sorted(set(imported_names(name, source))):
        if other.split(".")[0] in {"analysis", "viz"}:
            yield f"{name} imports {other}: it is tileprof.{other}"
        elif (theirs := part(other)) not in {None, mine, "tileprof"} | ALLOWED[mine]:
            yield f"{name} imports {other}: {mine} stands below {theirs}"


def test_no_part_imports_a_part_above_it():
    assert [b for name, path in modules() for b in breaches(name, path.read_text())] == []


def test_every_part_of_the_package_has_a_rule():
    assert {words[1] for words in (name.split(".") for name, _ in modules())} - {"__init__"} <= set(ALLOWED)


def test_helpers_of_tests_are_imported_by_their_full_names_and_no_test_imports_another():
    """Scripts for a GPU and measurements run by path; there, the folder's own modules have short names."""
    paths = [p for p in (ROOT / "tests").rglob("*.py") if "golden" not in p.parts]
    unit = {p.stem for p in paths if (ROOT / "tests" / "unit") in p.parents}
    wrong = []
    for path in paths:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for other in set(imported_names(name, path.read_text())):
            last = other.split(".")[-1]
            if last.startswith("test_") and other.startswith(("tests.", "test_")):
                wrong.append(f"{name} imports {other}, which is a test")
            if other in unit and "gpu" not in path.parts and "benchmarks" not in path.parts:
                wrong.append(f"{name} imports {other}: write tests.unit. and so on")
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tileprof.trace.reader", "from tileprof.analysis import build_graph"),
        ("tileprof.analysis.dependencies.graph", "def f():\n    import tileprof.viz.page"),
        ("tileprof.record.model.recorder", "from tileprof import analysis"),
        ("tileprof.record.model.recorder", "from ...analysis import graph"),
        ("tileprof.devices.__init__", "from ..trace import load"),
        (
            "tileprof.viz.page",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tileprof.cli.verbs.view",
        ),
        ("tileprof.cli.verbs.view", "import viz.page"),
        ("tileprof.analysis.dependencies.graph", "from analysis import patterns"),
    ],
)
def test_a_forbidden_import_is_found_wherever_it_stands(name, source):
    assert len(list(breaches(name, source))) >= 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "tileprof.analysis.dependencies.graph",
            "from tileprof.analysis.dependencies.patterns import find\nimport numpy.typing",
        ),
        (
            "tileprof.trace.writer",
            "from tileprof import __version__\nfrom . import schema\nfrom ..errors import UserError",
        ),
        ("tileprof.cli.verbs.view", "import tileprof.viz.page"),
    ],
)
def test_an_allowed_import_is_let_through(name, source):
    assert list(breaches(name, source)) == []


def test_no_folder_has_more_than_twenty_modules():
    """More are no list that a newcomer reads: a subject among them becomes a folder."""
    sources = {".py", ".js", ".cu", ".cuh", ".h", ".cc", ".cpp"}
    modules = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for part in ("tileprof", "analysis", "viz", "tests")
        for path in (ROOT / part).rglob("*")
        if path.suffix in sources and path.name != "__init__.py"
    )
    assert {folder: count for folder, count in modules.items() if count > 20} == {}
