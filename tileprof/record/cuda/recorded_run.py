"""Running the recorded program: one pass of it, with the injection library and the hooks in its environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from tileprof import building
from tileprof.errors import UserError
from tileprof.record.cuda.installation.locate import Sanitizer
from tileprof.record.cuda.installation.recorder_build import Built
from tileprof.record.cuda.settings import Settings

INPROCESS = Path(__file__).parent / "inprocess"
INJECTION = "CUDA_INJECTION64_PATH"
NVTX_INJECTION = "NVTX_INJECTION64_PATH"
"""NVTX 3 loads the library that this names, and reports every range to it."""

_COMPANION_S: Final = 2
"""A process ends by a signal within this many seconds, on a busy machine too."""


def command_of(words: tuple[str, ...]) -> list[str]:
    """Return what to execute: a program, or a Python script that is none by itself.

    Raises `UserError` where it is neither.
    """
    program = shutil.which(words[0])
    if program is None and words[0].endswith(".py") and Path(words[0]).is_file():
        return [sys.executable, *words]
    if program is None:
        raise UserError(f"{words[0]} is neither a program nor a Python script")
    return [program, *words[1:]]


def refuse_taken() -> None:
    """Raise `UserError` when another tool already injects itself into CUDA programs of this environment."""
    injection = os.environ.get(INJECTION)
    if injection:
        raise UserError(
            f"{INJECTION} is already set to {injection}: another tool records this program. Unset it first."
        )


def refuse_ranges_taken() -> None:
    """Raise `UserError` when another tool already listens to the NVTX ranges of this environment's programs."""
    injection = os.environ.get(NVTX_INJECTION)
    if injection:
        raise UserError(
            f"{NVTX_INJECTION} is already set to {injection}: another tool listens to this program's NVTX ranges, and "
            "only one can. Unset it, or record without --nvtx."
        )


def environment(
    pass_: str,
    raw: Path,
    built: Built,
    sanitizer: Sanitizer,
    settings: Settings,
    *,
    skip: int,
    count: int | None,
    proofs: str | None = None,
) -> dict[str, str]:
    """Return the environment of one pass. ``proofs``: socket of the server that says which launches need no patches."""
    out = {**os.environ, "TILEPROF_RAW": str(raw)}
    out["PYTHONPATH"] = os.pathsep.join([str(INPROCESS), *filter(None, [os.environ.get("PYTHONPATH")])])
    if pass_ == "time":  # noqa: S105 - the name of a pass over the program
        return out | {"TILEPROF_TIME": "1"}
    out |= settings.environment(pass_, skip=skip, count=count)
    out |= {INJECTION: str(built.library), "TILEPROF_PATCHES": str(built.patches)}
    out |= {"TILEPROF_SANITIZER": str(sanitizer.library)}
    if proofs is not None and pass_ == "accesses":  # noqa: S105 - as above
        out["TILEPROF_PROOFS"] = proofs
    out |= {NVTX_INJECTION: str(built.library)} if settings.nvtx is not None else {}
    if pass_ == "accesses" and (settings.hooks or settings.tensors):  # noqa: S105 - as above
        out |= hook_variables() if settings.hooks else {"TILEPROF_HOOKS": "tensors"}
    return out


def hook_variables() -> dict[str, str]:
    """Return the variables of the hooks that name operators, modules and tensors of PyTorch.

    Raises `UserError` where another user could put code into the folder of the library that they load.
    """
    folder = building.cache_folder("operators")
    building.refuse_foreign(folder)
    return {"TILEPROF_HOOKS": "1", "TILEPROF_OPERATORS": str(folder), "TILEPROF_PYTHON": sys.executable}


def run(command: list[str], variables: dict[str, str], *, visible: bool, log: Path) -> int:
    """Run the program; its exit code. Passes after the first have no input and write to ``log`` instead of the
    terminal.

    Signals that end processes are passed on to the program, and a SIGINT that the terminal has not sent to it as well;
    what it does then is its own business. What it left by then is a trace. Here it is waited for.
    """
    if visible:
        return _waited_for(command, env=variables)
    with log.open("wb") as out:
        return _waited_for(command, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)


def _waited_for(command: list[str], **options: Any) -> int:
    program: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if program is None:
            early.append(number)
        elif number != signal.SIGINT or not companion.was_interrupted():
            program.send_signal(number)  # which does nothing when it has ended

    messages: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        messages = {n: what for n, what in before.items() if what in (signal.SIG_DFL, signal.default_int_handler)}
    with _Companion() as companion:
        for number in messages:
            signal.signal(number, pass_on)
        try:
            program = subprocess.Popen(command, **options)
            for number in early:
                program.send_signal(number)
            while True:  # in steps: a signal just before a wait without end would be heard after it alone
                with suppress(subprocess.TimeoutExpired):
                    return program.wait(1)
        finally:
            for number, handler in messages.items():
                signal.signal(number, handler)


class _Companion:
    """A process that waits in this process group, and ends by a SIGINT that went to the whole group, as Ctrl-C at a
    terminal does: the program has got that one, too.
    """

    def __enter__(self) -> Self:
        self._process = self._started()
        return self

    def _started(self) -> subprocess.Popen[bytes]:
        # It reads a pipe that nothing is written to, and so does not outlive this process.
        null = subprocess.DEVNULL
        return subprocess.Popen(["/bin/sh", "-c", "read _"], stdin=subprocess.PIPE, stdout=null, stderr=null)

    def was_interrupted(self) -> bool:
        """Return whether a SIGINT that came now came to the group."""
        try:
            code = self._process.wait(_COMPANION_S)
        except subprocess.TimeoutExpired:
            return False
        self.__exit__()
        self._process = self._started()
        return code == -signal.SIGINT

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
