"""Examples in Markdown pages: found, run in order, compared with what the page says, or written again.

A fenced block marked ``console`` holds commands and what they print, stdout and stderr together::

    $ tileprof report mlp.tileprof          a command; lines beginning with "> " continue it
    device      H200, 132 SMs               what it prints; "..." stands for any text in a line,
    ...                                     alone on a line for any lines
    [exit code 1]                           at the end, where the exit code is not 0

A block marked ``pycon`` holds Python statements after ``>>>`` and ``...`` as in a Python session; a statement's output
is compared in the same way, so that an ellipsis in output begins a line only with ``....`` (any lines). All blocks of a
page share one folder and one Python namespace. The same recording in the same folder is made once, whatever pages ask
for it.

    python tests/integration/docs/docs_examples.py docs/*.md          checks
    python tests/integration/docs/docs_examples.py --write docs/*.md  writes what the commands print now into the pages
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import hashlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

ANY_LINES, ANY_TEXT = "...", "..."
_EXIT = "[exit code {}]"
_SHELL = set("|&;<>$`*?()")
_ENVIRONMENT = {"TILEPROF_PROGRESS_S": "0", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "LC_ALL": "C.UTF-8"}
_MOST_SECONDS = 280


@dataclass(frozen=True)
class Example:
    """A command or statement, and the lines that the page shows for it: ``lines[begin:end]``, from 0."""

    kind: str
    line: int
    source: str
    begin: int
    end: int
    expected: tuple[str, ...]


def examples(text: str) -> list[Example]:
    """Return all examples of a page, in order."""
    matches: list[Example] = []
    lines = text.splitlines()
    kind, at = "", 0
    while at < len(lines):
        line = lines[at]
        if not kind:
            kind = line[3:].strip() if line.startswith("```") else ""
            at += 1
        elif line.startswith("```"):
            kind, at = "", at + 1
        elif kind in _PROMPTS and line.startswith(_PROMPTS[kind][0]):
            matches.append(_example(kind, lines, at))
            at = matches[-1].end
        else:
            at += 1
    return matches


_PROMPTS = {"console": ("$ ", "> "), "pycon": (">>> ", "... ")}


def _example(kind: str, lines: list[str], at: int) -> Example:
    first, more = _PROMPTS[kind]
    source, begin = [lines[at].removeprefix(first)], at + 1
    while lines[begin].startswith(more) or lines[begin] == more.strip():
        source.append(lines[begin].removeprefix(more.strip()).removeprefix(" "))
        begin += 1
    end = begin
    while not lines[end].startswith(("```", first)):
        end += 1
    expected = tuple("..." if kind == "pycon" and line == "...." else line for line in lines[begin:end])
    return Example(kind, at + 1, "\n".join(source), begin, end, expected)


# ---- comparing


@functools.cache
def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, line.rstrip().split(ANY_TEXT))))


def fits(expected: str, actual: str) -> bool:
    """Return whether a line agrees with a line of the page."""
    return _pattern(expected).fullmatch(actual.rstrip()) is not None


def matches(expected: tuple[str, ...], actual: list[str]) -> bool:
    """Return whether the lines agree with the page; blank lines at both ends do not count."""
    want, have = _without_blank_ends(list(expected)), _without_blank_ends(actual)
    reach = [True] + [False] * len(have)
    for line in want:
        if line.strip() == ANY_LINES:
            reach = [any(reach[: n + 1]) for n in range(len(have) + 1)]
        else:
            reach = [False] + [reach[n] and fits(line, text) for n, text in enumerate(have)]
    return reach[-1]


def _without_blank_ends(lines: list[str]) -> list[str]:
    rows = [line.rstrip() for line in lines]
    while rows and not rows[-1]:
        rows.pop()
    while rows and not rows[0]:
        rows.pop(0)
    return rows


# ---- writing again


def renewal(expected: tuple[str, ...], actual: list[str]) -> list[str]:
    """Return the actual lines, with the page's ellipses where the lines around them are unchanged."""
    want, have = _without_blank_ends(list(expected)), _without_blank_ends(actual)
    if not want:
        return have
    steps = _aligned(want, have)
    out: list[str] = []
    for w, h in steps:
        if w is not None and want[w].strip() == ANY_LINES:
            out.append(want[w])
        elif h is not None:
            out.append(have[h] if w is None else _line(want[w], have[h]))
    return [line for n, line in enumerate(out) if not (n and line.strip() == ANY_LINES and out[n - 1] == line)]


def _line(expected: str, actual: str) -> str:
    if fits(expected, actual) or ANY_TEXT not in expected:
        return expected if fits(expected, actual) else actual
    words, now = (re.findall(r"\s+|\S+", line) for line in (expected, actual))
    out: list[str] = []
    for change, a, b, c, d in difflib.SequenceMatcher(None, words, now, autojunk=False).get_opcodes():
        is_pattern = change != "equal" and ANY_TEXT in "".join(words[a:b])
        out += words[a:b] if is_pattern else now[c:d]
    return "".join(out)


def _aligned(want: list[str], have: list[str]) -> list[tuple[int | None, int | None]]:
    """Return pairs of rows with the lowest cost: equal lines and ellipses cost 0, similar ones little, new and lost
    ones 1.
    """
    rows, columns = len(want), len(have)
    cost = [[float("inf")] * (columns + 1) for _ in range(rows + 1)]
    came: dict[tuple[int, int], tuple[int | None, int | None]] = {}
    cost[0][0] = 0.0
    for w in range(rows + 1):
        for h in range(columns + 1):
            here = cost[w][h]
            wild = w < rows and want[w].strip() == ANY_LINES
            tries: list[tuple[int, int, float]] = []
            if h < columns:
                tries.append((w, h + 1, 0.0 if w and want[w - 1].strip() == ANY_LINES else 1.0))
            if w < rows:
                tries.append((w + 1, h, 0.0 if wild else 1.0))
            if w < rows and h < columns and not wild:
                tries.append((w + 1, h + 1, _difference(want[w], have[h])))
            for to_w, to_h, price in tries:
                if here + price < cost[to_w][to_h]:
                    cost[to_w][to_h] = here + price
                    came[to_w, to_h] = (w if to_w > w else None, h if to_h > h else None)
    path: list[tuple[int | None, int | None]] = []
    w, h = rows, columns
    while (w, h) != (0, 0):
        step = came[w, h]
        inside_ellipsis = step[0] is None and w and want[w - 1].strip() == ANY_LINES
        if not inside_ellipsis:
            path.append(step)
        w, h = w - (step[0] is not None), h - (step[1] is not None)
    return path[::-1]


def _difference(expected: str, actual: str) -> float:
    if fits(expected, actual):
        return 0.0
    alike = difflib.SequenceMatcher(None, expected, actual, autojunk=False).ratio()
    return 1.0 - alike if alike > 0.5 else float("inf")


# ---- running


@dataclass(frozen=True)
class Recordings:
    """Printed output and files of ``tileprof record``, by command line and the program that it names: recorded once,
    then copied.

    Processes may share ``folder``. Programs in the folder ``path`` come before those of the interpreter.
    """

    folder: Path
    path: Path | None = None

    def run(self, command: str, where: Path) -> list[str]:
        before = {p.name for p in where.iterdir()}
        programs = [p.read_text(encoding="utf-8") for p in sorted(where.glob("*.py")) if p.name in command]
        selection = self.folder / hashlib.sha256(repr((command, programs)).encode()).hexdigest()
        if selection.is_dir() and not before & {p.name for p in (selection / "left").iterdir()}:
            shutil.copytree(selection / "left", where, dirs_exist_ok=True)
            return (selection / "printed").read_text(encoding="utf-8").splitlines()
        output_text = self.bash(command, where)
        making = Path(tempfile.mkdtemp(dir=self.folder))
        (making / "left").mkdir()
        for new in where.iterdir():
            if new.name not in before and new.is_dir():
                shutil.copytree(new, making / "left" / new.name)
        (making / "printed").write_text("\n".join(output_text), encoding="utf-8")
        with contextlib.suppress(OSError):  # another process was faster
            making.rename(selection)
        return output_text

    def bash(self, command: str, where: Path) -> list[str]:
        """Return what a command prints, whatever its exit code."""
        folders = (self.path, Path(sys.executable).parent, os.environ["PATH"])
        path = os.pathsep.join(str(folder) for folder in folders if folder is not None)
        result = subprocess.run(
            ["bash", "-c", command], cwd=where, env=os.environ | _ENVIRONMENT | {"PATH": path},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=_MOST_SECONDS, check=False,
        )  # fmt: skip
        return _with_code(result.stdout, result.returncode)


class Page:
    """Runs the examples of one page in ``folder``."""

    def __init__(self, folder: Path, recordings: Recordings) -> None:
        self._folder, self._recordings = folder, recordings
        self._names: dict[str, object] = {"__name__": "__main__"}

    def run(self, example: Example) -> list[str]:
        """Return what the example prints."""
        with contextlib.chdir(self._folder):
            if example.kind == "pycon":
                return self._python(example)
            command = example.source
            if not command.startswith("tileprof ") or _SHELL & set(re.sub("'[^']*'", "", command)):
                return self._recordings.bash(command, self._folder)
            if not command.startswith("tileprof record "):
                return _in_process(shlex.split(command)[1:])
            run = self._recordings.bash if "--force" in command else self._recordings.run
            return run(command, self._folder)

    def _python(self, example: Example) -> list[str]:
        output_text = io.StringIO()
        with contextlib.redirect_stdout(output_text):
            try:
                exec(compile(example.source + "\n", f"line {example.line}", "single"), self._names)
            except Exception as error:  # noqa: BLE001 - pages show errors too
                output_text.write("".join(traceback.format_exception_only(error)))
        return output_text.getvalue().splitlines()


def _in_process(arguments: list[str]) -> list[str]:
    """Run as the command line would, without a new interpreter: starting one takes longer than most commands."""
    from tileprof.cli.entry import main

    with io.BytesIO() as buffer, io.TextIOWrapper(buffer, encoding="utf-8", write_through=True) as output_text:
        with (
            mock.patch.dict(os.environ, _ENVIRONMENT),
            contextlib.redirect_stdout(output_text),
            contextlib.redirect_stderr(output_text),
        ):
            try:
                code = main(arguments)
            except SystemExit as stop:
                code = int(stop.code or 0)
        return _with_code(buffer.getvalue().decode(), code)


def _with_code(output_text: str, code: int) -> list[str]:
    return output_text.splitlines() + ([_EXIT.format(code)] if code else [])


def check(path: Path, recordings: Recordings) -> list[str]:
    """Return the differences between a page and what its examples print, one text per example that differs."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        page = Page(Path(folder), recordings)
        for example in examples(path.read_text(encoding="utf-8")):
            actual = page.run(example)
            if not matches(example.expected, actual):
                message = difflib.unified_diff(
                    _without_blank_ends(list(example.expected)), _without_blank_ends(actual), "page", "now", lineterm=""
                )
                wrong.append("\n".join([f"{path}, line {example.line}: {example.source}", *message]))
    return wrong


def write(path: Path, recordings: Recordings) -> int:
    """Write what the examples print now into the page. Return the number of changed examples."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    changes: list[tuple[Example, list[str]]] = []
    with tempfile.TemporaryDirectory() as folder:
        page = Page(Path(folder), recordings)
        for example in examples(text):
            actual = page.run(example)
            if not matches(example.expected, actual):
                new = renewal(example.expected, actual)
                changes.append((example, ["...." if example.kind == "pycon" and x == "..." else x for x in new]))
    for example, new in reversed(changes):
        lines[example.begin : example.end] = new
    if changes:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(changes)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the examples of Markdown pages.")
    parser.add_argument("--write", action="store_true", help="write what they print into the pages")
    parser.add_argument("pages", nargs="+", type=Path)
    options = parser.parse_args()
    any_failure = False
    with tempfile.TemporaryDirectory() as folder:
        recordings = Recordings(Path(folder))
        for path in options.pages:
            if options.write:
                print(f"{path}: {write(path, recordings)} examples written anew", flush=True)  # noqa: T201
                continue
            wrong = check(path, recordings)
            any_failure |= bool(wrong)
            print("\n\n".join(wrong) or f"{path}: as it says", flush=True)  # noqa: T201
    return int(any_failure)


if __name__ == "__main__":
    sys.exit(main())
