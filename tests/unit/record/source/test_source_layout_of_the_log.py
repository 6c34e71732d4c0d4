"""The structs of native/log.h and their Python counterparts agree, field by field."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tileprof.record.cuda.installation import locate
from tileprof.record.source import layout
from tileprof.record.source.machine import INCLUDE
from tileprof.trace import ATOMIC, READ, WRITE

STRUCTS = {"Entry": layout.ENTRY, "Block": layout.BLOCK, "Log": layout.LOG}


@pytest.fixture(scope="module")
def compiler_layout(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Return what the C++ compiler says: size, then offset and size of each field."""
    folder: Path = tmp_path_factory.mktemp("layout")
    lines = []
    for name, dtype in STRUCTS.items():
        numbers = [f"sizeof({name})"]
        numbers += [n for f in dtype.names for n in (f"offsetof({name}, {f})", f"sizeof({name}::{f})")]
        lines.append(f'printf("\\"{name}\\": [{", ".join(["%zu"] * len(numbers))}],", {", ".join(numbers)});')
    body = "\n".join(lines)
    modes = 'printf("\\"modes\\": [%d, %d, %d]}", kRead, kWrite, kAtomic);'
    (folder / "layout.cpp").write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "log.h"\nusing namespace tileprof;\n'
        f'int main() {{ printf("{{");\n{body}\n{modes} }}\n'
    )
    program = folder / "layout"
    subprocess.run([locate.host_compiler(), f"-I{INCLUDE}", folder / "layout.cpp", "-o", program], check=True)
    return json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("name", STRUCTS)
def test_sizes_and_offsets_are_the_same(compiler_layout: dict[str, list[int]], name: str) -> None:
    dtype: np.dtype = STRUCTS[name]
    fields = [n for field in dtype.names for n in (dtype.fields[field][1], dtype[field].itemsize)]
    assert compiler_layout[name] == [dtype.itemsize, *fields]


def test_modes_are_those_of_the_trace(compiler_layout: dict[str, list[int]]) -> None:
    assert compiler_layout["modes"] == [READ, WRITE, ATOMIC]
