"""Compiles the library that names PyTorch's operators inside recorded programs, against the headers of their PyTorch.

Called in a process of its own by `inprocess/tileprof_operators.py`, at the first recording with a version of PyTorch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tileprof import building
from tileprof.errors import UserError

SOURCE: Final = Path(__file__).parents[1] / "inprocess" / "operators.cpp"
LIBRARY: Final = "operators.so"
FLAGS: Final = ("-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
"""Without warnings: nearly all of the code is PyTorch's headers."""
WHAT: Final = "the library that names operators"


def build(place: Path, torch: Path, macros: list[str]) -> Path:
    """Return the library in the folder ``place``, compiled now if it is not there.

    ``torch``: the folder of the package; ``macros``: definitions with which it was compiled and on which the layout of
    its classes depends (NDEBUG, the ABI of libstdc++). Raises `UserError` with the compiler's own words when it fails.
    """
    compiler, include, libraries = building.host_compiler(), torch / "include", torch / "lib"
    if not (include / "ATen" / "record_function.h").is_file():
        raise UserError(f"{include} has no headers of PyTorch (ATen/record_function.h)")

    def make(work: Path) -> None:
        includes = [f"-I{include}", *(f"-D{macro}" for macro in macros)]
        linked = [f"-L{libraries}", "-ltorch_cpu", "-lc10"]
        building.run([str(compiler), *FLAGS, *includes, str(SOURCE), *linked, "-o", str(work / LIBRARY)], WHAT)

    return building.cached(place, (LIBRARY,), make, WHAT) / LIBRARY


def main() -> int:
    """Build with the arguments of `build` from the command line; return an exit code."""
    place, torch, *macros = sys.argv[1:]
    try:
        build(Path(place), Path(torch), macros)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
