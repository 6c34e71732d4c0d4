"""The compiler's output for posts and waits on sm_90: every acquire and release is there, and loads stay behind the
waits.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SYNCHRONISES = re.compile(r"ld\.acquire|ld\.relaxed|nanosleep|atom\.|(?<![a-z])red\.|griddepcontrol|globaltimer")


@pytest.fixture(scope="module")
def ptx(tmp_path_factory) -> dict[str, list[str]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "TRITON_DEFAULT_FP_FUSION": "1"}
    script = Path(__file__).parent / "compiled_kernels.py"
    result = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return {name: text.splitlines() for name, text in json.loads(result.stdout).items()}


def where(lines: list[str], text: str) -> list[int]:
    return [n for n, line in enumerate(lines) if text in line]


WAITING = [
    "copy",
    "copy, many waits",
    "gemm",
    "gemm, ahead",
    "convolution",
    "sum",
    "norm",
    "softmax with dropout",
    "attention",
    "of a user",
]


@pytest.mark.parametrize("name", WAITING)
def test_every_poll_acquires_at_device_scope(ptx, name) -> None:
    polls = where(ptx[name], "ld.acquire.gpu.global.s32")
    assert len(polls) >= 2, "the first look, and one in the loop"
    assert where(ptx[name], "nanosleep.u32")


@pytest.mark.parametrize("name", WAITING)
def test_a_barrier_stands_between_the_last_poll_and_the_loads_of_what_was_awaited(ptx, name) -> None:
    lines = ptx[name]
    record = where(lines, "atom.relaxed.gpu.global.cas")[-1]
    barrier = next(n for n in where(lines, "bar.sync") if n > record)
    stored = [n for n, line in enumerate(lines) if re.search(r"st\.global\.(v|b)", line)]
    first_data = [n for n in where(lines, "ld.global.v4") + where(lines, "cp.async.cg.shared.global") if n > barrier]
    assert first_data
    assert min(stored) > barrier
    early = [n for n in where(lines, "ld.global.v4") + where(lines, "cp.async.cg.shared.global") if n < barrier]
    assert bool(early) == (name == "gemm, ahead"), "only operands that depend on nothing may come before the wait"


def test_what_is_loaded_ahead_is_the_weights(ptx) -> None:
    """Addresses loaded before the first poll derive from the second parameter, b, and never from the first, a."""
    lines = ptx["gemm, ahead"]
    first_poll = where(lines, "ld.acquire.gpu")[0]
    bases = {
        re.search(r"\[(\w+)_param_(\d+)\]", line)[2]: line.split()[1].rstrip(",")
        for line in lines
        if "_param_" in line and "ld.param.b64" in line
    }
    a = bases["0"]
    tainted = {a}
    for line in lines[:first_poll]:
        words = re.findall(r"%\w+", line)
        if len(words) > 1 and tainted & set(words[1:]) and not line.strip().startswith(("st.", "@")):
            tainted.add(words[0])
        if "ld.global" in line or "cp.async" in line:
            assert not tainted & set(words), line


@pytest.mark.parametrize("name", WAITING)
def test_a_post_is_a_barrier_and_then_a_release(ptx, name) -> None:
    lines = ptx[name]
    (release,) = where(lines, "red.global.gpu.release.add") or where(lines, "atom.global.gpu.release.add")
    last_store = max(n for n, line in enumerate(lines) if re.search(r"st\.global\.(v|b)", line))
    assert any(last_store < n < release for n in where(lines, "bar.sync"))


@pytest.mark.parametrize("name", WAITING)
def test_a_tile_counts_its_run_only_after_every_thread_has_read_the_count(ptx, name) -> None:
    lines = ptx[name]
    record = where(lines, "atom.relaxed.gpu.global.cas")[-1]
    barrier = next(n for n in where(lines, "bar.sync") if n > record)
    (count_lines,) = [n for n in where(lines, "st.global.b32") if "+ 0 ]" in lines[n]]
    assert count_lines > barrier


def test_an_overlapped_kernel_lets_the_next_begin_first_and_waits_for_the_one_before_last(ptx) -> None:
    lines = ptx["gemm"]
    (launch,), (wait,) = where(lines, "griddepcontrol.launch_dependents"), where(lines, "griddepcontrol.wait")
    assert launch < where(lines, "ld.acquire.gpu")[0]
    assert wait > max(where(lines, "st.global"))


@pytest.mark.parametrize("name", ["gemm, behind a grid", "copy, behind a grid"])
def test_a_tile_behind_a_grid_loads_and_stores_nothing_before_the_whole_grid_has_ended(ptx, name) -> None:
    lines = ptx[name]
    wait = where(lines, "griddepcontrol.wait")[0]
    assert where(lines, "griddepcontrol.launch_dependents")[0] < wait
    touches = [n for n, line in enumerate(lines) if re.search(r"(ld|st)\.global|cp\.async\.cg|red\.|atom\.", line)]
    assert touches
    assert min(touches) > wait


def test_below_sm_90_a_block_is_counted_first_and_nothing_needs_programmatic_launch(ptx) -> None:
    lines = ptx["gemm, counted"]
    assert not where(lines, "griddepcontrol")
    count_lines = [
        n for n in where(lines, "red.") + where(lines, "atom.") if "relaxed" in lines[n] and "add" in lines[n]
    ]
    assert count_lines
    assert min(count_lines) < where(lines, "ld.acquire.gpu")[0]


def test_the_wait_kernel_polls_and_counts_its_run(ptx) -> None:
    lines = ptx["hold"]
    assert len(where(lines, "ld.acquire.gpu.global.s32")) >= 2
    assert where(lines, "st.global.b32")


@pytest.mark.parametrize("name", ["copy, no hooks", "gemm, no hooks", "norm, no hooks"])
def test_hooks_that_are_not_used_leave_nothing_behind(ptx, name) -> None:
    text = "\n".join(ptx[name])
    assert SYNCHRONISES.search(text) is None


def test_without_dropout_a_softmax_draws_no_numbers(ptx) -> None:
    assert where(ptx["softmax with dropout"], "mul.hi.u32")
    assert not where(ptx["softmax"], "mul.hi")
    assert ptx["softmax"] == ptx["softmax, seeded"]
