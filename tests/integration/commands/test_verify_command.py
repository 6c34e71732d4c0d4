"""``tileprof verify`` as a user runs it: what it says, and its exit codes."""

import json
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.support.synthetic_graphs import write_mlp
from tileprof.analysis import build_graph
from tileprof.cli.entry import main
from tileprof.policy.format import PolicyError, from_dict, to_dict
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.operand_guard import check_operands
from tileprof.trace import load

HEAD = "tileprof dependencies 1\n"


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """Write two launches per layer, with grids of 8 x 4 and 2 x 4 tiles."""
    return write_mlp(tmp_path_factory.mktemp("verify") / "mlp.tileprof", layers=2, tokens=512, hidden=256)


@pytest.fixture(scope="module")
def good(mlp, tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "good.json"
    synthesise(build_graph(load(mlp)), [0, 1]).save(path)
    return path


def changed_copy(good, path, change):
    value = json.loads(good.read_text())
    change(value)
    path.write_text(json.dumps(value))
    return path


def grids(mlp):
    graph = build_graph(load(mlp))
    return [s.grid for s in synthesise(graph, [0, 1]).stages]


def test_a_sound_policy_exits_with_0_and_says_what_it_costs(mlp, good, capsys):
    assert main(["verify", str(good), str(mlp)]) == 0
    output = capsys.readouterr().out
    assert "all waited for" in output
    assert " of them useless" in output
    assert "in stream order" in output


def test_an_unsound_policy_exits_with_1_and_names_tiles_and_bytes(mlp, good, tmp_path, capsys):
    bad = changed_copy(good, tmp_path / "bad.json", lambda v: v.update(edges=[]))
    assert main(["verify", str(bad), str(mlp), "--first", "2"]) == 1
    output = capsys.readouterr().out
    assert "UNSOUND: " in output
    assert "down (0, 0, 0) needs " in output
    assert " bytes of " in output
    assert "more (--first 0 names all)" in output
    assert "A sound policy for these launches" in output
    assert main(["verify", str(bad), str(mlp), "--first", "0"]) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if " needs " in line]
    assert main(["verify", str(bad), str(mlp), "--json", "--first", "1"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["missing_count"] == len(rows) == value["dependencies"]
    assert len(value["missing"]) == 1
    assert value["sound"] is False
    assert value["corrected"]["policy_us"] > 0


def test_a_policy_whose_waits_never_end_gets_no_time(mlp, good, tmp_path, capsys):
    def forever(value):
        value["edges"][0]["value"] = "1000"

    endless = changed_copy(good, tmp_path / "endless.json", forever)
    assert main(["verify", str(endless), str(mlp)]) == 1
    output = capsys.readouterr().out
    assert "waits never end" in output
    assert "Time, modelled: none under this policy; " in output
    assert main(["verify", str(endless), str(mlp), "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["model_us"]["policy"] is None
    assert value["model_us"]["exact"] > 0


@pytest.mark.parametrize("fuse", [[], ["--fuse"]])
def test_the_command_that_is_proposed_writes_a_policy_that_is_sound(mlp, good, tmp_path, capsys, monkeypatch, fuse):
    monkeypatch.chdir(tmp_path)
    trace = shutil.copytree(mlp, tmp_path / "my trace.tileprof")
    bad = changed_copy(good, tmp_path / "bad.json", lambda v: v.update(edges=[]))
    assert main(["verify", str(bad), trace.name, "--launches", "2,3", *fuse]) == 1
    program, *words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert program == "tileprof"
    assert ("--fuse" in words) == bool(fuse)
    assert main(words) == 0
    assert main(["verify", capsys.readouterr().out.strip(), trace.name]) == 0
    assert "launch 2: " in capsys.readouterr().out


@pytest.mark.parametrize("words", [["verify", "POLICY", "TRACE"], ["view", "TRACE", "POLICY", "-o", "page.html"],
    ["export", "--format", "counters", "-o", "out", "--policy", "POLICY", "TRACE"]])  # fmt: skip
def test_waits_that_leave_the_grid_are_refused_with_the_name_of_the_file(
    mlp, good, tmp_path, capsys, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    changed_copy(good, tmp_path / "away.json", lambda v: v["edges"][0].update(waits=["0", "y + 9", "0"]))
    assert main([{"POLICY": "away.json", "TRACE": str(mlp)}.get(word, word) for word in words]) == 2
    assert capsys.readouterr().err.startswith("tileprof: away.json: edge 0, awaited by stage 1 (")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["away.json"]


@pytest.mark.parametrize(("name", "value"), [("shape", [3, 5]), ("dtype", "int3"), ("strides", [7]), ("offset", 64)])
def test_a_policy_for_other_operands_is_refused(mlp, good, tmp_path, capsys, name, value):
    bad = changed_copy(good, tmp_path / "bad.json", lambda v: v["guard"]["operands"][1][0].update({name: value}))
    assert main(["verify", str(bad), str(mlp)]) == 2
    output = capsys.readouterr().err
    assert f"operand 0: {name} is " in output
    assert "the policy is for another shape" in output


def test_another_device_and_a_missing_guard_are_reported(mlp, good, tmp_path, capsys):
    other = changed_copy(
        good,
        tmp_path / "other.json",
        lambda v: (v["guard"].update(device="V9000"), v["options"].update(wait_kernel=True)),
    )
    assert main(["verify", str(other), str(mlp)]) == 0
    assert "the policy was verified for device V9000; this trace is of " in capsys.readouterr().out
    resident = changed_copy(other, tmp_path / "resident.json", lambda v: v["options"].update(wait_kernel=False))
    assert main(["verify", str(resident), str(mlp)]) == 1
    assert "without a wait kernel because of what resides on 'V9000'" in capsys.readouterr().out
    folder = tmp_path / "header"
    assert main(["export", "--format", "cusync", "--policy", str(resident), "-o", str(folder), str(mlp)]) == 2
    assert not folder.exists()
    bare = changed_copy(good, tmp_path / "bare.json", lambda v: v["guard"].pop("operands"))
    assert main(["verify", str(bare), str(mlp)]) == 0
    assert "does not say for which operands" in capsys.readouterr().out


def test_addresses_aligned_to_less_are_refused(mlp, good, tmp_path, capsys):
    stricter = changed_copy(
        good, tmp_path / "stricter.json", lambda v: v["guard"]["operands"][1][0].update(alignment=16)
    )
    assert main(["verify", str(stricter), str(mlp)]) == 0
    value = json.loads(good.read_text())
    value["guard"]["operands"][1][0]["offset"] = 4
    trace = load(mlp)
    operands = trace.operands.copy()
    operands.loc[(operands["launch"] == 1) & (operands["operand"] == 0), "offset"] = 4
    trace.__dict__["operands"] = operands
    with pytest.raises(PolicyError, match="aligned to 16 bytes, launch 1 has 4"):
        check_operands(from_dict(value), trace, [0, 1])


def test_another_granule_and_other_allocations_are_reported(mlp, good, tmp_path, capsys):
    coarse = changed_copy(good, tmp_path / "coarse.json", lambda v: v["guard"].update(granule=512))
    assert main(["verify", str(coarse), str(mlp)]) == 0
    assert "made from accesses at a granule of 512 bytes; this trace's are at 1" in capsys.readouterr().out
    larger = changed_copy(good, tmp_path / "larger.json", lambda v: v["guard"]["operands"][0][0].update(bytes=1 << 40))
    assert main(["verify", str(larger), str(mlp)]) == 0
    assert "1 operands lie in allocations of another size than in the guard" in capsys.readouterr().out


def test_executing_over_a_trace_of_other_operands_is_refused(mlp, good, tmp_path, capsys):
    bad = changed_copy(good, tmp_path / "bad.json", lambda v: v["guard"]["operands"][1][0].update(strides=[7]))
    assert main(["run", str(bad), "--trace", str(mlp)]) == 2
    assert "the policy is for another shape" in capsys.readouterr().err


def test_a_wait_that_never_ends_is_unsound(mlp, good, tmp_path, capsys):
    def raise_value(value):
        value["edges"][0]["value"] = "99999"

    bad = changed_copy(good, tmp_path / "bad.json", raise_value)
    assert main(["verify", str(bad), str(mlp)]) == 1
    assert "waits never end" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["rowsync", "tilesync", "conv2dtile"])
def test_what_cusync_ships_is_right_for_products_of_matrices(mlp, kind, capsys):
    assert main(["verify", f"cusync:{kind}", str(mlp)]) == 0
    assert main(["verify", str(mlp), "--kind", f"cusync:{kind}", "--pair", "0:1"]) == 0
    assert "all waited for" in capsys.readouterr().out


def test_a_stride_that_is_not_the_programs_is_unsound(mlp, capsys):
    assert main(["verify", "cusync:stridedsync:2", str(mlp), "--pair", "0:1"]) == 1
    assert "UNSOUND" in capsys.readouterr().out


def test_dependencies_written_by_hand_are_checked_against_the_trace(mlp, tmp_path, capsys):
    (ux, uy, _), (dx, dy, _) = grids(mlp)
    rows, columns = (uy, "y") if dy == uy else (ux, "x")
    text = HEAD + f"grid up {ux} x {uy} launch 0\ngrid down {dx} x {dy} launch 1\n"
    whole = f"0..{ux - 1}, y" if columns == "y" else f"x, 0..{uy - 1}"
    part = f"0..{ux - 2}, y" if columns == "y" else f"x, 0..{uy - 2}"
    path = tmp_path / "mlp.dep"
    path.write_text(text + f"dep down on up({whole})\n")
    assert main(["verify", str(path), str(mlp)]) == 0
    assert main(["verify", str(path), str(mlp), "--launches", "2,3"]) == 0
    path.write_text(text + f"dep down on up({part})\n")
    assert main(["verify", str(path), str(mlp)]) == 1
    output = capsys.readouterr().out
    assert f"UNSOUND: {rows * dx if columns == 'y' else rows * dy} of" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.json", "MLP"], "cannot read absent.json"),
        (["GOOD", "nowhere.tileprof"], "there is no trace"),
        (["GOOD", "MLP", "--launches", "0,1,2"], "3 launches are named for 2 stages"),
        (["GOOD", "MLP", "--launches", "1,2"], "the policy is for another shape"),
        (["GOOD", "MLP", "--launches", "0,99"], "there is no launch 99; the trace has launches 0 to 3"),
        (["GOOD", "MLP", "--launches", "a"], "names no launches; write --launches 12,13"),
        (["GOOD", "MLP", "--pair", "0,1"], "names no launches; write --pair 12:13"),
        (["GOOD", "MLP", "--pair", "0:1", "--launches", "0,1"], "give one of them"),
        (["GOOD", "MLP", "--pair", "1:0"], "--pair 1:0 names launch 1 before one that is issued earlier; a pair"),
        (["GOOD", "MLP", "--pair", "1:1"], "--pair 1:1 names launch 1 twice; a pair is a producer and a launch after"),
        (["GOOD", "MLP", "--first", "-1"], "--first -1"),
        (["MLP"], "name one policy"),
        (["GOOD", "MLP", "--kind", "cusync:rowsync"], "name one policy"),
        (["cusync:fancysync", "MLP"], "not a policy of cuSync; there are cusync:tilesync"),
        (["cusync:stridedsync:0", "MLP"], "the stride is a number of tiles from 1"),
        (["cusync:stridedsync:7", "MLP", "--pair", "0:1"], "does not fit launch 0"),
        (["cusync:rowsync", "MLP", "--launches", "0,1,2"], "is for a producer and a consumer; 3 launches are given"),
        (["cusync:rowsync", "MLP", "--rows", "ab"], "--rows ab"),
        (["HAND", "MLP"], "names no launch; say which launches the stages are"),
        (["WRONG", "MLP"], "line 4: needed by grid 1"),
        (["DEEP", "MLP"], "nested too deeply"),
        (["DIGITS", "MLP"], "is not a policy"),
        (["TEXT", "MLP"], "is not a policy"),
        (["LARGE", "MLP"], "larger than 256 MiB; a policy is not"),
        (["OVERFLOW", "MLP"], "exceeds 62 bits on this grid"),
        (["OUTSIDE", "MLP"], "names 1000, outside"),
        (["OLD", "MLP"], "policy format 9; this tileprof"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence_and_exit_2(mlp, good, tmp_path, arguments, message, capsys):
    (tmp_path / "hand.dep").write_text(HEAD + "grid a 2\ngrid b 2\ndep b on a(x)\n")
    (tmp_path / "wrong.dep").write_text(HEAD + "grid a 2\ngrid b 2\ndep b on a(x + 1)\n")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    changed_copy(good, tmp_path / "old.json", lambda v: v.update(tileprof_policy=9))
    (tmp_path / "digits.json").write_text('{"tileprof_policy": ' + "1" * 6000 + "}")
    (tmp_path / "text.json").write_text("a policy")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(300 * 2**20)
    overflow, outside = ["x * 4611686018427387904 * 4", "0", "0"], ["x + 1000", "0", "0"]
    changed_copy(good, tmp_path / "overflow.json", lambda v: v["edges"][0].update(waits=overflow))
    changed_copy(good, tmp_path / "outside.json", lambda v: v["edges"][0].update(waits=outside))
    names = {"MLP": mlp, "GOOD": good} | {
        n.upper(): tmp_path / f
        for n, f in (
            ("hand", "hand.dep"),
            ("wrong", "wrong.dep"),
            ("deep", "deep.json"),
            ("old", "old.json"),
            *((n, f"{n}.json") for n in ("digits", "text", "large", "overflow", "outside")),
        )
    }
    assert main(["verify", *(str(names.get(a, a)) for a in arguments)]) == 2
    printed_text = capsys.readouterr()
    assert message in printed_text.err
    assert printed_text.out == ""
    assert printed_text.err.count("\n") == 1
    assert "Traceback" not in printed_text.err


def test_the_command_runs_as_a_process(mlp, good):
    result = subprocess.run(
        [sys.executable, "-m", "tileprof.cli", "verify", good, mlp, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["sound"] is True


def test_a_saved_policy_is_what_was_synthesised(mlp, good):
    assert json.loads(good.read_text()) == json.loads(json.dumps(to_dict(synthesise(build_graph(load(mlp)), [0, 1]))))
