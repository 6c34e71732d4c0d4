# ruff: noqa: INP001, PTH100, PTH103, PTH113, PTH118, PTH120, PTH123 - runs inside other programs: a script that imports
# little
"""The library that names PyTorch's operators (`operators.cpp`), compiled at first use against the headers of the
program's own PyTorch.

The recorder's Python compiles it, since that of the program may not have tileprof:

    $TILEPROF_OPERATORS/<key>/operators.so
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.abspath(os.path.join(_HERE, *[os.pardir] * 4))
SOURCE = os.path.join(_HERE, "operators.cpp")
LIBRARY = "operators.so"
_BUILD = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from tileprof.record.cuda.installation.operators_build import main; sys.exit(main())"
)


class UnavailableError(Exception):
    """The library cannot be had; the message says why."""


def load(torch: Any) -> Any:
    """Return the library for this PyTorch. Raises `UnavailableError` with the compiler's words where it cannot be
    built.
    """
    folder = os.path.dirname(os.path.abspath(torch.__file__))
    with open(SOURCE, "rb") as file:
        parts = [file.read(), torch.__version__.encode(), str(torch.version.git_version).encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    place = os.path.join(os.environ["TILEPROF_OPERATORS"], key)
    if not os.path.isfile(os.path.join(place, LIBRARY)):
        abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)  # noqa: SLF001 - has no public name
        macros = [f"_GLIBCXX_USE_CXX11_ABI={abi}", *([] if torch.version.debug else ["NDEBUG"])]
        with _alone(place):
            if not os.path.isfile(os.path.join(place, LIBRARY)):
                _build(place, folder, macros)
    try:
        return ctypes.CDLL(os.path.join(place, LIBRARY))
    except OSError as error:
        raise UnavailableError(str(error)) from None


@contextlib.contextmanager
def _alone(place: str) -> Iterator[None]:
    """Let one process compile, and the others that start with it wait."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # the build says why nothing can be written there
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            lock = stack.enter_context(open(f"{place}.lock", "w", encoding="utf-8"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(place: str, torch_folder: str, macros: list[str]) -> None:
    ours = ("TILEPROF_", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(f for f in folders if f and os.path.abspath(f) != _HERE)
    command = [os.environ["TILEPROF_PYTHON"], "-c", _BUILD, _ROOT, place, torch_folder, *macros]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise UnavailableError(process.stderr.strip())
