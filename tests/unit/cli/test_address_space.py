"""Below a limit of address space libraries fail in unpredictable ways, so a verb checks it before it loads them."""

import resource
import subprocess
import sys

import pytest

from tileprof.cli import address_space, entry


@pytest.mark.parametrize(("limit", "words"), [(-1, ""), (3 << 30, ""), (1 << 30, "1.0 GiB of addresses (ulimit -v)")])
def test_a_limit_that_is_too_small_is_named(monkeypatch, limit, words):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, -1))
    message = address_space.too_small()
    assert words in message
    assert bool(message) == bool(words)


def test_a_verb_of_ours_is_not_begun_there():
    command = [sys.executable, "-m", "tileprof", "report", "none.tileprof"]
    least = (1 << 30, 1 << 30)
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, least),
    )  # fmt: skip
    assert result.returncode == entry.BAD_USAGE
    assert result.stderr == (
        "tileprof: processes here may have 1.0 GiB of addresses (ulimit -v), and tileprof needs 3: raise that limit\n"
    )


def test_a_recorder_that_fails_there_says_it_and_no_traceback(monkeypatch, capsys):
    def fails(_):
        raise ImportError("libarrow.so: failed to map segment from shared object")

    monkeypatch.setattr(entry, "_run", fails)
    monkeypatch.setattr(address_space, "too_small", lambda: "too few addresses")
    assert entry.main(["record", "x.py"]) == entry.BAD_USAGE
    assert capsys.readouterr().err == "tileprof: too few addresses\n"
