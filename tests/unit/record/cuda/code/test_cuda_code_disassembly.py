"""Kernels are disassembled once, and what is kept of that is believed only if it is whole and the user's own."""

import hashlib
import os
import resource
import shutil
import subprocess
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.record.cuda.code.cubins import compiled, section
from tests.unit.record.cuda.optional_tools import path_or_none
from tileprof.record.cuda import machine_code
from tileprof.record.cuda.code import disassembly
from tileprof.record.cuda.code.disassembly import disassembled
from tileprof.record.cuda.code.instructions import parse
from tileprof.record.cuda.code.proofs import Launch, Proofs
from tileprof.record.cuda.installation import locate

CODE = b"\x07" * 32
OTHER = b"\x08" * 32
TOOL = """#!/bin/sh
printf x >> '{count}'
[ "$1 $2" = "--binary SM90a" ] || exit 1
byte=$(od -An -tu1 -N1 "$3") size=$(wc -c < "$3") place=0
[ $byte -ne 255 ] || exit 1
[ $byte -ne 254 ] || size=16
while [ $place -lt $size ]; do
    printf '        /*%04x*/                   MOV R1, 0x%x ;  /* 0x0000000100017802 */\\n' $place $byte
    place=$((place + 16))
done
[ $byte -ne 253 ] || exit 1
# {version}
"""
UNREADABLE = b"\xff" * 32
HALF_READ = b"\xfe" * 32
READ_WITH_ERRORS = b"\xfd" * 32


def tool_at(path, count, version="1.0"):
    """Write a disassembler whose instructions move the code's first byte, and that counts in a file how often it is
    started.
    """
    path.write_text(TOOL.format(count=count, version=version))
    path.chmod(0o755)
    return path


@pytest.fixture
def tool(tmp_path):
    return tool_at(tmp_path / "nvdisasm", tmp_path / "count")


@pytest.fixture
def starts(tmp_path):
    """Return a function that tells how often the tool has been started since it was last asked."""
    count = tmp_path / "count"

    def since_last():
        number = len(count.read_text()) if count.exists() else 0
        count.write_text("")
        return number

    return since_last


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the folder of disassemblies, which is not made yet."""
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "disassembly"


def moves(code):
    """Return what the disassembler above reads of this code."""
    return parse("\n".join(f"/*{n:04x}*/ MOV R1, {code[0]:#x} ;" for n in range(0, len(code), 16)))


def file_of(folder, code, tool):
    """Return the file that a kernel adds to the folder."""
    before = set(folder.iterdir()) if folder.exists() else set()
    disassembled(tool, code)
    (file,) = set(folder.iterdir()) - before
    return file


def content(name, compressed):
    return hashlib.sha256(name.encode() + compressed).digest() + compressed


def test_the_tool_reads_a_kernel_once(tool, starts):
    assert [disassembled(tool, CODE), starts()] == [moves(CODE), 1]
    assert [disassembled(tool, CODE), starts()] == [moves(CODE), 0]
    assert [disassembled(tool, OTHER), starts()] == [moves(OTHER), 1]
    assert [disassembled(tool, CODE + CODE), starts()] == [moves(CODE + CODE), 1]
    assert [disassembled(tool, CODE), disassembled(tool, OTHER), starts()] == [moves(CODE), moves(OTHER), 0]


def test_a_later_recording_starts_no_tool(tmp_path, tool, starts):
    launch = Launch(CODE, (), 0x210, bytes(8), b"\x01", (1, 1, 1), (32, 1, 1))
    for number in (1, 0):
        Proofs(tool).here(launch)
        assert starts() == number
    (tmp_path / "code-3.bin").write_bytes(OTHER)
    for number in (1, 0):
        machine_code.Kernels(tmp_path, tool).reached(3, {})
        assert starts() == number


def test_what_the_tool_cannot_read_is_not_kept(tool, starts, folder):
    for code in (UNREADABLE, HALF_READ, READ_WITH_ERRORS):
        assert [disassembled(tool, code), disassembled(tool, code), starts()] == [[], [], 2]
    assert not folder.exists()


def test_another_tool_reads_again_and_a_copy_does_not(tmp_path, tool, starts):
    """Installers may give files of two versions the same size and date, and those of one version different dates."""
    disassembled(tool, CODE)
    other = tool_at(tmp_path / "other", tmp_path / "count", "1.1")
    shutil.copystat(tool, other)
    copy = tool_at(tmp_path / "copy", tmp_path / "count")
    os.utime(copy, (1, 1))
    for path, number in ((other, 1), (copy, 0), (tool, 0)):
        starts()
        assert [disassembled(path, CODE), starts()] == [moves(CODE), number]


def test_a_tool_that_is_updated_in_place_reads_again(tmp_path, tool, starts):
    disassembled(tool, CODE)
    tool_at(tool, tmp_path / "count", "1.1")
    os.utime(tool, (1, 1))
    disassembled(tool, CODE)
    assert starts() == 2


def test_files_that_are_damaged_or_truncated_are_replaced(tool, starts, folder):
    file = file_of(folder, CODE, tool)
    written = file.read_bytes()
    damaged = [written[:n] + bytes([written[n] ^ 1 << n % 8]) + written[n + 1 :] for n in range(len(written))]
    truncated = [written[:n] for n in range(0, len(written), 5)]
    for wrong in [*damaged, *truncated, written + b"\0", bytes(len(written))]:
        file.write_bytes(wrong)
        starts()
        assert [disassembled(tool, CODE), starts(), file.read_bytes()] == [moves(CODE), 1, written]


def test_the_file_of_another_kernel_is_not_believed(tool, starts, folder):
    file, other = file_of(folder, CODE, tool), file_of(folder, OTHER, tool)
    shutil.copy(other, file)
    starts()
    assert [disassembled(tool, CODE), starts()] == [moves(CODE), 1]


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ("/*0000*/ NOP ;\n/*0010*/ NOP ;", 0),
        ("/*0000*/ NOP ;", 1),
        ("/*0010*/ NOP ;\n/*0000*/ NOP ;", 1),
        ("/*0000*/ NOP ;\n/*0010*/ NOP ;\n/*0020*/ NOP ;", 1),
        ("", 1),
    ],
    ids=["all", "one of two", "in another order", "three", "none"],
)
def test_lines_count_that_are_all_of_the_code(tool, starts, folder, lines, number):
    file = file_of(folder, CODE, tool)
    file.write_bytes(content(file.name, zlib.compress(lines.encode())))
    starts()
    assert [disassembled(tool, CODE), starts()] == [moves(CODE) if number else parse(lines), number]


@pytest.mark.parametrize("written", [b"not compressed", zlib.compress(b"\xff")], ids=["not compressed", "no text"])
def test_content_that_is_no_lines_is_replaced(tool, starts, folder, written):
    file = file_of(folder, CODE, tool)
    file.write_bytes(content(file.name, written))
    starts()
    assert [disassembled(tool, CODE), disassembled(tool, CODE), starts()] == [moves(CODE), moves(CODE), 1]


def test_a_tool_that_is_no_file_here_reads_every_time(tool, starts, folder, monkeypatch):
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    name = Path(tool.name)
    assert [disassembled(name, CODE), disassembled(name, CODE), starts()] == [moves(CODE), moves(CODE), 2]
    assert not folder.exists()


def test_a_folder_that_everyone_may_write_is_neither_read_nor_written(tool, starts, folder):
    disassembled(tool, CODE)
    kept = set(folder.iterdir())
    for place in (folder, folder.parent):
        mode = place.stat().st_mode
        place.chmod(0o777)
        starts()
        assert [disassembled(tool, CODE), disassembled(tool, OTHER), starts()] == [moves(CODE), moves(OTHER), 2]
        assert set(folder.iterdir()) == kept
        place.chmod(mode)
    assert [disassembled(tool, CODE), starts()] == [moves(CODE), 0]


def test_a_folder_of_another_user_is_neither_read_nor_written(tool, starts, folder, monkeypatch):
    disassembled(tool, CODE)
    kept = set(folder.iterdir())
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    starts()
    assert [disassembled(tool, CODE), disassembled(tool, OTHER), starts()] == [moves(CODE), moves(OTHER), 2]
    assert set(folder.iterdir()) == kept


def test_a_new_folder_is_the_users_alone(tool, folder):
    disassembled(tool, CODE)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_without_a_folder_that_can_be_written_the_tool_reads_every_time(tmp_path, tool, starts, monkeypatch, capfd):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path / "file" / "cache"))
    assert [disassembled(tool, CODE), disassembled(tool, CODE), starts()] == [moves(CODE), moves(CODE), 2]
    for name in ("TILEPROF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert [disassembled(tool, CODE), disassembled(tool, CODE), starts()] == [moves(CODE), moves(CODE), 2]
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_can_only_be_read_is_used(tool, starts, monkeypatch):
    disassembled(tool, CODE)

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(disassembly.os, "utime", refuse)
    assert [disassembled(tool, CODE), starts()] == [moves(CODE), 1]


def test_a_full_disk_leaves_nothing(tool, starts, folder):
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))  # room for the code, but not for its lines
    try:
        found = disassembled(tool, CODE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [found, starts(), list(folder.iterdir())] == [moves(CODE), 1, []]


def test_a_file_appears_whole_or_not_at_all(tool, folder, monkeypatch):
    def refuse(*_):
        raise OSError

    monkeypatch.setattr(Path, "replace", refuse)
    assert disassembled(tool, CODE) == moves(CODE)
    assert list(folder.iterdir()) == []


def test_the_least_recently_used_files_are_removed(tool, starts, folder, monkeypatch):
    monkeypatch.setattr(disassembly, "MOST_FILES", 3)
    codes = [bytes([n]) * 16 for n in range(3)]
    files = [file_of(folder, code, tool) for code in codes]
    (folder / "a folder").mkdir()
    for age, file in enumerate(files):
        os.utime(file, (1000 + age, 1000 + age))
    disassembled(tool, codes[0])
    new = file_of(folder, CODE, tool)
    assert set(folder.iterdir()) == {files[0], files[2], new, folder / "a folder"}
    abandoned = folder / "writing-abandoned"  # by a process that was killed
    abandoned.write_text("")
    os.utime(abandoned, (1, 1))
    for code in (OTHER, OTHER + OTHER):
        disassembled(tool, code)
    assert not abandoned.exists()
    starts()
    assert [disassembled(tool, OTHER + OTHER), starts()] == [moves(OTHER + OTHER), 0]


def test_two_threads_that_write_at_once_keep_both(tool, starts, folder, monkeypatch):
    both, replace = threading.Barrier(2, timeout=60), Path.replace
    monkeypatch.setattr(Path, "replace", lambda *paths: (both.wait(), replace(*paths)))
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda code: disassembled(tool, code), [CODE, OTHER]))
    starts()
    assert [disassembled(tool, CODE), disassembled(tool, OTHER), starts()] == [moves(CODE), moves(OTHER), 0]
    assert len(list(folder.iterdir())) == 2


def test_threads_that_ask_at_once_get_the_same_and_leave_one_file_each(tool, folder):
    codes = [CODE, OTHER] * 8
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda code: disassembled(tool, code), codes)) == [moves(code) for code in codes]
    assert len(list(folder.iterdir())) == 2


def test_what_is_kept_is_what_the_real_tool_prints(tmp_path, monkeypatch):
    real = locate.nvdisasm()
    if real is None or path_or_none(locate.nvcc) is None:
        pytest.skip("needs nvcc and nvdisasm")
    text = "__global__ void k(float* a, int n) { for (int i = threadIdx.x; i < n; i += 32) a[i] = sinf(a[i]) / n; }"
    code = section(compiled(tmp_path, "k", f'extern "C" {text}', "-arch=sm_90").read_bytes(), ".text.k")
    (tmp_path / "code").write_bytes(code)
    command = [real, "--binary", "SM90a", tmp_path / "code"]
    printed = parse(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(printed) == len(code) // 16 > 100
    assert disassembled(real, code) == printed
    monkeypatch.setattr(disassembly.subprocess, "run", lambda *_, **__: pytest.fail("the tool is started again"))
    assert disassembled(real, code) == printed
