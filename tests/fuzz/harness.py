"""Runs one verb on one input, and compares its behaviour with what a verb may do."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import random
import re
import signal
import tempfile
import unicodedata
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.inputs import Operation, draw, make
from tests.fuzz.watch import BAIT, SECRET, Watch, bait_of, bait_times
from tileprof.cli.entry import main

SECONDS, WAITED_S = 60, 600
"""An input that takes more processor time, or waits longer, is a failure."""

MOST_CHARACTERS = 4000
"""Longest refusal in characters, unless it repeats what the user typed."""

_FORMATS = ("json", "cusync", "counters", "graphml", "perfetto")
RECORD_OPTIONS = ("--tile", "--module", "--nvtx", "--device", "--kernel", "--passes", "--granule", "--wait", "--skip")

VERBS: dict[str, list[list[str]]] = {
    "trace": [
        ["report", "IN"], ["report", "--json", "IN"], ["diff", "TRACE", "IN"], ["simulate", "IN"],
        ["view", "--quick", "-o", "OUT/page.html", "IN"], ["verify", "GOOD", "IN"],
        ["verify", "--launches", "0,1", "cusync:rowsync", "IN"], ["run", "GOOD", "--trace", "IN"],
        *(["export", "--format", name, "-o", "OUT", "IN"] for name in _FORMATS),
        *(["export", "--format", name, "--launches", "0,1", "-o", "OUT", "IN"] for name in _FORMATS[:3]),
        ["diff", "IN", "TRACE"], ["diff", "--json", "--fail-if", "time>+5%", "TRACE", "IN"],
        ["report", "--fail-if", "gap>30%", "IN"], ["report", "--device", "A100", "IN"], ["simulate", "--advice", "IN"],
        ["simulate", "--durations", "shared-roofline", "IN"], ["simulate", "--json", "IN"],
        ["simulate", "--scheduler", "cusync", "--export", "perfetto", "-o", "OUT/lanes.json", "IN"],
        ["export", "-o", "OUT", "IN"], ["export", "--for", "tokens=128..512 step 128", "-o", "OUT", "IN"],
        ["export", "--module", "h", "--fuse", "-o", "OUT", "IN"], ["view", "-o", "OUT/page.html", "IN"],
        ["verify", "--json", "GOOD", "IN"], ["verify", "DEPENDENCIES", "IN"],
    ],
    "policy": [
        ["verify", "IN", "TRACE"], ["run", "IN", "--trace", "TRACE"],
        ["export", "--format", "cusync", "--policy", "IN", "-o", "OUT", "TRACE"],
        ["view", "--quick", "-o", "OUT/page.html", "TRACE", "IN"],
    ],
    "device": [["simulate", "--device", "IN", "TRACE"]],
    "dependencies": [
        ["verify", "IN", "TRACE"], ["verify", "--launches", "0,1,2", "IN", "TRACE"],
        *(["export", "--format", name, "-o", "OUT", "IN"] for name in _FORMATS[:3]),
    ],
    "header": [["run", "IN"]],
    "symbolic": [
        ["verify", "--at", "256", "IN", "TRACE"], ["verify", "--at", "384", "IN", "TRACE"],
        ["run", "--at", "256", "--trace", "TRACE", "IN"],
        ["run", "IN"], ["export", "--format", "cusync", "--policy", "IN", "-o", "OUT", "TRACE"],
        ["view", "--quick", "-o", "OUT/page.html", "TRACE", "IN"],
    ],
    "profile": [["times", "-o", "OUT/timed", "TRACE", "IN"], ["times", "--json", "-o", "OUT/timed", "TRACE", "IN"]],
    "nsys": [["times", "-o", "OUT/timed", "TRACE", "IN"]],
    "words": [
        ["export", "--for", "WORD", "-o", "OUT", "TRACE"], ["export", "--launches", "WORD", "-o", "OUT", "TRACE"],
        ["export", "--pair", "WORD", "-o", "OUT", "TRACE"], ["export", "--format", "WORD", "-o", "OUT", "TRACE"],
        ["report", "--fail-if", "WORD", "TRACE"], ["report", "--device", "WORD", "TRACE"],
        ["report", "--sms", "WORD", "TRACE"],
        ["report", "--top", "WORD", "TRACE"], ["diff", "--fail-if", "WORD", "TRACE", "TRACE"],
        ["simulate", "--scheduler", "WORD", "TRACE"], ["simulate", "--durations", "WORD", "TRACE"],
        ["simulate", "--scheduler", "cusync", "--sweep", "WORD", "TRACE"], ["verify", "WORD", "TRACE"],
        ["verify", "--rows", "WORD", "--launches", "0,1", "cusync:rowsync", "TRACE"], ["run", "--at", "WORD", "GOOD"],
        ["run", "--seed", "WORD", "GOOD", "--trace", "TRACE"], ["report", "WORD"], ["view", "WORD"], ["run", "WORD"],
        ["WORD"],
        *(["record", option, "WORD", "-o", "OUT/run", "--", "OUT/none"] for option in RECORD_OPTIONS),
        ["record", "-o", "OUT/run", "WORD"], ["record", "-o", "OUT/run", "--", "WORD"], ["times", "TRACE", "WORD"],
        ["help", "WORD"], ["completion", "WORD"], ["export", "--module", "WORD", "-o", "OUT", "TRACE"],
    ],
}  # fmt: skip
"""Command lines by kind of input.

IN is the input, WORD its first line, TRACE, GOOD and DEPENDENCIES a sound trace, policy and file of dependencies, OUT
the only folder to write to.
"""


SOUND = {"TRACE": "mlp.tileprof", "GOOD": "policy.json", "DEPENDENCIES": "dependencies.dep"}


class _LateError(BaseException):
    """An exception that passes through the code that turns exceptions into exit codes."""


@dataclass(frozen=True)
class Outcome:
    """The behaviour of a verb; ``fault`` is empty if it is allowed."""

    code: int | None
    fault: str


def kind_of(base: str) -> str:
    return base if base in VERBS else "trace"


def case_of(seed: int, number: int, bases: Path) -> dict[str, Any]:
    """Return input ``number`` of a seed as a line of the corpus. It does not depend on other inputs."""
    dice = random.Random(f"{seed}:{number}")
    base, operations = draw(dice, bases)
    return {"base": base, "operations": operations, "verb": dice.choice(VERBS[kind_of(base)])}


def run(
    bases: Path, folder: Path, base: str, operations: list[Operation], verb: list[str], *, everywhere: bool = False
) -> Outcome:
    """Run one command line of `VERBS` on one input in this process, in the empty ``folder``.

    With ``everywhere``, accesses outside of the folders count wherever they are. That is for processes in which
    everything is imported and compiled. Elsewhere caches are written, and only bait files and the input's neighbours
    are checked.
    """
    inputs, out, scratch = folder / "in", folder / "out", folder / "scratch"
    inputs.mkdir(parents=True)
    out.mkdir()
    scratch.mkdir()
    result = make(bases, inputs, base, operations)
    names = {"IN": result, **{word: bases / name for word, name in SOUND.items()}, "OUT": out}
    typed = []
    if base == "words":
        names["WORD"] = _word(result)
        path = out / names["WORD"]
        # files that the user names, and files near them, may be read
        typed = [path, path.resolve(), path.parent.resolve()]
    words = [str(names.get(word, word.replace("OUT/", f"{out}/"))) for word in verb]
    bait = [] if base == "words" else bait_of(bases)
    before, times = _listing(folder, out), bait_times(bait)
    stdout, stderr = io.StringIO(), io.StringIO()
    code: int | None = None
    watch = Watch(readable=[inputs, *_bases_but_bait(bases), *typed], writable=[out, scratch])
    try:
        with (
            _limits(),
            contextlib.chdir(out if base == "words" else inputs),  # `view` of a trace writes into the current folder
            _temporary_files_in(scratch),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
            watch,
        ):
            warnings.simplefilter("always")
            code = main(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except _LateError:
        return Outcome(None, f"took longer than {SECONDS} s")
    if next(scratch.iterdir(), None):
        gc.collect()  # the reader of such a file removes it when the reader is itself collected
    fault = _fault(code, stdout.getvalue(), stderr.getvalue(), _output_text(out))
    if not fault and base != "words" and code == 2 and len(stderr.getvalue()) > MOST_CHARACTERS:
        fault = f"a message of {len(stderr.getvalue())} characters: {stderr.getvalue()[:300]}"
    if not fault and everywhere and watch.faults:
        fault = f"outside of its folders: {watch.faults[:3]}"
    if not fault and bait_times(bait) != times:
        fault = "files outside of the folders were read or changed"
    return Outcome(code, fault or _difference(before, _listing(folder, out)))


def _bases_but_bait(bases: Path) -> list[Path]:
    return [path for path in bases.iterdir() if path.name != BAIT]


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Provide a folder; `_difference` finds what is left there."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _word(path: Path) -> str:
    """Return the first line of a file as an argument; system calls take no zero byte."""
    return path.read_text("utf-8", "replace").split("\n")[0].replace("\0", "")


def _fault(code: int | None, stdout: str, stderr: str, pages: str) -> str:
    if code not in (0, 1, 2):
        return f"exit code {code}: {stderr[-3000:]}"
    if re.search(r"Warning: |Traceback ", stderr):
        return f"a warning or a traceback: {stderr[-3000:]}"
    for name, text in (("stdout", stdout), ("stderr", stderr)):
        control = next((c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t"), None)
        if control is not None:
            return f"{control!r} on {name}"
    if SECRET in stdout + stderr + pages:
        return "what stands in a file outside of the folders is in the output"
    if "<script>alert(1)" in pages or "<img src=x" in pages:
        return "a script from a name in the page"
    return ""


def _output_text(out: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in out.rglob("*.html"))


def _listing(folder: Path, out: Path) -> list[tuple[str, int]]:
    """Return everything in the folder that is not output, with its size."""
    matches = []
    for root, _, names in os.walk(folder):
        if not Path(root).is_relative_to(out):
            matches += [(os.path.join(root, name), os.lstat(os.path.join(root, name)).st_size) for name in names]  # noqa: PTH118 - fast
    return sorted(matches)


def _difference(before: list[tuple[str, int]], after: list[tuple[str, int]]) -> str:
    return "" if before == after else f"files changed outside of the output folder: {set(before) ^ set(after)}"


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Raise `_LateError` after `SECONDS` of this process's time or `WAITED_S` of elapsed time."""

    def late(*_: object) -> None:
        raise _LateError

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, WAITED_S)}
    previous = {number: signal.signal(number, late) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)
