"""Compiling the library that takes over a program's launches, once per machine, into a cache."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tileprof import building
from tileprof.errors import UserError

SOURCES: Final = Path(__file__).parent / "native"
FLAGS: Final = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-toplevel-reorder",
    f"-Wl,--version-script={SOURCES / 'exports.map'}",
    "-Wl,-z,nodelete",
)
LIBRARY: Final = "libtileprof-acs.so"
WHAT: Final = "the library that issues launches out of order"


def units_of_the_library() -> list[Path]:
    """Return the translation units, in a fixed order."""
    return sorted(SOURCES.rglob("*.cpp"))


def as_one_unit(units: Sequence[Path]) -> str:
    """Return the text of one translation unit that holds ``units``: half the time to compile, since the headers of the
    standard library are read once.
    """
    return "".join(f'#include "{path}"\n' for path in units)


def build() -> Path:
    """Return the library, compiled now if no build of it is in the cache.

    Raises `UserError` with the compiler's own words when it fails, and on machines other than x86-64.
    """
    if platform.machine() != "x86_64":
        raise UserError(f"{WHAT} is written for x86-64; this machine is {platform.machine()}")
    compiler = str(building.host_compiler())
    version = building.run([compiler, "--version"], WHAT)
    digest = hashlib.sha256(repr((version, FLAGS)).encode())
    for path in sorted(SOURCES.rglob("*")):
        if not path.is_file():
            continue
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")

    def make(work: Path) -> None:
        whole = work / "library.cpp"
        whole.write_text(as_one_unit(units_of_the_library()), encoding="utf-8")
        building.run([compiler, *FLAGS, f"-I{SOURCES}", str(whole), "-ldl", "-o", str(work / LIBRARY)], WHAT)

    folder = building.cached(building.cache_folder("acs") / digest.hexdigest()[:24], (LIBRARY,), make, WHAT)
    return folder / LIBRARY
