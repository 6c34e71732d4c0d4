"""Running the user's Python program in this process, as ``python`` would have run it.

What the program can see is what it would see without us: ``sys.argv``, ``sys.path[0]``, the module ``__main__``,
tracebacks, the exit code, death by SIGINT. Frames of the recorder are cut out of uncaught tracebacks.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import threading
import traceback
import types
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tileprof.record.command import Command

_HOME = str(Path(__file__).parent)
"""Frames of files below this folder are ours."""

_CALLED_BY_US = os.sep + os.path.join("torch", "_ops.py")  # noqa: PTH118 - the end of a path
"""Through which a recorder runs the operator that the program called."""


def run(command: Command, ended: Callable[[int, BaseException | None], None]) -> int:
    """Run the program to its end and return its exit code.

    ``ended`` hears the exit code, and the uncaught exception, before the traceback is printed.
    `SystemExit` passes through, so that the interpreter treats it as it always does; so does
    `KeyboardInterrupt`, after its traceback: the interpreter then ends by SIGINT.
    """
    threading.excepthook = _pruning_thread_hook(threading.excepthook)
    try:
        _execute(command)
    except SystemExit as stop:
        ended(_exit_code(stop), None)
        raise
    except BaseException as error:
        ended(130 if isinstance(error, KeyboardInterrupt) else 1, error)
        _print(error)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *_: None  # said already; what is left for the interpreter is to end by SIGINT
            raise
        return 1
    ended(0, None)
    return 0


def _execute(command: Command) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update({"__builtins__": builtins, "__annotations__": {}})
    sys.modules["__main__"] = main
    if command.kind == "module":
        sys.argv[:] = ["-m", *command.arguments]
        _set_path("" if sys.flags.safe_path else str(Path.cwd()))
        runpy._run_module_as_main(command.target)  # type: ignore[attr-defined]  # noqa: SLF001 - what `python -m` calls
        return
    if command.kind == "code":
        sys.argv[:] = ["-c", *command.arguments]
        _set_path("")
        code = compile(command.target, "<string>", "exec", dont_inherit=True)
        exec(code, main.__dict__)  # noqa: S102 - the user's program
        return
    sys.argv[:] = [command.target, *command.arguments]
    path = Path(command.target).absolute()
    if path.suffix == ".pyc":
        _set_path(str(path.resolve().parent))
        _run_code(main, SourcelessFileLoader("__main__", str(path)).get_code("__main__"), path)
        return
    if path.is_dir() or not _is_source(path):
        _set_path(str(path), always=True)
        # What `python DIR` calls.
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # noqa: SLF001
        return
    _set_path(str(path.resolve().parent))
    main.__loader__ = SourceFileLoader("__main__", str(path))
    _run_code(main, compile(path.read_bytes(), str(path), "exec", dont_inherit=True), path)


def _run_code(main: types.ModuleType, code: Any, path: Path) -> None:
    main.__file__ = str(path)
    main.__dict__["__cached__"] = None
    exec(code, main.__dict__)  # noqa: S102 - the user's program


def _is_source(path: Path) -> bool:
    """Return whether there is no null byte: archives and byte code have them, and Python refuses source that does."""
    with path.open("rb") as file:
        return b"\0" not in file.read(4096)


def _set_path(entry: str, *, always: bool = False) -> None:
    """Put the program's folder where Python put ours; under -P and -I Python puts none."""
    if not sys.flags.safe_path:
        sys.path[0] = entry
    elif always:
        sys.path.insert(0, entry)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    return stop.code & 0xFF if isinstance(stop.code, int) else 1


def _print(error: BaseException) -> None:
    """Report as the interpreter does: through the hook, and both tracebacks where the hook itself fails."""
    prune(error)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as second:  # noqa: BLE001 - whatever the program's hook raises
        prune(second)
        second.__context__ = None  # the interpreter calls the hook outside of any handler
        print("Error in sys.excepthook:", file=sys.stderr)  # noqa: T201
        traceback.print_exception(second)
        print("\nOriginal exception was:", file=sys.stderr)  # noqa: T201
        traceback.print_exception(error)


def prune(error: BaseException) -> None:
    """Cut our frames out of the traceback of ``error`` and of all exceptions that led to it."""
    pending, visited = [error], set()
    while pending:
        one = pending.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        one.__traceback__ = _without_ours(one.__traceback__)
        pending += [e for e in (one.__cause__, one.__context__) if e is not None]
        pending += getattr(one, "exceptions", ())


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    frames, is_ours = [], False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_ours = file.startswith(_HOME) or (is_ours and file.endswith(_CALLED_BY_US))
        if not is_ours:
            frames.append(trace)
        trace = trace.tb_next
    for frame, following in zip(frames, [*frames[1:], None], strict=False):
        frame.tb_next = following
    return frames[0] if frames else None


def _pruning_thread_hook(
    hook: Callable[[threading.ExceptHookArgs], object],
) -> Callable[[threading.ExceptHookArgs], object]:
    def pruned(caught: threading.ExceptHookArgs) -> object:
        error = caught.exc_value
        if error is None:
            return hook(caught)
        prune(error)
        return hook(threading.ExceptHookArgs((caught.exc_type, error, error.__traceback__, caught.thread)))

    return pruned
