"""A recording from end to end: the program runs inside a session, and the trace is closed when the process ends."""

from __future__ import annotations

import atexit
import builtins
import ctypes
import functools
import gc
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tileprof import devices
from tileprof.errors import UserError
from tileprof.record import program, ranges
from tileprof.record.closing_line import ended_json
from tileprof.record.model import signals, triton_kernels
from tileprof.record.model.observation import fake
from tileprof.record.model.session import Session
from tileprof.record.model.tiles import load_all
from tileprof.record.model.tiles.foundations import overrides
from tileprof.shell_words import shell_word
from tileprof.terminal_text import harmless

if TYPE_CHECKING:
    from collections.abc import Callable

    from tileprof.record import Options
    from tileprof.record.command import Command

_LISTED_OPERATORS = 5
"""Conservative operators named at the end; the trace's notes name all."""

_STOPPED = 70
"""EX_SOFTWARE of sysexits.h, as for every failure of tileprof's own: a script must not take the trace for a whole
one."""

_NO_CUDA = ("not compiled with CUDA", "not linked with support for cuda", "Found no NVIDIA driver", "No CUDA GPUs")


_NO_GPU_NEEDED = "no GPU is needed: let the program use the CPU (no .cuda()); --device names the GPU to model"


_NO_NVTX = "NVTX functions not installed"
_NO_NVTX_NEEDED = (
    "this PyTorch has no NVTX; under --nvtx REGEX the program may mark ranges nevertheless ('' matches all of them)"
)


class _Interpreter:
    """The modules and settings that the recorder needs to import and run code when the program has ended, as they were
    before.
    """

    def __init__(self) -> None:
        self._recursion_limit = sys.getrecursionlimit()
        self._builtins = dict(vars(builtins))
        self._ways: list[tuple[list[Any], list[Any]]] = [
            (way, list(way)) for way in (sys.meta_path, sys.path_hooks, sys.path)
        ]

    def restore(self) -> None:
        """Restore what the program removed or replaced; what it added stays."""
        vars(builtins).update(self._builtins)
        sys.setrecursionlimit(max(sys.getrecursionlimit(), self._recursion_limit))
        for way, before in self._ways:
            way += [one for one in before if one not in way]


class Recording:
    """Knows how the program ended, and ends the trace accordingly, once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._pid = os.getpid()
        self._folder = Path.cwd()
        self._exit_code: int | None = None
        self._reason = "the program did not reach its end"
        self._finished = self._interrupted = False
        self._leave = os._exit
        self._interpreter = _Interpreter()

    def ended(self, exit_code: int, error: BaseException | None) -> None:
        """Hear how the program ended. Raises UserError where it could not run on fake tensors."""
        self._exit_code = exit_code
        self._interrupted = isinstance(error, KeyboardInterrupt)
        if isinstance(error, signals.Terminated) and os.getpid() == self._pid:
            # Neither threads nor exit handlers, as without the recorder.
            self._reason = f"the program was ended by {error}"
            self.finish()
            signals.die_of(error.number)
        self._reason = "" if error is None else f"{type(error).__name__}: {error}".removesuffix(": ")
        obstacle = fake.obstacle(error) if error is not None and self.session.fake else None
        if obstacle is not None:
            self._reason = obstacle
            raise UserError(obstacle) from None

    def leaving(self, leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
        """``os._exit`` that keeps what ran until then: no handler runs after it. Not in other threads, which may leave
        a busy main one.
        """

        @functools.wraps(leave)
        def leave_after(status: int) -> NoReturn:
            if isinstance(status, int) and threading.current_thread() is threading.main_thread():
                self._reason = f"the program ended by os._exit({status})"
                self.finish()
            leave(status)

        return leave_after

    def finish(self) -> None:
        """Close the trace, after the program's threads and exit handlers; say where it is."""
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        with signals.held() as heard:
            self._finish()
        if heard and not self._interrupted:
            _flush()
            signals.die_of(heard[0])
        if self._interrupted:
            # Whatever code the libraries evaluated since the program ended made the interpreter forget that an
            # interrupt ended it; it is to end by SIGINT nevertheless. The hook says nothing by now.
            ctypes.pythonapi.PyRun_SimpleString(b"raise KeyboardInterrupt")

    def _finish(self) -> None:
        self._interpreter.restore()
        gc.unfreeze()  # or the interpreter's end would not free what was imported, of which nanobind complains aloud
        session, whole = self.session, False
        try:
            notes = session.stop()
            reason = session.failure or self._reason
            path = session.writer.abandon(reason) if reason else session.writer.close(self._exit_code or 0)
        except UserError as error:
            _say(f"the trace is not whole: {error}")
        except Exception as error:  # noqa: BLE001 - a bug of tileprof, and the program's exit code stays its own
            traceback.print_exc()
            _say(f"the trace is not whole; this is a bug in tileprof: {error}")
        else:
            self._tell(path, reason, notes)
            whole = True
        if not whole and not self._exit_code and not self._interrupted:
            # The program ended well and the trace did not. This is an exit handler, after which the interpreter would
            # exit with 0.
            _flush()
            self._leave(_STOPPED)

    def _tell(self, path: Path, reason: str, notes: list[str]) -> None:
        shown_path = path.relative_to(self._folder) if path.is_relative_to(self._folder) else path
        if self.session.options.json:
            with suppress(OSError, ValueError):
                print(ended_json(path, shown=shown_path), file=sys.__stderr__)
            return
        path = shown_path
        for line in _summary(self.session, path, reason, notes):
            _say(line)


def run(options: Options, command: Command) -> int:
    """Run ``command`` in this process under a session; its exit code, or 70 where it ended well and the recording did
    not.
    """
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported: its kernels then need no GPU
    load_all()
    for word in options.tile:
        overrides.parse(word)  # a mistake is better told before the program runs
    session = Session(options, devices.get(options.device), list(options.program))
    recording = Recording(session)
    # Registered before the program's own handlers, so it runs after them; threads are joined before.
    atexit.register(recording.finish)
    os._exit = recording.leaving(os._exit)  # type: ignore[assignment] # the name of its parameter is not typed
    os.register_at_fork(after_in_child=session.forked, after_in_parent=_say_forked(session))
    # What was imported so far stays: full collections, which the recorder's many small objects cause, need not go
    # through it.
    gc.freeze()
    session.start()
    triton_kernels.install(session)
    signals.raise_terminated()
    code = program.run(command, recording.ended)
    return _STOPPED if session.failure is not None and code == 0 else code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _say_forked(session: Session) -> Callable[[], None]:
    note = "The program forked; what its children ran is not in this trace."
    return lambda: session.note(note)


def _summary(session: Session, path: Path, reason: str, notes: list[str]) -> list[str]:
    launches = session.writer.launches
    if not launches:
        hint = _hints(reason) or [f"the recording stopped: {reason}" if session.failure else _nothing_seen(session)]
        return [*hint, f"wrote {path}, which holds no launch"]
    size = f"{launches:,} launches of {session.tiles:,} tiles"
    lines = [f"wrote {path}: {size}, {session.end_ns / 1e6:,.3f} ms modelled on {session.device.name}"]
    lines += _hints(reason)
    if reason:
        lines.append(f"the trace is partial, it holds what ran until then: {reason.splitlines()[0]}")
    total = session.conservative.total()
    if total:
        worst = session.conservative.most_common(_LISTED_OPERATORS)
        more = (
            f" and {len(session.conservative) - _LISTED_OPERATORS} more operators"
            if len(session.conservative) > _LISTED_OPERATORS
            else ""
        )
        lines.append(
            f"conservative: {total} launch{'es' if total != 1 else ''}, "
            f"{', '.join(f'{op} ({n})' for op, n in worst)}{more}"
        )
    lines += [f"note: {n}" for n in notes if "every tile is taken to touch" not in n]
    lines.append(f"next: tileprof report {shell_word(path)}")
    return lines


def _hints(reason: str) -> list[str]:
    """Return what to do about an exception of the program's."""
    hints = [_NO_GPU_NEEDED] if any(words in reason for words in _NO_CUDA) else []
    return hints + ([_NO_NVTX_NEEDED] if _NO_NVTX in reason else [])


def _nothing_seen(session: Session) -> str:
    if session.operator_count and session.ranges is not None and not session.ranges.matched:
        ranges_seen = session.ranges
        return ranges.why_empty(ranges_seen.pattern, ranges_seen.matched, ranges_seen.names)
    if session.operator_count:
        return (
            f"no launch was kept: {session.operator_count} PyTorch operators ran, none of them inside the window "
            "(capture, --nvtx, --module, --skip); widen the window"
        )
    return (
        "no PyTorch operator was seen. What child processes compute is recorded by recording the child's own command; "
        "programs that use CUDA without PyTorch need a recorder on a GPU"
    )


def _say(text: str) -> None:
    """The last words of a recording; the program may have redirected or closed what it calls stderr."""
    with suppress(OSError, ValueError):
        print(f"tileprof: {harmless(text)}", file=sys.__stderr__)
