"""A printed command opens the file that it names."""

import os
import shutil
import subprocess

import pytest

from tileprof.shell_words import shell_word

NAMES = [
    b"gpt2.tileprof",
    b"two words",
    b"it's",
    b"bad\xff/t.tileprof",
    b"bad\xffab",
    b"it's\xff \\n",
    b"line\nbreak",
    b"\x1b[31mred",
    "Gerät".encode(),
    "\u200bhidden".encode(),
]


def test_a_plain_name_stays_as_it_is():
    assert shell_word("runs/gpt2.tileprof") == "runs/gpt2.tileprof"


def test_bytes_that_are_no_utf_8_are_written_as_escapes():
    assert shell_word(os.fsdecode(b"bad\xff")) == "$'bad\\xff'"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash reads the words")
@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_the_name_back(name):
    word = shell_word(os.fsdecode(name))
    assert word.isprintable()
    read = subprocess.run(["bash", "-c", f"printf %s {word}"], check=True, capture_output=True)
    assert read.stdout == name
