"""The two commands that a new contributor types first, as far as they run without installing anything."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs GNU make")


@pytest.fixture
def clone(tmp_path):
    """Make a folder with the files that the Makefile reads, without an environment."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(folder, *arguments):
    """Run make without the variables that an outer make passes on."""
    environment = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_make_alone_explains_the_targets(clone):
    lines = make(clone).stdout.splitlines()
    assert {"demo", "test", "lint", "bench"} <= {line.split()[0] for line in lines}


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench"])
def test_every_command_installs_what_it_needs_first(clone, target):
    lines = make(clone, "-n", target).stdout.splitlines()
    install = next(i for i, line in enumerate(lines) if "pip install" in line)
    use = next(i for i, line in enumerate(lines) if ".venv/bin/" in line and "pip install" not in line)
    assert install < use


def test_an_installed_environment_is_left_alone(clone):
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").touch()
    (clone / ".venv" / ".installed").touch()
    assert "pip install" not in make(clone, "-n", "demo").stdout
    os.utime(clone / "constraints.txt", ns=(2**62, 2**62))
    assert "pip install" in make(clone, "-n", "demo").stdout


def test_a_missing_python_ends_in_a_sentence(clone):
    result = make(clone, "PYTHON=python-that-is-not-here", "install")
    assert result.returncode != 0
    assert "make PYTHON=" in result.stderr


def test_a_python_that_is_too_old_ends_in_a_sentence(clone):
    old = clone / "python2"
    old.write_text(
        "#!/bin/sh\nexec python3 -c \"import sys; sys.version_info = (3, 9); sys.version = '3.9.1 x'; $2\"\n"
    )
    old.chmod(0o755)
    result = make(clone, f"PYTHON={old}", "install")
    assert result.returncode != 0
    assert "needs Python 3.11 or newer" in result.stderr
    assert "3.9.1" in result.stderr


def test_the_ci_entry_point_can_be_run():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    result = subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
