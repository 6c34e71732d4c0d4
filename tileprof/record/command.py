"""The command after ``tileprof record``: an interpreter, its options, and the program that it runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tileprof.errors import UserError
from tileprof.terminal_text import harmless

_PYTHON = re.compile(r"python[w]?(\d+(\.\d+)*)?(\.exe)?")
_FLAGS = frozenset("bBdEIOPqRsSuvx")
_VALUED = frozenset("WX")
_CAN_RECORD = """
from importlib.util import find_spec
missing = [name for name in ("tileprof", "torch") if find_spec(name) is None]
if missing:
    raise SystemExit("it has no " + " and no ".join(missing))
"""
_HIDING = {
    "S": "site-packages, where tileprof is installed",
    "I": "the folders of PYTHONPATH and of the user",
    "E": "the folders of PYTHONPATH",
    "s": "the folders of the user",
}
"""Interpreter options, with the part of the module search path that each leaves out."""
_REFUSED_OPTIONS = {"i": "waits for a user", "h": "runs no program", "?": "runs no program", "V": "runs no program"}


@dataclass(frozen=True, slots=True)
class Command:
    """A Python program: ``target`` is a path, a module's name or code; ``arguments`` are its own.

    ``python`` is the interpreter that was named, None where none was; ``options`` are the interpreter's.
    """

    kind: Literal["script", "module", "code"]
    target: str
    arguments: tuple[str, ...] = ()
    python: str | None = None
    options: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """A short name for files about this program."""
        if self.kind == "script":
            path = Path(self.target)
            return path.stem or path.resolve().name
        return self.target.rpartition(".")[2] if self.kind == "module" else "python-c"

    def line(self) -> list[str]:
        """Return the command without interpreter and interpreter options."""
        flag = {"script": [], "module": ["-m"], "code": ["-c"]}[self.kind]
        return [*flag, self.target, *self.arguments]


def parse(words: tuple[str, ...]) -> Command:
    """Return the command in ``words``: ``python [options] FILE|-m MODULE|-c CODE …``, or a script alone.

    Raises `UserError` for what runs no Python program.
    """
    if not words:
        raise UserError("no program to record; type for example `tileprof record python infer.py`")
    if _PYTHON.fullmatch(Path(words[0]).name):
        return _interpreter(words[0], list(words[1:]))
    return _script(words)


def _interpreter(python: str, words: list[str]) -> Command:
    options: list[str] = []
    while words:
        word = words.pop(0)
        if word == "-":
            break
        if not word.startswith("-"):
            return Command("script", word, tuple(words), python, tuple(options))
        if word.startswith("--"):
            raise UserError(f"the interpreter option {word} is not supported; -W, -X and the one-letter flags are")
        for place, letter in enumerate(word[1:], start=1):
            if letter in "mc" or letter in _VALUED:
                if place > 1:
                    options.append(word[:place])
                value = word[place + 1 :] or (words.pop(0) if words else "")
                if not value:
                    raise UserError(f"python -{letter} needs a value")
                if letter in _VALUED:
                    options += [f"-{letter}", value]
                    break
                kind: Literal["module", "code"] = "module" if letter == "m" else "code"
                return Command(kind, value, tuple(words), python, tuple(options))
            if letter in _REFUSED_OPTIONS:
                raise UserError(f"python -{letter} {_REFUSED_OPTIONS[letter]}: nothing to record")
            if letter not in _FLAGS:
                raise UserError(f"unknown interpreter option -{letter} in {word!r}")
        else:
            options.append(word)
    raise UserError(f"`{python}` names no program; type for example `tileprof record {python} infer.py`")


def _script(words: tuple[str, ...]) -> Command:
    """Return a script without an interpreter: a file, or a Python program on the PATH such as a console script."""
    target, arguments = words[0], tuple(words[1:])
    path = Path(target)
    if path.suffix in {".py", ".pyw", ".pyc"} or path.is_dir() or (path.is_file() and zipfile.is_zipfile(path)):
        return Command("script", target, arguments)
    program = path if path.is_file() else Path(shutil.which(target) or "")
    if program.is_file():
        with program.open("rb") as file:
            first = file.readline(512)
        if first.startswith(b"#!") and b"python" in first:
            return Command("script", str(program), arguments)
        raise UserError(f"{program} is not a Python program; the model recorder runs Python programs only")
    raise UserError(f"no program {target!r}: neither a file here nor a command on the PATH")


def check_target(command: Command) -> None:
    """Raise `UserError` where the script does not exist, before anything is written."""
    if command.kind == "script" and not Path(command.target).exists():
        raise UserError(f"no such program: {command.target} (in {Path.cwd()})")


def other_interpreter(command: Command) -> str | None:
    """Return the interpreter that has to run ``command``, or None where it is the running one.

    A bare ``python`` is the one on the PATH where that can record, else the running one, and stderr says so. An
    interpreter named by its path is never replaced: raises `UserError` when it cannot record.
    """
    here = sys.executable if command.options else None
    interpreter = shutil.which(command.python) if command.python else None
    by_path = command.python is not None and os.sep in command.python
    if interpreter is None and by_path:
        raise UserError(f"no such interpreter: {command.python}")
    if interpreter is None or _same(Path(interpreter), Path(sys.executable)):
        return _that_finds_us(here, command.options)
    reason = _obstacle(interpreter, command.options)
    if reason is None:
        return interpreter
    if by_path:
        raise UserError(
            f"{interpreter} cannot record: {reason}. In tileprof's checkout type "
            f"`{interpreter} -m pip install '.[torch]'`, "
            f"or name the interpreter that has it: `tileprof record {sys.executable} …`."
        )
    other = f"{interpreter}, the {command.python} on the PATH, cannot record ({reason})"
    sys.stderr.write(harmless(f"tileprof: running with {sys.executable}; {other}") + "\n")  # or a user expects that one
    return _that_finds_us(here, command.options)


def _that_finds_us(here: str | None, options: tuple[str, ...]) -> str | None:
    """Return ``here``, the running interpreter; raises `UserError` where its options hide from it what
    recording needs.
    """
    hiding = [option for option in options if option[0] == "-" and set(option[1:]) & _HIDING.keys()]
    reason = _obstacle(here, options) if here is not None and hiding else None
    if reason is None:
        return here
    letters = sorted(set("".join(hiding)) & _HIDING.keys())
    means = ", ".join(f"-{letter} leaves out {_HIDING[letter]}" for letter in letters)
    raise UserError(f"{Path(str(here)).name} {' '.join(options)} cannot record: {reason}. {means}: leave it out here.")


def _obstacle(python: str, options: tuple[str, ...]) -> str | None:
    """Return why an interpreter with these options cannot record; None where it can."""
    check = [python, *options, "-c", _CAN_RECORD]
    answer = subprocess.run(check, capture_output=True, text=True, errors="replace", check=False)
    return (answer.stderr.strip() or "it does not start").splitlines()[-1] if answer.returncode else None


def _same(one: Path, other: Path) -> bool:
    """Return whether the environment is equal: a virtual environment's python links to its base's, so the
    folder decides.
    """
    return one.absolute().parent == other.absolute().parent and one.resolve() == other.resolve()
