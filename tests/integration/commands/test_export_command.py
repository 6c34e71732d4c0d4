"""``tileprof export`` as a user runs it: files, refusals, and nothing half done."""

import json
import shutil
import subprocess
import sys

import networkx as nx
import pytest

from tests.support.synthetic_graphs import write_mlp
from tileprof.cli.entry import main
from tileprof.cli.verbs import export
from tileprof.cli.verbs.export import FORMATS
from tileprof.policy.format import load_policy
from tileprof.runtime.include_path import INCLUDE


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    return write_mlp(tmp_path_factory.mktemp("export") / "mlp.tileprof", layers=2, tokens=512, hidden=256)


@pytest.fixture
def hand(tmp_path):
    path = tmp_path / "hand.dep"
    path.write_text("tileprof dependencies 1\ngrid a 8\ngrid b 8\ndep b on a(max(0, x - 1)..min(7, x + 1))\n")
    return path


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_writes_its_files_and_no_others(mlp, tmp_path, form, capsys):
    out = tmp_path / "out"
    assert main(["export", str(mlp), "--format", form, "-o", str(out)]) == 0
    printed_text = capsys.readouterr()
    assert sorted(p.name for p in out.iterdir()) == sorted(FORMATS[form])
    assert printed_text.out.split() == [str(out / name) for name in FORMATS[form]]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    if form in ("json", "cusync", "counters"):
        assert "the first pair of `tileprof report`" in printed_text.err


def test_the_policy_written_is_sound_and_says_what_it_gains(mlp, tmp_path, capsys):
    assert main(["export", str(mlp), "--format", "json", "-o", str(tmp_path), "--launches", "0,1,2,3"]) == 0
    policy = load_policy(tmp_path / "policy.json")
    assert [s.launch for s in policy.stages] == [0, 1, 2, 3]
    assert policy.prediction["stream_us"] > 0
    assert main(["verify", str(tmp_path / "policy.json"), str(mlp)]) == 0
    assert (
        main(
            [
                "export",
                str(mlp),
                "--format",
                "cusync",
                "-o",
                str(tmp_path / "c"),
                "--policy",
                str(tmp_path / "policy.json"),
            ]
        )
        == 0
    )
    assert main(["verify", str(tmp_path / "c" / "policy.json"), str(mlp)]) == 0


def test_launches_between_that_are_no_epilogues_become_stages_or_are_taken_by_force(mlp, tmp_path, capsys):
    words = ["export", str(mlp), "--format", "json", "--pair", "0:2", "-o"]
    assert main([*words, str(tmp_path / "a")]) == 0
    assert "Launch 1 becomes a stage too" in capsys.readouterr().err
    assert len(load_policy(tmp_path / "a" / "policy.json").stages) == 3
    assert main([*words, str(tmp_path / "b"), "--fuse"]) == 0
    fused = load_policy(tmp_path / "b" / "policy.json")
    assert [s.launch for s in fused.stages] == [0, 2]
    assert main(["verify", str(tmp_path / "b" / "policy.json"), str(mlp)]) == 0


PERCEPTRON = """
import tileprof, torch
net = torch.nn.Sequential(torch.nn.Linear(5120, 5120), torch.nn.GELU(), torch.nn.Linear(5120, 5120)).half().eval()
x = torch.randn(64, 5120, dtype=torch.float16)
with torch.no_grad(), tileprof.capture():
    net(x)
"""


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory, warm):
    folder = tmp_path_factory.mktemp("perceptron")
    (folder / "net.py").write_text(PERCEPTRON)
    words = ["record", "--fake", "-o", folder / "net.tileprof", "--", sys.executable, folder / "net.py"]
    subprocess.run([warm.path / "tileprof", *words], check=True)
    return folder / "net.tileprof"


def test_an_activation_between_two_products_is_an_epilogue_without_an_option(perceptron, tmp_path, capsys):
    assert main(["export", str(perceptron), "--format", "json", "-o", str(tmp_path / "default")]) == 0
    output = capsys.readouterr().err
    assert "the first pair of `tileprof report` that the runtime computes" in output
    assert "Launch 1 becomes an epilogue of the stage before it" in output
    policy = load_policy(tmp_path / "default" / "policy.json")
    assert [s.launch for s in policy.stages] == [0, 2]
    assert policy.stages[0].operator["parameters"]["epilogue"] == "gelu"
    assert policy.guard["epilogues"] == [1]
    assert main(["verify", str(tmp_path / "default" / "policy.json"), str(perceptron)]) == 0
    words = ["export", str(perceptron), "--format", "json", "--pair", "0:2", "--no-fuse", "-o", str(tmp_path / "apart")]
    assert main(words) == 0
    assert len(load_policy(tmp_path / "apart" / "policy.json").stages) == 3


@pytest.mark.parametrize(
    ("launches", "subject"),
    [
        ([3], "Launch 3 becomes"),
        ([3, 4], "Each of launches 3, 4 becomes"),
        (list(range(87)), "Each of launches 0, 1, 2, 3, 4 and 82 more becomes"),
    ],
)
def test_many_launches_are_counted_and_not_listed(launches, subject):
    assert export._subject_with_verb(launches, "becomes") == subject


@pytest.mark.parametrize("epilogues", [[], [7]])
def test_a_policy_that_does_not_name_its_epilogues_is_unsound(perceptron, tmp_path, capsys, epilogues):
    assert main(["export", str(perceptron), "--format", "json", "-o", str(tmp_path)]) == 0
    path = tmp_path / "policy.json"
    text = json.loads(path.read_text())
    text["guard"]["epilogues"] = epilogues
    path.write_text(json.dumps(text))
    assert main(["verify", str(path), str(perceptron)]) == 1
    assert "UNSOUND: launch 1 lies between" in capsys.readouterr().out


def test_a_module_chooses_its_launches(mlp, tmp_path):
    assert main(["export", str(mlp), "--format", "graphml", "-o", str(tmp_path), "--module", r"h\.1\."]) == 0
    assert set(nx.read_graphml(tmp_path / "graph.graphml")) == {"2", "3"}


def test_hand_written_dependencies_need_no_trace(hand, tmp_path, capsys):
    assert main(["export", str(hand), "--format", "cusync", "-o", str(tmp_path / "one")]) == 0
    assert "Over-synchronised: b may await several semaphores of a at once" in capsys.readouterr().err
    assert main(["export", str(hand), "--format", "cusync", "-o", str(tmp_path / "several"), "--several-waits"]) == 0
    assert "Over-synchronised" not in capsys.readouterr().err
    assert load_policy(tmp_path / "one" / "policy.json").semaphores[0].count == 1
    assert load_policy(tmp_path / "several" / "policy.json").semaphores[0].count == 8
    assert main(["export", str(hand), "--format", "counters", "-o", str(tmp_path / "counters")]) == 0
    assert json.loads((tmp_path / "counters" / "counters.json").read_text())["counters"] == [1] * 8


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH: what a header compiles to is not tested")
def test_a_header_from_a_trace_compiles(mlp, tmp_path):
    assert main(["export", str(mlp), "--format", "cusync", "-o", str(tmp_path), "--module", "."]) == 0
    command = ["nvcc", "-std=c++17", "-Werror", "all-warnings", "-Xcicc", "-O0", "-Xptxas", "-O0", "-I", INCLUDE]
    command += ["-arch=sm_80", "-cubin", "example.cu"]
    compilation = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert compilation.returncode == 0, compilation.stderr
    assert (tmp_path / "example.cubin").stat().st_size > 0


def test_nothing_is_overwritten_without_force(mlp, tmp_path, capsys):
    (tmp_path / "example.cu").write_text("mine")
    line = ["export", str(mlp), "--format", "cusync", "-o", str(tmp_path)]
    assert main(line) == 2
    assert f"will not overwrite {tmp_path / 'example.cu'} without --force" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["example.cu"]
    assert main([*line, "--force"]) == 0
    assert (tmp_path / "example.cu").read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.tileprof"], "there is no trace"),
        (["MLP", "--launches", "0"], "at least two launches"),
        (["MLP", "--launches", "0,77"], "there is no launch 77"),
        (["MLP", "--module", "("], "is not a regular expression"),
        (["MLP", "--module", "nothing"], "matches 0 launches"),
        (["MLP", "--several-waits"], "--several-waits is for --format cusync"),
        (["MLP", "--policy", "BAD"], "is not sound for"),
        (["MLP", "--policy", "absent.json"], "cannot read absent.json"),
        (["HAND", "--launches", "0,1"], "--launches chooses from a trace"),
        (["HAND", "--format", "perfetto"], "shows a trace"),
        (["WRONG"], "line 4: needed by grid 1 (b), axis u: tile 7 names 8, outside 0..7"),
        (["ZERO"], "line 4: 'x // 0' divides by 0"),
        (["MLP", "-o", "FILE"], "is a file; name a folder"),
        (["MLP", "-o", "no/such/folder"], "there is no folder"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_exit_2_and_nothing_written(
    mlp, hand, tmp_path, arguments, message, capsys
):
    bad = {
        "tileprof_policy": 1, "semaphores": [], "edges": [],
        "stages": [
            {"name": n, "grid": list(s.grid), "launch": s.launch}
            for n, s in zip("ab", stages(mlp, tmp_path), strict=True)
        ],
    }  # fmt: skip
    (tmp_path / "bad.json").write_text(json.dumps(bad))
    (tmp_path / "wrong.dep").write_text("tileprof dependencies 1\ngrid a 8\ngrid b 8\ndep b on a(x + 1)\n")
    (tmp_path / "zero.dep").write_text("tileprof dependencies 1\ngrid a 8\ngrid b 8\ndep b on a(x // 0)\n")
    names = {"MLP": mlp, "HAND": hand, "BAD": tmp_path / "bad.json", "FILE": hand}
    names |= {"WRONG": tmp_path / "wrong.dep", "ZERO": tmp_path / "zero.dep"}
    line = [str(names.get(a, a)) for a in arguments]
    line += [] if "--format" in line else ["--format", "json"]
    line += [] if "-o" in line else ["-o", str(tmp_path / "out")]
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    assert main(["export", *line]) == 2
    printed_text = capsys.readouterr()
    assert message in printed_text.err
    assert printed_text.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def stages(mlp, tmp_path):
    out = tmp_path / "good"
    assert main(["export", str(mlp), "--format", "json", "-o", str(out), "--pair", "0:1"]) == 0
    return load_policy(out / "policy.json").stages


def test_recorded_accesses_of_a_policy_with_epilogues_are_not_executed_without_them(perceptron, tmp_path, capsys):
    assert main(["export", str(perceptron), "--format", "json", "-o", str(tmp_path)]) == 0
    assert main(["run", str(tmp_path / "policy.json"), "--trace", str(perceptron)]) == 2
    assert "export it with --no-fuse" in capsys.readouterr().err
