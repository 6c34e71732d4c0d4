"""Machine code of an earlier process is reused only if all the code in it is unchanged."""

import os
import subprocess

import pytest

from tests.support.warm import commands

OUTER = """
import sys

import numba

sys.dont_write_bytecode = True
numba.config.reload_config()  # a copy of a process that had another environment

from tileprof.analysis.bounds.compiled import compiled, in_cache
from inner import FACTOR, add

@compiled
def outer(n):
    return FACTOR * add(n)

if __name__ == "__main__":
    print(in_cache(outer), outer(3))
"""
INNER = """
from tileprof.analysis.bounds.compiled import compiled

FACTOR = {factor}

@compiled
def add(n):
    return n + {added}
"""


@pytest.fixture(scope="module")
def python_with_numba(tmp_path_factory):
    with commands(tmp_path_factory.mktemp("warm"), ["tileprof.analysis.bounds.compiled"]) as programs:
        yield programs.python


@pytest.fixture
def run(tmp_path, python_with_numba):
    """Return what a new process prints when the called module has this source."""
    (tmp_path / "outer.py").write_text(OUTER)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def output_of(factor, added):
        (tmp_path / "inner.py").write_text(INNER.format(factor=factor, added=added))
        command = [python_with_numba, tmp_path / "outer.py"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    return output_of


def test_a_change_in_another_module_is_compiled(run):
    assert run(factor=2, added=1) == ["False", "8"]
    assert run(factor=2, added=1) == ["True", "8"]
    assert run(factor=2, added=5) == ["False", "16"]
    assert run(factor=7, added=5) == ["False", "56"]
