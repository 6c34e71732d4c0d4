"""Two libraries that use one name for different things, loaded into one process."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

from tests.support.shared_libraries import SHARED

ONE = 'namespace emulated { inline thread_local int state = 3; } extern "C" int state() { return ++emulated::state; }'
OTHER = 'namespace emulated { inline int state = 70; } extern "C" int state() { return ++emulated::state; }'


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_libraries_in_one_process_keep_their_own_state(tmp_path) -> None:
    libraries = []
    for name, source in (("one", ONE), ("same", OTHER), ("other", OTHER)):
        (tmp_path / f"{name}.cpp").write_text(source)
        subprocess.run(["g++", "-std=c++17", *SHARED, f"{name}.cpp", "-o", f"{name}.so"], cwd=tmp_path, check=True)
        libraries.append(ctypes.CDLL(str(tmp_path / f"{name}.so")))
    assert [library.state() for library in (*libraries, *libraries)] == [4, 71, 71, 5, 72, 72]
