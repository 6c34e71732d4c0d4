"""The event log's schema, compared with its writers (the native sources, the hooks) and with a recorded log."""

import ast
import re
from pathlib import Path

import pytest

import tileprof
from tileprof.errors import UserError
from tileprof.record.cuda import decode, recorded_run
from tileprof.record.cuda.installation import recorder_build
from tileprof.record.cuda.records import events, raw

NATIVE = recorder_build.SOURCES
GOLDEN = Path(__file__).parents[4] / "golden" / "selftest-raw"
PLACED = {"launch", "learn"}
"""Kinds that one function writes for two others; ``unpatched`` is appended if there is any."""


def format_of(call):
    """Return the text of the adjacent raw strings in a call of ``log_.event``."""
    return "".join(re.findall(r'R"\((.*?)\)"', call, re.DOTALL))


def functions_of_native_code():
    """Return name and body of every function of events.cpp that writes an event."""
    text = (NATIVE / "log" / "events.cpp").read_text()
    for result in re.finditer(r"^void (\w+)\([^{;]*\) \{(.*?)\}$", text, re.DOTALL | re.MULTILINE):
        if "log_.event(" in result[2]:
            yield result[1], result[2]


def written_by_native_code():
    """Return kind and fields of every event that a function of events.cpp writes."""
    for name, body in functions_of_native_code():
        text = format_of(body)
        kind = re.match(r'"e":"([^"]+)"', text)[1]
        fields = set(re.findall(r'"(\w+)":', text)) - {"e"}
        if kind == "%s":
            assert name == "place"
            for place in PLACED:
                yield place, fields | set(re.findall(r'\\"(\w+)\\":', body))
        else:
            yield kind, fields


def written_by_hooks():
    """Return kind and fields of every ``say(e=..., ...)`` and ``{"e": ..., ...}`` in the hooks."""
    trees = [ast.parse(path.read_text()) for path in sorted(recorded_run.INPROCESS.glob("*.py"))]
    stamps = {
        node.slice.value
        for tree in trees
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name == "_say"
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    assert stamps == {"t"}, "what every event of the hooks gets"
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and any(k.arg == "e" for k in node.keywords):
                values = {k.arg: k.value for k in node.keywords}
            elif isinstance(node, ast.Dict) and any(isinstance(k, ast.Constant) and k.value == "e" for k in node.keys):
                values = {k.value: v for k, v in zip(node.keys, node.values, strict=True)}
            else:
                continue
            yield values["e"].value, values.keys() - {"e"} | stamps


@pytest.mark.parametrize("event_kinds", [written_by_native_code, written_by_hooks])
def test_what_is_written_is_what_the_schema_says(event_kinds):
    actual = list(event_kinds())
    assert len(actual) > 5
    for kind, names in actual:
        assert kind in events.KINDS, kind
        fields = events.fields_of(kind)
        assert names <= fields.keys(), f"{kind}: the schema lacks {names - fields.keys()}"
        missing = {name for name, needs in fields.items() if needs} - names
        assert not missing, f"{kind} is written without {missing}"


def test_events_are_written_by_one_function_per_kind():
    for name, body in functions_of_native_code():
        kind = re.match(r'"e":"([^"]+)"', format_of(body))[1]
        assert name == "place" if kind == "%s" else re.fullmatch(rf"{kind}(_\w+)?", name), (name, kind)
    declared_kinds = re.findall(r"^void (\w+)\(", (NATIVE / "log" / "events.h").read_text(), re.MULTILINE)
    kinds = {kind for kind, _ in written_by_native_code()}
    assert kinds <= set(declared_kinds)
    assert {name for name in declared_kinds if name.split("_")[0] not in kinds and name not in kinds} == set()


def test_only_the_events_module_and_the_hooks_write_events():
    calls = {path.name: path.read_text().count("log_.event(") for path in recorder_build.units_of_the_library()}
    others = {name: count for name, count in calls.items() if count and name != "events.cpp"}
    assert others == {"injector.cpp": 1}, "the injector passes on what hooks inside Python programs write"


def test_native_sources_have_at_most_120_columns():
    sources = [path for ending in ("cpp", "h", "cu", "cuh") for path in NATIVE.rglob(f"*.{ending}")]
    long = {f"{p.name}:{n}" for p in sources for n, line in enumerate(p.read_text().split("\n"), 1) if len(line) > 120}
    assert long == set()


ELSEWHERE = {"config.h", "graph.h", "stages.h", "cuda.h", "nvtxTypes.h"}
"""Headers that are written at build time, and those of NVIDIA."""


def test_files_that_comments_of_native_sources_name_exist():
    package = Path(tileprof.__file__).parent
    sources = [path for ending in ("cpp", "h", "cu", "cuh") for path in package.rglob(f"*.{ending}")]
    existing = {path.name for path in package.rglob("*.*")}
    missing = {
        f"{path.name}: {name}"
        for path in sources
        for comment in re.findall(r"//(.*)", path.read_text())
        for name in re.findall(r"\b(\w+\.(?:cpp|cuh|cu|h|py))\b", comment)
        if name not in existing | ELSEWHERE
    }
    assert missing == set()


def test_every_kind_is_written_by_something():
    event_kinds = {kind for source in (written_by_native_code, written_by_hooks) for kind, _ in source()}
    assert events.KINDS.keys() - event_kinds == {"live", "tensor", "untensor"}, (
        "these come from the allocator's history"
    )


def test_every_field_of_the_schema_is_written_by_something():
    """A field that one writer omits would be absent from every log, and its default taken for the value."""
    written = {}
    for source in (written_by_native_code, written_by_hooks):
        for kind, names in source():
            written.setdefault(kind, set()).update(names)
    unwritten = {kind: events.fields_of(kind).keys() - names for kind, names in written.items()}
    assert {kind: names for kind, names in unwritten.items() if names} == {}


def test_the_decoder_handles_no_kind_that_the_schema_lacks():
    handled_kinds = {name.removeprefix("_on_") for name in dir(decode.Decoder) if name.startswith("_on_")}
    assert handled_kinds <= events.KINDS.keys()


def test_a_recorded_log_fits_the_schema():
    [folder] = GOLDEN.glob("*/process-*")
    assert raw.read(folder).events


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"e":"launched"}', "'launched', which this tileprof does not know"),
        ('{"e":"free","t":1}', "without 'address'"),
    ],
)
def test_unknown_kinds_and_missing_fields_are_errors(tmp_path, line, words):
    (tmp_path / "events.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=words):
        raw.read(tmp_path)
