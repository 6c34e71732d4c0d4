"""Starts Python programs in copies of a process that has imported the heavy libraries, because importing takes longer
than most of the programs run.

For tests about what a program computes, not about how it starts: documentation, notebooks, examples. Small client
programs pass their arguments, environment, folder and open files to the process. It forks, and the client ends when the
copy ends. A signal that the client gets ends or interrupts the copy. Each copy has memory of its own, as a new
interpreter has.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HEAVY = (
    "torch", "torch._subclasses.fake_tensor", "transformers.models.gpt2.modeling_gpt2", "pandas", "pyarrow.parquet",
    "plotly.graph_objects", "ipykernel.kernelapp", "numba", "jsonschema", "tileprof.cli.entry",
    "tileprof.record.command", "tileprof.record.model.recording", "tileprof.analysis.simulate",
)  # fmt: skip
_MOST_BYTES = 1 << 20
_STARTER = """
    import json, os, signal, socket, sys
    here = socket.socket(socket.AF_UNIX)
    here.connect({address!r})
    what = [{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]
    text = json.dumps(what).encode("utf-8", "surrogateescape")
    socket.send_fds(here, [b"%08d" % len(text)], [0, 1, 2])
    here.sendall(text)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: here.sendall(bytes([number])))
    code = int(here.recv(100) or b"-9")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
"""


@dataclass(frozen=True)
class Commands:
    """Paths of the client programs.

    ``path`` is a folder for PATH that holds ``tileprof``; ``python`` runs ``-m MODULE …`` and ``FILE …``.
    """

    path: Path
    python: Path


@contextlib.contextmanager
def commands(folder: Path, libraries: Sequence[str] = HEAVY) -> Iterator[Commands]:
    """Provide programs that start with ``libraries`` imported, as long as the context lasts.

    Processes that give the same ``folder`` share one process that forks: the first starts it, and it ends with the
    last.
    """
    users = folder / "users"
    with _locked(users):
        if not users.exists():
            _start(folder, users, libraries)
        user = os.open(users, os.O_WRONLY | os.O_NONBLOCK)
    try:
        yield Commands(folder / "path", folder / "python")
    finally:
        os.close(user)


@contextlib.contextmanager
def _locked(users: Path) -> Iterator[None]:
    with users.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start(folder: Path, users: Path, libraries: Sequence[str]) -> None:
    """Write the client programs and start the process that forks; return when it is ready."""
    address = folder / "warm.socket"
    (folder / "path").mkdir(exist_ok=True)
    for place in (folder / "path" / "tileprof", folder / "python"):
        text = textwrap.dedent(_STARTER).format(address=str(address), name=place.name)
        place.write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
        place.chmod(0o755)
    address.unlink(missing_ok=True)
    os.mkfifo(users)
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # the process that forks must have one thread
    with os.fdopen(os.open(users, os.O_RDONLY | os.O_NONBLOCK), "rb") as stdin:
        subprocess.run(
            [sys.executable, "-m", __name__, str(address), str(users), *libraries],
            cwd=Path(__file__).parents[2], env=alone, stdin=stdin, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip


def serve(address: str, users: str, *libraries: str) -> None:
    """Fork a copy for each client until no process has the pipe ``users`` open; then end all copies.

    The called process ends as soon as clients can connect; a process that it forks serves them.
    """
    for name in libraries:
        with contextlib.suppress(ImportError):  # a program that needs it sets it itself
            __import__(name)
    if "tileprof.record.model.recording" in sys.modules:
        _read_what_recordings_look_up()
        _load_what_commands_compile()
    gc.collect()
    gc.freeze()  # a copy that collected garbage would copy the pages of all objects
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            _end_with_the_last(Path(users))
            continue
        caller, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(caller)
        caller.close()


def _end_with_the_last(users: Path) -> None:
    """End this process and its copies, unless another process has begun to use them meanwhile."""
    with _locked(users):
        if select.select([sys.stdin], [], [], 0)[0]:
            users.unlink()
            os.killpg(os.getpid(), signal.SIGKILL)


def _load_what_commands_compile() -> None:
    """Report a small trace, so that its imports and compiled functions are loaded."""
    from tests.support import compile_once
    from tileprof.cli.entry import main

    compile_once.install()
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        main(["report", str(Path(__file__).parents[1] / "golden" / "gemm_pair.tileprof")])


def _read_what_recordings_look_up() -> None:
    """Import all tile models, and read the measured tables of the GPU that is modelled by default."""
    from tileprof import devices
    from tileprof.record.model import tiles
    from tileprof.record.model.tables import places

    tiles.load_all()
    device = devices.get("H200")
    for path in (places.FOLDER / device.name.lower()).glob("*.npz"):
        table = places.table(path.stem.partition("-")[0], device)
        if table is not None:
            table.row([0] * table.keys.shape[1])  # sorts it


def _attend(caller: socket.socket) -> None:
    """Run the client's program in a copy, pass signals on to it, report its exit code, and end the copy if the client
    ends.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, files, _, _ = socket.recv_fds(caller, 8, 3)
    text = b""
    while len(text) < int(length):
        text += caller.recv(_MOST_BYTES)
    copy = os.fork()
    if copy == 0:
        caller.close()
        _become(files, *json.loads(text.decode("utf-8", "surrogateescape")))
    ended_copy = 0
    ends = [os.pidfd_open(copy)] if hasattr(os, "pidfd_open") else []
    while not ended_copy:
        if caller in select.select([caller, *ends], [], [], None if ends else 0.02)[0]:
            numbers = caller.recv(1)  # none: the client was killed
            os.kill(copy, numbers[0] if numbers else signal.SIGKILL)
            if not numbers:
                os._exit(0)
        ended_copy, status = os.waitpid(copy, os.WNOHANG)
    caller.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(files: list[int], name: str, words: list[str], folder: str, environment: dict[str, str]) -> None:
    """Replace this process's arguments, environment, folder and files by those of the client."""
    os.setpgid(0, 0)
    with contextlib.suppress(AttributeError):  # where the system has this call: end with the parent
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code: object = 0
    try:
        _customize(folder)
        if name == "tileprof":
            sys.argv = ["tileprof", *words]
            from tileprof.cli.entry import main

            code = main()
        elif words[0] == "-m":
            sys.argv = words[1:]
            sys.path[0] = folder
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - as an interpreter does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # what an interpreter does at its end
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(int(code or 0))  # type: ignore[call-overload]


def _customize(folder: str) -> None:
    """Import a ``sitecustomize`` that PYTHONPATH names, and run what it registers for libraries that are already
    imported.

    An interpreter would import the libraries later. `tileprof.record.cuda.inprocess.tileprof_after` keeps what is to
    run then in finders with a ``name`` and an ``action``.
    """
    path = [str(Path(folder, p)) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if not any(Path(p, "sitecustomize.py").is_file() for p in path):
        return
    sys.path[1:1] = path
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")
    waiting = [f for f in sys.meta_path if hasattr(f, "action") and getattr(f, "name", None) in sys.modules]
    for finder in waiting:
        sys.meta_path.remove(finder)
        finder.action(sys.modules[finder.name])  # type: ignore[attr-defined]


if __name__ == "__main__":
    serve(*sys.argv[1:])
