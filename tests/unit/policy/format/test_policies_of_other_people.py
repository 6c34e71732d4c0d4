"""Policies by other authors, as `tileprof verify` and `tileprof export --policy` show and rewrite them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.synthetic_graphs import write_mlp
from tileprof.cli.entry import main


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two launches per layer, ``h.0.mlp.up`` to ``h.1.mlp.down``."""
    return write_mlp(tmp_path_factory.mktemp("theirs") / "mlp.tileprof", layers=2, tokens=512, hidden=256)


@pytest.fixture
def theirs(mlp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["export", "--format", "json", "-o", str(tmp_path / "made"), "--pair", "0:1", str(mlp)]) == 0
    capsys.readouterr()
    return tmp_path / "made" / "policy.json"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def exported(mlp: Path, theirs: Path, tmp_path: Path, *options: str) -> dict[str, Any]:
    words = ["export", "--format", "json", "-o", str(tmp_path / "out"), "--policy", str(theirs), *options, str(mlp)]
    assert main(words) == 0
    result: dict[str, Any] = json.loads((tmp_path / "out" / "policy.json").read_text())
    return result


def test_a_policy_exported_for_another_layer_names_that_layer(
    mlp: Path, theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = exported(mlp, theirs, tmp_path, "--pair", "2:3")
    assert [stage["launch"] for stage in result["stages"]] == [2, 3]
    assert [stage["module"] for stage in result["stages"]] == ["h.1.mlp.up", "h.1.mlp.down"]
    assert "h.1.mlp.down (3) on h.1.mlp.up (2): " in capsys.readouterr().err
    before = json.loads(theirs.read_text())
    assert result["edges"] == before["edges"]
    assert exported(mlp, theirs, tmp_path, "--force")["stages"] == before["stages"]


def test_what_export_calls_modelled_is_modelled(
    mlp: Path, theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = json.loads(theirs.read_text())["prediction"]
    change(theirs, prediction={"stream_us": 100, "policy_us": 1, "gain_percent": 99})
    assert exported(mlp, theirs, tmp_path)["prediction"] == honest
    assert f"Modelled: {honest['stream_us']} us in stream order" in capsys.readouterr().err


def test_names_and_notes_reach_the_terminal_as_one_plain_line(
    mlp: Path, theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "up\x1b[2J\nDependencies: 0\ud800"
    value = json.loads(theirs.read_text())
    value["stages"][0]["name"] = name
    value["edges"][0]["reason"] = name
    value["notes"] = [name]
    theirs.write_text(json.dumps(value))
    assert main(["verify", str(theirs), str(mlp)]) == 0
    exported(mlp, theirs, tmp_path)
    output = capsys.readouterr()
    plain = r"up\x1b[2J\nDependencies: 0\ud800"
    assert f"launch 0: {plain}, " in output.out
    assert f"  {plain}\n" in output.out
    assert f"{plain} (0): {plain}." in output.err
    assert "\x1b" not in output.out + output.err


def test_a_trace_in_place_of_a_policy_is_recognised(
    mlp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(mlp)]) == 2
    assert f"seems to be a trace; `tileprof export {mlp}` makes policies of one" in capsys.readouterr().err
    assert main(["run", str(tmp_path)]) == 2
    assert f"{tmp_path} is a folder; a policy is a JSON file" in capsys.readouterr().err
