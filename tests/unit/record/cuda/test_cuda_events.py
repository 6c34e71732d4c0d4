"""The event log's schema against what writes it: the native sources, the hooks, and a recorded log."""

import ast
import re
from pathlib import Path

import pytest

from tileprof.errors import UserError
from tileprof.record.cuda import decode, events, program, raw

NATIVE = Path(events.__file__).parent / "native"
GOLDEN = Path(__file__).parents[3] / "golden" / "selftest-raw"
TWO_KINDS = {("memory.cpp", "%s"): ("alloc", "free"), ("recorder.cpp", "%s"): ("launch", "learn")}
"""Format strings that take the kind as an argument."""
APPENDED = {"ranges": {"pattern", "matched", "names", "unlisted"}, "launch": {"unpatched"}, "learn": {"unpatched"}}
"""Fields that come from a string made elsewhere."""


def written_by_native_code():
    """Kind and fields of every event that a format string writes."""
    for path in sorted(NATIVE.glob("*.cpp")):
        for call in re.finditer(r'log_\.event\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', path.read_text()):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', call[1])).replace('\\"', '"')
            names = re.findall(r'"(\w+)":', text)
            if not names:
                continue  # passes on what the hooks say
            kind = re.match(r'"e":"([^"]+)"', text)[1]
            for one in TWO_KINDS.get((path.name, kind), (kind,)):
                yield one, set(names[1:])


def written_by_hooks():
    """Kind and fields of every ``say(e=..., ...)`` and ``{"e": ..., ...}`` in the hooks."""
    for path in sorted(program.INPROCESS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and any(k.arg == "e" for k in node.keywords):
                given = {k.arg: k.value for k in node.keywords}
            elif isinstance(node, ast.Dict) and any(isinstance(k, ast.Constant) and k.value == "e" for k in node.keys):
                given = {k.value: v for k, v in zip(node.keys, node.values, strict=True)}
            else:
                continue
            yield given["e"].value, given.keys() - {"e"}


@pytest.mark.parametrize("written", [written_by_native_code, written_by_hooks])
def test_what_is_written_is_what_the_schema_says(written):
    seen = list(written())
    assert len(seen) > 5
    for kind, names in seen:
        assert kind in events.KINDS, kind
        known = events.fields_of(kind)
        assert names <= known.keys(), f"{kind}: the schema lacks {names - known.keys()}"
        missing = {name for name, needed in known.items() if needed} - names - APPENDED.get(kind, set())
        assert not missing, f"{kind} is written without {missing}"


def test_every_kind_is_written_by_something():
    written = {kind for source in (written_by_native_code, written_by_hooks) for kind, _ in source()}
    assert events.KINDS.keys() - written == {"live", "tensor", "untensor"}, "these come from the allocator's history"


def test_the_decoder_handles_no_kind_that_the_schema_lacks():
    handled = {name.removeprefix("_on_") for name in dir(decode.Decoder) if name.startswith("_on_")}
    assert handled <= events.KINDS.keys()


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
