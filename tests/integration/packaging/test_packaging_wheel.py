"""Checks the content of a wheel, and what can be imported once it is installed."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IGNORED = ("__pycache__", "scripts", "bundle.mjs")

HOMES = {"tileprof": "tileprof", "analysis": "tileprof/analysis", "viz": "tileprof/viz"}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Copy the sources of a wheel, since a build leaves files beside them."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in HOMES:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns(*IGNORED))
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    """Return the wheel, and the files that it should hold."""
    expected = {
        f"{home}/{path.relative_to(source / folder).as_posix()}"
        for folder, home in HOMES.items()
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    out = tmp_path_factory.mktemp("wheel")
    # No isolation: setuptools is in the development environment, so nothing is downloaded.
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(out), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = out.glob("*.whl")
    return path, expected


def test_a_wheel_holds_every_file_of_the_three_folders(wheel):
    path, expected = wheel
    with zipfile.ZipFile(path) as archive:
        names_in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names_in_wheel == expected


def test_a_wheel_has_at_most_eight_megabytes(wheel):
    assert wheel[0].stat().st_size <= 8_000_000, "the tables of the model recorder are most of it"


def test_a_wheel_brings_one_top_level_name(wheel):
    with zipfile.ZipFile(wheel[0]) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tileprof"}


def test_an_installed_wheel_has_analysis_and_viz_inside_tileprof_only(wheel, tmp_path):
    with zipfile.ZipFile(wheel[0]) as archive:
        archive.extractall(tmp_path / "site")
    source = (
        "import importlib.util, tileprof.analysis as a, tileprof.viz as v\n"
        "print(a.__file__, v.__file__, importlib.util.find_spec('analysis'), importlib.util.find_spec('viz'))"
    )
    site = tmp_path / "site" / "tileprof"
    expected = f"{site}/analysis/__init__.py {site}/viz/__init__.py None None\n"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    assert _stdout(source, tmp_path, environment) == expected


def test_an_editable_install_maps_the_folders_too(tmp_path):
    source = "import importlib.util, tileprof.analysis as a; print(a.__file__, importlib.util.find_spec('analysis'))"
    assert _stdout(source, tmp_path, os.environ) == f"{ROOT}/analysis/__init__.py None\n"


def _stdout(source, cwd, environment):
    command = [sys.executable, "-P", "-c", source]
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout
