"""Files that never end, or never begin, are read as empty, and others completely."""

import os
import threading
from pathlib import Path

import pytest

from tileprof.devices import get
from tileprof.errors import UserError
from tileprof.named_file import read_named
from tileprof.record.times import read_times


def test_files_are_read_to_a_limit_and_what_never_ends_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 1000)
    assert read_named(path, 1_000_000) == path.read_bytes()
    assert read_named(path, 99_999) == path.read_bytes()[:100_000]
    os.mkfifo(tmp_path / "pipe")
    assert read_named(tmp_path / "pipe", 10) == b"", "no writer"
    assert read_named(Path("/dev/zero"), 10) == b""
    with pytest.raises(IsADirectoryError):
        read_named(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        read_named(tmp_path / "none", 10)


def test_a_pipe_with_a_writer_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    text = b"a" * 300_000

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(text)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_named(Path(f"/dev/fd/{reading}"), 1_000_000) == text
    writer.join()
    os.close(reading)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_devices_and_times_are_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.json"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    for read in (read_times, get):
        with pytest.raises(UserError):
            read(path)
