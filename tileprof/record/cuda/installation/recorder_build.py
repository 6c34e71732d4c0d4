"""Compiling the injection library and its device patches, once per machine, into a cache.

    ~/.cache/tileprof/cuda/<key>/libtileprof.so      host side, plain C ABI
                                 patches.fatbin      device side, one architecture per build
                                 built.json          what it was built from

The key is a hash of everything that went in: compiler versions, flags, our sources and the headers of Compute
Sanitizer.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tileprof import building
from tileprof.record.cuda.installation import locate

SOURCES: Final = Path(__file__).parents[1] / "native"
SHARED: Final = SOURCES.parents[1]
"""The folder of all recorders: patches share a header with kernels that record themselves."""
SHARED_HEADER: Final = SHARED / "source" / "native" / "filter.h"
HOST_FLAGS: Final = ("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")
LINK_FLAGS: Final = ("-ldl", "-Wl,-z,nodelete", f"-Wl,--version-script={SOURCES / 'exports.map'}")
PATCH_FLAGS: Final = ("-std=c++17", "--fatbin", "--compile-as-tools-patch")
LIBRARY: Final = "libtileprof.so"
PATCHES: Final = "patches.fatbin"
WHAT: Final = "the CUDA recorder"


@dataclass(frozen=True, slots=True)
class Built:
    """The two files that a recording needs."""

    library: Path
    patches: Path


def build(architecture: str) -> Built:
    """Return the recorder for GPUs of ``architecture`` ("sm_90"), compiled now if no build of it is in the cache.

    Raises `UserError` with the compiler's own words when it fails.
    """
    nvcc, compiler = locate.nvcc(), locate.host_compiler()
    tools, sanitizer = locate.cuda_include(), locate.sanitizer()
    parts: dict[str, object] = {
        "architecture": architecture,
        "nvcc": _version(nvcc),
        "compiler": _version(compiler),
        "flags": [*HOST_FLAGS, *PATCH_FLAGS],
        "sources": hash_files([*sorted(SOURCES.rglob("*")), SHARED_HEADER]),
        "headers": hash_files([*sorted(sanitizer.include.glob("sanitizer*.h")), tools / "cuda.h"]),
    }

    def make(work: Path) -> None:
        includes = [f"-I{sanitizer.include}", f"-I{tools}", f"-I{SOURCES}"]
        patches = [str(SOURCES / "patches" / "patches.cu"), "-o", str(work / PATCHES)]
        commands = [[str(nvcc), f"-arch={architecture}", *PATCH_FLAGS, *includes, f"-I{SHARED}", *patches]]
        objects = {unit: str(work / f"{unit.stem}.o") for unit in units_of_the_library()}
        compile_unit = [str(compiler), *HOST_FLAGS, *includes, "-c"]
        commands += [[*compile_unit, str(unit), "-o", made] for unit, made in objects.items()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        _run([str(compiler), *HOST_FLAGS, *objects.values(), *LINK_FLAGS, "-o", str(work / LIBRARY)])
        for object_file in objects.values():
            Path(object_file).unlink()
        (work / "built.json").write_text(json.dumps(parts, indent=1))

    folder = building.cached(building.cache_folder("cuda") / key_of(parts), (LIBRARY, PATCHES), make, WHAT)
    return Built(folder / LIBRARY, folder / PATCHES)


def units_of_the_library() -> list[Path]:
    """Return the translation units of the host side, in a fixed order."""
    return sorted(SOURCES.rglob("*.cpp"))


def key_of(parts: dict[str, object]) -> str:
    """Return the cache key of what goes into a build: equal parts give equal keys, whatever their order."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def hash_files(paths: list[Path]) -> str:
    """Return a hash of names and contents."""
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _version(tool: Path) -> str:
    return _run([str(tool), "--version"])


def _run(command: list[str]) -> str:
    return building.run(command, WHAT)
