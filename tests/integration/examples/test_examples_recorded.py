"""The examples under `tileprof record`: the program's output is unchanged, and the trace is whole and exact."""

import subprocess
import sys
from importlib import import_module

import pytest

from tileprof.analysis import build_graph
from tileprof.trace import load, validate

pytest.importorskip("torch")
pytest.importorskip("transformers")

PROGRAMS = {
    "gpt2": ["--layers", "3", "--tokens", "32"],
    "bert": ["--layers", "1", "--tokens", "16"],
    "resnet38": ["--image", "32", "--channels-last"],
    "vgg19": ["--image", "32"],
    "gru": ["--steps", "3", "--layers", "2", "--hidden", "32"],
    "lstm": ["--steps", "3", "--layers", "2", "--hidden", "32"],
    "deepspeech2": ["--layers", "2", "--hidden", "16", "--frames", "6", "--batch", "1"],
    "gnmt": ["--layers", "3", "--hidden", "16", "--words", "3", "--vocabulary", "40", "--batch", "1"],
    "deepbench": ["--shape", "lstm-512-25", "--steps", "3"],
    "moe": ["--tokens", "32", "--width", "64", "--inner", "96"],
    "cloth": ["--batch", "1", "--size", "12", "--steps", "2"],
    "tree_lstm": ["--leaves", "5", "--width", "16"],
    "dynamic": ["--blocks", "2", "--channels", "16", "--size", "6"],
    "inception": ["--cells", "1", "--channels", "32", "--size", "6"],
}


def record(warm, path, name, *options, fake=False):
    """Return the finished process that records an example with ``options``."""
    ours = [str(warm.path / "tileprof"), "record", *(["--fake"] if fake else []), "-o", str(path), "--"]
    command = [*ours, sys.executable, "-m", f"tileprof.examples.{name}", *options]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def recording(tmp_path_factory, warm):
    """Return (trace, stdout) of a recorded example, recorded once."""
    results = {}

    def get(name):
        if name not in results:
            path = tmp_path_factory.mktemp("recorded") / f"{name}.tileprof"
            result = record(warm, path, name, *PROGRAMS[name])
            assert result.returncode == 0, result.stderr
            results[name] = load(path), result.stdout
        return results[name]

    return get


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recorded_example_prints_what_it_prints_plain_and_leaves_a_whole_exact_trace(name, recording, capsys):
    trace, stdout = recording(name)
    import_module(f"tileprof.examples.{name}").main(PROGRAMS[name])
    assert stdout == capsys.readouterr().out
    assert trace.complete
    assert validate(trace) == []
    conservative = trace.launches[trace.launches.coverage == "conservative"]
    unread = conservative.op.eq("aten::convolution") & conservative.shape_source.isin(["table", "neighbour", "learned"])
    # the trace says so if the name of a measured kernel does not tell its tile
    assert sorted(set(conservative.op[~unread])) == []
    assert build_graph(trace).pairs.raw.sum() > 0


def test_only_what_runs_inside_capture_is_kept(recording):
    trace, _ = recording("gru")
    # Weights and inputs are drawn before the region; the checksum is computed after it.
    assert [op for op in trace.launches.op if "uniform_" in op or "normal_" in op or "abs" in op] == []


def test_a_repeated_layer_is_stored_once_and_each_launch_carries_its_module(recording):
    launches = recording("gpt2")[0].launches
    assert {f"transformer.h.{layer}.mlp.c_fc" for layer in range(3)} <= set(launches.module)
    layers = launches[launches.module.str.startswith("transformer.h.")]
    footprints = layers.groupby(layers.module.str.split(".").str[2]).footprint.apply(tuple)
    assert len(footprints) == 3
    # The first layer may differ, since it reads another producer's data.
    assert footprints["1"] == footprints["2"]


def test_llama_70b_is_recorded_on_fake_tensors(warm, tmp_path):
    path = tmp_path / "llama.tileprof"
    result = record(warm, path, "llama", "--preset", "70b", "--layers", "2", "--tokens", "64", fake=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "llama: output 1x64x32000 bfloat16, checksum none (tensors without values)\n"
    trace = load(path)
    assert validate(trace) == []
    assert 2 * 8192 * 28672 in set(trace.buffers.bytes)


def test_routing_that_fake_tensors_cannot_do_ends_in_a_sentence_that_names_the_line(warm, tmp_path):
    result = record(warm, tmp_path / "moe.tileprof", "moe", *PROGRAMS["moe"], fake=True)
    assert result.returncode != 0
    assert "moe.py" in result.stderr
    assert "--fake" in result.stderr
