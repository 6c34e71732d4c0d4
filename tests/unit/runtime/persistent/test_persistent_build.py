"""The persistent kernel compiles for sm_90a without a GPU, once; a refusal says what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tileprof import building
from tileprof.errors import UserError
from tileprof.runtime.measuring.cases import convolution_pair, gated_mlp, gelu_mlp
from tileprof.runtime.persistent import persistent_build
from tileprof.runtime.persistent.kernel_source import CUBIN
from tileprof.runtime.persistent.plan import Plan, arranged
from tileprof.runtime.persistent.source import SHARED_BYTES, Layout, Options, header
from tileprof.runtime.persistent.supported import stage_plans

try:
    persistent_build.nvcc()
except UserError:
    pytest.skip("needs nvcc", allow_module_level=True)


def plan(chain, split, abreast=(False, False)) -> Plan:
    """Return a plan whose compiled constants depend on stages and split alone."""
    none = np.zeros(1, np.int32)
    return Plan(split, 1, arranged(stage_plans(chain), abreast, split), none, none, none, none, none, none, 0, none)


PLANS = {
    "products, split, 64 rows": plan(gelu_mlp(64, (64, 208), (64, 208)), 4),
    "products, 128 rows": plan(gelu_mlp(512, (128, 192), (128, 256)), 1),
    "gated products": plan(gated_mlp(128, (128, 88), (128, 192)), 2),
    "gated products, abreast": plan(gated_mlp(64, (64, 384), (64, 144)), 4, (True, False)),
    "high gated products, abreast": plan(gated_mlp(128, (128, 384), (128, 288)), 4, (True, True)),
    "convolutions": plan(convolution_pair(8, 56, 64, (112, 64)), 1),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path))
    return tmp_path


IN_THE_GATE = {"products, split, 64 rows", "high gated products, abreast", "convolutions"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_THE_GATE else [pytest.mark.nightly]) for name in PLANS]
)
def test_no_kernel_spills_a_register_or_serialises_its_products(name) -> None:
    message = (persistent_build.compiled(PLANS[name], Options()) / "compiler.txt").read_text()
    assert re.findall(r"(\d+) bytes spill", message) == ["0", "0"]
    assert "C75" not in message  # the message of ptxas about products that it had to serialise


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    """Let each build make an empty file instead of taking a second; return the commands."""
    result: list[list[str]] = []

    def run(command: list[str], what: str) -> str:
        result.append(command)
        if "-cubin" in command:
            Path(command[command.index("-o") + 1]).touch()
        return what

    monkeypatch.setattr(building, "run", run)
    return result


def test_a_build_is_found_again_and_other_options_make_another(commands) -> None:
    folders = [persistent_build.compiled(PLANS["convolutions"], Options(delay_ns=ns)) for ns in (0, 0, 100)]
    assert folders[0] == folders[1] != folders[2]
    assert sum("-cubin" in command for command in commands) == 2


@pytest.mark.usefixtures("commands")
def test_a_broken_build_names_the_folder_to_delete() -> None:
    folder = persistent_build.compiled(PLANS["convolutions"], Options())
    (folder / CUBIN).unlink()
    with pytest.raises(UserError, match=f"The build in {folder} is broken"):
        persistent_build.compiled(PLANS["convolutions"], Options())


def test_a_cache_that_cannot_be_written_is_named_with_what_to_set(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be built in .*/file/persistent \(.*\)\. Set TILEPROF_CACHE"):
        persistent_build.compiled(PLANS["convolutions"], Options())


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("#!/bin/sh\n[ $1 = --version ] || kill -9 $$", r"exit code -9\):\nit said nothing"),
        ("#!/bin/sh\ntrue", "succeeded but made no kernel.cubin"),
        ("no script", "cannot be started: Exec format error"),
    ],
)
def test_a_compiler_that_is_none_or_is_killed_leaves_no_build(tmp_path, monkeypatch, script, message) -> None:
    fake = tmp_path / "bin" / "nvcc"
    fake.parent.mkdir()
    fake.write_text(script)
    fake.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=message):
        persistent_build.compiled(PLANS["convolutions"], Options())
    assert not list((tmp_path / "persistent").glob("*"))


def test_a_source_that_does_not_compile_is_reported_in_the_compilers_words(tmp_path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("extern ice")
    with pytest.raises(UserError, match="ice"):
        replace(persistent_build.KERNEL, path=source).compiled("")
    assert not list((tmp_path / "persistent").iterdir())


@pytest.mark.parametrize("name", PLANS)
def test_rings_and_buffers_fit_a_block(name) -> None:
    layout = Layout.of(PLANS[name], Options())
    used_bytes = (
        layout.a_slots * layout.a_bytes + layout.b_slots * layout.b_bytes + layout.buffers * layout.buffer_bytes
    )
    assert used_bytes <= SHARED_BYTES - 2048
    assert min(layout.a_slots, layout.b_slots) >= 2
    assert layout.a_bytes % 1024 == layout.b_bytes % 1024 == 0


def test_delays_and_time_limits_are_compiled_in() -> None:
    text = header(PLANS["convolutions"], Options(delay_ns=300, timeout_ns=5000))
    assert "DELAY_NS = 300;" in text
    assert "TIMEOUT_NS = 5000;" in text


def constants(text, stage) -> dict[str, int]:
    """Return the whole numbers of a header for a stage."""
    members = text.split(f"template <> struct Stage<{stage}> {{")[1].split("};")[0]
    return {name: int(value) for name, value in re.findall(r"int (\w+) = (-?\d+);", members)}


@pytest.mark.parametrize("split", [2, 4, 8])
@pytest.mark.parametrize(
    "chain", [gelu_mlp(1, (1, 96), (1, 208)), gated_mlp(128, (128, 88), (128, 208)), gated_mlp(40, (40, 72), (40, 16))]
)
def test_every_sum_is_finished_by_one_block_and_a_buffer_holds_a_pass(chain, split) -> None:
    result = plan(chain, split)
    text, layout = header(result, Options()), Layout.of(result, Options())
    for number in range(2):
        stage = constants(text, number)
        passes = range(stage["PASSES"] * stage["PASS_GROUPS"])
        finished_parts = [part * stage["OWN"] + own for part in range(split) for own in passes if own < stage["OWN"]]
        assert sorted(g for g in finished_parts if g < stage["GROUPS"]) == list(range(stage["GROUPS"]))
        assert stage["GROUPS"] * 8 * stage["SEGMENTS"] == stage["COLUMNS"]
        assert (split - 1) * stage["PASS_GROUPS"] * stage["MINE"] * stage["WARPS"] * 512 <= layout.buffer_bytes
        assert stage["PASSES"] == 1 or layout.buffers == 2


def test_few_rows_ask_memory_for_so_much_and_no_more() -> None:
    chain = gelu_mlp(16, (16, 96), (16, 192))
    result = replace(plan(chain, 2), clusters=66)
    for number, (under_way, ahead) in enumerate([(3, 1), (3, 1)]):
        stage = constants(header(result, Options()), number)
        assert (stage["UNDER_WAY"], stage["UNDER_WAY_AHEAD"]) == (under_way, ahead)
    for other in (replace(result, stages=stage_plans(gelu_mlp(128, (64, 96), (64, 96)))), PLANS["convolutions"]):
        assert constants(header(other, Options()), 0)["UNDER_WAY"] == 0
    assert constants(header(result, Options(under_way_bytes=0)), 0)["UNDER_WAY"] == 0
