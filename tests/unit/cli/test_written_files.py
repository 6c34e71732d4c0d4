"""Files that verbs write: which are overwritten, and which never are."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from tileprof.cli.arguments.target import check_file
from tileprof.devices import get
from tileprof.errors import UserError
from tileprof.policy.emit.folder import check_free
from tileprof.trace import TraceWriter


@pytest.fixture
def trace(tmp_path):
    return TraceWriter(tmp_path / "t", recorder="model", command=["x"], device=get("H200")).close()


def test_a_plain_file_is_overwritten_with_force_alone(tmp_path):
    target = tmp_path / "page.html"
    check_file(target, force=False)
    target.write_text("mine")
    check_file(target, force=True)
    with pytest.raises(UserError, match="without --force"):
        check_file(target, force=False)


def test_a_pipe_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a plain file"):
        check_file(tmp_path / "pipe", force=True)


def test_a_place_that_takes_no_files_is_found_before_the_work(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"^could not write /proc/page\.html: "):
        check_file(Path("/proc/page.html"), force=False)
    check_file(tmp_path / "page.html", force=False)
    assert not list(tmp_path.iterdir())

    def read_only(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    with pytest.raises(UserError, match=r"page\.html: Read-only file system$"):
        check_file(tmp_path / "page.html", force=False)


@pytest.mark.parametrize("inside", ["manifest.json", "new.html", "launches/new.html"])
def test_nothing_is_written_into_a_trace(trace, inside):
    with pytest.raises(UserError, match="lies in the trace"):
        check_file(trace / inside, force=True)


def test_a_link_into_a_trace_is_seen_through(trace, tmp_path):
    (tmp_path / "link.html").symlink_to(trace / "manifest.json")
    with pytest.raises(UserError, match="lies in the trace"):
        check_file(tmp_path / "link.html", force=True)


def test_an_export_does_not_go_into_a_trace(trace):
    for folder in (trace, trace / "out"):
        with pytest.raises(UserError, match="lies in the trace"):
            check_free(folder, ["policy.json"], force=True)
