"""Predictions and tables of ``tileprof run --compare``; its measurements need a GPU."""

from __future__ import annotations

import csv
import json
from argparse import ArgumentParser
from dataclasses import asdict, replace

import pytest
import torch

pytest.importorskip("triton")

from tests.gpu.measuring.chains import add_predictions
from tileprof.cli.running import run_compare as comparing
from tileprof.cli.verbs.run import VERB
from tileprof.devices import get, of_driver
from tileprof.errors import UserError
from tileprof.runtime.measuring.cases import Case
from tileprof.runtime.measuring.measure import convolution_pair, gelu_mlp
from tileprof.runtime.measuring.stage_times import StageTime
from tileprof.trace import validate

H200 = get("H200")


def alone(us: float) -> StageTime:
    return StageTime(us, blocks_per_sm=1, threads=256, registers=128, shared_bytes=100_000)


@pytest.fixture(scope="module")
def mlp():
    """192 and 384 tiles on 132 SMs: waves of 1.45 and 2.91."""
    return gelu_mlp(512, (128, 128), (128, 128))


def test_stages_alone_add_up_in_a_graph_and_overlap_gains_what_the_waves_leave(mlp) -> None:
    actual = comparing.predict(mlp, [mlp.policy()], H200, [alone(200.0), alone(150.0)])
    assert actual["graph"] == pytest.approx(350.0, rel=0.01)
    assert actual["unsynchronised"] <= actual["cusync"] < actual["graph"]
    tile_us = [200.0 / 2, 150.0 / 3]
    work = 192 * tile_us[0] + 384 * tile_us[1]
    assert actual["unsynchronised"] >= work / 132 * 0.99
    assert actual["pdl"] <= actual["graph"]


def test_every_policy_gets_a_row(mlp) -> None:
    actual = comparing.predict(mlp, [mlp.policy(), mlp.policy()], H200, [alone(1.0), alone(1.0)])
    assert actual["cusync, policy 1"] == actual["cusync, policy 2"]


def test_the_expected_recording_of_a_chain_is_valid_and_holds_what_its_tiles_touch() -> None:
    chain = convolution_pair(1, 14, 64, (16, 64))
    trace = comparing.expected_recording(chain, H200, [alone(5.0), alone(7.0)])
    assert not validate(trace)
    assert list(trace.launches["tiles"]) == [o.tiles for o in chain.operators]
    from tileprof.analysis import build_graph

    pair = build_graph(trace).links
    expected = chain._needs(chain.memory())[0, 1]
    assert int(pair["edges"].sum()) == len(expected[0])


COMPARISON = {
    "device": "NVIDIA H200",
    "driver": "1",
    "cuda": "13.0",
    "torch": "2",
    "triton": "3",
    "date": "2026-01-01",
    "repeats": 30,
    "roof": "roof",
    "stages": [],
    "rows": [
        {
            "row": "graph",
            "us": 100.0,
            "us_10": 99.0,
            "us_90": 101.0,
            "over_roof": 1.5,
            "roof_us": 66.0,
            "instances": 2,
            "relative_error": 1e-4,
            "correct": True,
            "gain": 0.0,
            "predicted_us": 90.0,
            "predicted_gain": 0.0,
            "residual_points": 0.0,
        },
        {
            "row": "unsynchronised",
            "us": 80.0,
            "us_10": 79.0,
            "us_90": 81.0,
            "over_roof": 1.2,
            "roof_us": 66.0,
            "instances": 2,
            "relative_error": None,
            "correct": False,
            "gain": 0.2,
        },
    ],
}


def test_the_table_shows_gain_prediction_and_residual_and_marks_what_is_wrong(capsys) -> None:
    comparing.report(COMPARISON, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("NVIDIA H200, driver 1")
    (wrong,) = [line for line in lines if "unsynchronised" in line]
    assert "20.0%" in wrong
    assert "wrong on purpose" in wrong
    comparing.report(COMPARISON, as_json=True)
    assert json.loads(capsys.readouterr().out) == COMPARISON


def test_rows_become_csv_and_nothing_is_overwritten(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    comparing.write_csv(COMPARISON, path, force=False)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["graph", "unsynchronised"]
    with pytest.raises(UserError, match="exists"):
        comparing.write_csv(COMPARISON, path, force=False)
    comparing.write_csv(COMPARISON, path, force=True)


def run(*words: object) -> int:
    parser = ArgumentParser()
    VERB.prepare(parser)
    return VERB.run(parser.parse_args([str(w) for w in words]))


def test_policies_of_other_stages_are_refused(tmp_path, mlp) -> None:
    mlp.policy().save(tmp_path / "a.json")
    gelu_mlp(128, (128, 128), (128, 128)).policy().save(tmp_path / "b.json")
    with pytest.raises(UserError, match="policy 2 has other stages"):
        run(tmp_path / "a.json", tmp_path / "b.json", "--compare")
    with pytest.raises(UserError, match="needs --compare"):
        run(tmp_path / "a.json", tmp_path / "b.json")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_nothing_is_measured_and_it_says_so(tmp_path, mlp) -> None:
    mlp.policy().save(tmp_path / "a.json")
    with pytest.raises(UserError, match=r"no GPU here .* leave out --compare"):
        run(tmp_path / "a.json", "--compare", "--csv", tmp_path / "rows.csv")
    assert not (tmp_path / "rows.csv").exists()


@pytest.mark.parametrize(
    ("message", "expected"),
    [("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"), ("NVIDIA H100 80GB HBM3", "H100")],
)
def test_the_drivers_name_finds_the_device(message, expected) -> None:
    assert of_driver(message).name == get(expected).name


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(UserError, match="Foo 1 is not among the known devices"):
        of_driver("Foo 1")


def test_a_policy_that_waits_for_too_little_is_not_measured(mlp) -> None:
    weak = replace(mlp.policy(), edges=(), semaphores=())
    with pytest.raises(UserError, match="policy 2 does not wait for everything that its tiles need"):
        comparing.compare([mlp.policy(), weak])


def test_a_trace_and_a_comparison_exclude_each_other(tmp_path) -> None:
    parser = ArgumentParser()
    VERB.prepare(parser)
    options = parser.parse_args([str(tmp_path / "p.json"), "--compare", "--trace", "t.tileprof"])
    with pytest.raises(UserError, match="give one of them"):
        VERB.run(options)


def test_predictions_are_put_beside_what_was_measured_elsewhere(monkeypatch, tmp_path, mlp) -> None:
    """Times of the stages come from the file; a chain without a case or without timed stages stays unchanged."""
    monkeypatch.setattr(add_predictions, "cases", lambda: iter([Case("an MLP", mlp), Case("another", mlp)]))
    times = [asdict(alone(us)) for us in (200.0, 150.0)]
    rows = [
        {
            "chain": chain,
            "row": name,
            "us": 1.0,
            **({"stages": times} if name == "cusync" and chain != "another" else {}),
        }
        for chain in ("an MLP", "another", "no case")
        for name in ("PyTorch in a graph", "graph", "pdl", "cusync", "hooks")
    ]
    (tmp_path / "out.json").write_text(json.dumps({"device": "NVIDIA H200", "rows": rows}))
    add_predictions.main([str(tmp_path / "out.json")])
    document = json.loads((tmp_path / "out.json").read_text())["rows"]
    values = {row["row"]: row["predicted_us"] for row in document if "predicted_us" in row}
    assert values == pytest.approx(
        {
            n: v
            for n, v in comparing.predict(mlp, [mlp.policy()], H200, [alone(200.0), alone(150.0)]).items()
            if n in values
        },
        abs=1e-3,
    )
    assert set(values) == {"graph", "pdl", "cusync"}
    assert {row["chain"] for row in document if "predicted_us" in row} == {"an MLP"}
    (cusync,) = [row for row in document if row["row"] == "cusync" and "predicted_gain" in row]
    assert cusync["predicted_gain"] == pytest.approx(1 - values["cusync"] / values["graph"], abs=1e-4)
