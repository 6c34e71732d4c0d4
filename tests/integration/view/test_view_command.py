"""`tileprof view` as a user types it."""

import subprocess
from pathlib import Path

import pytest

from tests.support.small_programs import Program, transformer


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return transformer(tmp_path_factory.mktemp("view") / "small", layers=2)


@pytest.fixture
def view(warm):
    """Run the command in a folder."""

    def run(*arguments, cwd=None):
        command = [warm.path / "tileprof", "view", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)

    return run


def test_the_page_is_written_to_the_current_folder_and_its_path_printed(view, trace, tmp_path):
    result = view(trace, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "")
    assert "small.html" in result.stderr
    assert (tmp_path / "small.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_is_overwritten_without_force(view, trace, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("mine")
    refusal = view(trace, "-o", page, "--quick")
    assert refusal.returncode == 2
    assert "without --force" in refusal.stderr
    assert page.read_text() == "mine"
    assert view(trace, "-o", page, "--force", "--quick").returncode == 0
    assert page.read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize("place", ["no/such/folder/page.html", "."])
def test_a_place_that_takes_no_page_is_named(view, trace, tmp_path, place):
    result = view(trace, "-o", place, cwd=tmp_path)
    assert result.returncode == 2
    assert "folder" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("/dev/null", "not a plain file"),
        ("-", "stdout is not written to"),
        ("TRACE/manifest.json", "lies in the trace"),
    ],
)
def test_even_force_replaces_plain_files_only_and_nothing_of_a_trace(view, trace, tmp_path, place, says):
    content = (trace / "manifest.json").read_bytes()
    result = view("--force", "-o", place.replace("TRACE", str(trace)), trace, cwd=tmp_path)
    assert result.returncode == 2
    assert says in result.stderr
    assert (trace / "manifest.json").read_bytes() == content
    assert not Path("/dev/null").is_file()
    assert not list(tmp_path.iterdir())


def test_a_trace_without_launches_has_a_page_and_a_sentence(view, tmp_path):
    result = view(Program(tmp_path / "empty").writer.close(), "--quick", cwd=tmp_path)
    assert result.returncode == 0
    assert "empty.tileprof holds no launches to draw: nothing that runs on a GPU was recorded\n" in result.stderr
    assert (tmp_path / "empty.html").is_file()


def test_options_may_stand_between_the_trace_and_the_policy(view, trace, tmp_path):
    result = view(trace, "--quick", "-o", "page.html", "no-such-policy.json", cwd=tmp_path)
    assert result.returncode == 2
    assert "no-such-policy.json" in result.stderr
    assert "unrecognized" not in result.stderr


def test_a_path_that_is_no_trace_is_refused_before_anything_is_written(view, tmp_path):
    result = view(tmp_path / "nothing.tileprof", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_stages_are_bound_only_where_there_is_a_policy(view, trace, tmp_path):
    result = view(trace, "--pair", "1:2", cwd=tmp_path)
    assert result.returncode == 2
    assert "are for a policy; give its file" in result.stderr
