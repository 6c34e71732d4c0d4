"""A build is made once, completely or not at all, and every failure says what to do."""

from __future__ import annotations

import pytest

from tileprof import building
from tileprof.errors import UserError

FILES = ("a.so", "b.fatbin")


def write(work) -> None:
    for name in FILES:
        (work / name).write_text("made")


def test_what_is_there_is_not_made_again(tmp_path) -> None:
    folder = building.cached(tmp_path / "cache" / "key", FILES, write, "a thing")
    assert sorted(p.name for p in folder.iterdir()) == list(FILES)
    assert building.cached(folder, FILES, lambda _: pytest.fail("made again"), "a thing") == folder


def test_the_build_of_another_process_that_was_first_is_used(tmp_path) -> None:
    folder = tmp_path / "key"

    def beaten(work) -> None:
        write(work)
        folder.mkdir()
        write(folder)
        (folder / "a.so").write_text("theirs")

    assert (building.cached(folder, FILES, beaten, "a thing") / "a.so").read_text() == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


def test_a_build_that_fails_or_lacks_a_file_leaves_nothing(tmp_path) -> None:
    with pytest.raises(UserError, match=r"building a thing succeeded but made no b\.fatbin"):
        building.cached(tmp_path / "key", FILES, lambda work: (work / "a.so").write_text("made"), "a thing")
    with pytest.raises(UserError, match="exit code 1"):
        building.cached(tmp_path / "key", FILES, lambda _: building.run(["false"], "a thing"), "a thing")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_else_is_named(tmp_path) -> None:
    (tmp_path / "key").mkdir()
    with pytest.raises(UserError, match=r"key is broken\. Delete that folder"):
        building.cached(tmp_path / "key", FILES, write, "a thing")


def test_a_cache_that_cannot_be_written_is_named_with_what_to_set(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"A thing cannot be built in .*file.*Set TILEPROF_CACHE"):
        building.cached(tmp_path / "file" / "key", FILES, write, "a thing")


def test_a_compiler_that_cannot_be_started_or_says_nothing_is_named(tmp_path) -> None:
    with pytest.raises(UserError, match=r"`/nowhere/nvcc` cannot be started: No such file"):
        building.run(["/nowhere/nvcc"], "a thing")
    with pytest.raises(UserError, match=r"Building a thing failed in `false` .*:\nit said nothing"):
        building.run(["false"], "a thing")


def test_no_nvcc_says_why_it_is_needed_and_how_to_get_it(tmp_path, monkeypatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(building.sys, "path", [str(tmp_path)])
    monkeypatch.setattr(building.os, "access", lambda *_: False)
    with pytest.raises(
        UserError, match=r"A thing is compiled at first use and found no nvcc .* -m pip install nvidia-cuda-nvcc"
    ):
        building.nvcc("A thing is compiled")


def test_a_build_that_everyone_can_write_is_not_loaded(tmp_path):
    folder = tmp_path / "kind" / "key"
    folder.mkdir(parents=True)
    (folder / "a.so").write_text("")
    assert building.cached(folder, ["a.so"], lambda _: None, "it") == folder
    for place in (folder, folder.parent):
        place.chmod(0o777)
        with pytest.raises(UserError, match="can be written by everyone"):
            building.cached(folder, ["a.so"], lambda _: None, "it")
        place.chmod(0o755)


def test_the_cache_is_the_users_alone(tmp_path):
    folder = tmp_path / "kind" / "key"
    building.cached(folder, ["a.so"], lambda work: (work / "a.so").write_text(""), "it")
    assert folder.parent.stat().st_mode & 0o777 == 0o700
