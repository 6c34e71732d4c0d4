"""Counters of the persistent kernel work for as long as a process lives, beyond the range of 32 bits."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tileprof.runtime.persistent.persistent_build import SOURCES

MAIN = """
#include <cstdlib>
using s32 = int;
using u32 = unsigned;
#define __device__ __attribute__((noinline))
#define __forceinline__
{function}
int main(int, char** given) {{ return reached(std::strtol(given[1], 0, 10), std::strtol(given[2], 0, 10)); }}
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_a_semaphore_is_awaited_beyond_the_largest_number(tmp_path) -> None:
    """A compiler may turn the difference of signed numbers into a comparison; then a wait in one of 2^31 posts would
    return at once.
    """
    match = re.search(
        r"^__device__[^\n]* bool reached\(.*?^}",
        (SOURCES / "semaphore_waits.cuh").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert match
    (tmp_path / "main.cpp").write_text(MAIN.format(function=match[0]))
    subprocess.run(["g++", "-O2", "main.cpp", "-o", "main"], cwd=tmp_path, check=True)
    most = 2**31 - 1
    pairs = {
        (3, 4): 0,
        (4, 4): 1,
        (most, -(2**31)): 0,
        (-(2**31), most): 1,
        (most - 5, -(2**31) + 5): 0,
        (-3, 2): 0,
        (2, -3): 1,
    }
    message = {pair: subprocess.run([tmp_path / "main", *map(str, pair)], check=False).returncode for pair in pairs}
    assert message == pairs
