"""The script that runs small programs on a GPU writes what their results files hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "gpu" / "measuring" / "schedulers"))

import measure_small_programs

TESTS = Path(__file__).parents[3]
HERE = {"device": "NVIDIA H200", "driver": "580.159.04", "cuda": "13.0", "date": "2026-11-29"}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a function that gives the results file of a subject, from what its programs print."""
    monkeypatch.setattr(measure_small_programs, "machine", lambda: HERE)

    def results(subject: str, before: object = None, **printed: str) -> dict:
        output = tmp_path / f"{subject}.json"
        if before is not None:
            output.write_text(json.dumps(before))
        words = [subject, str(output)]
        for name, text in printed.items():
            (tmp_path / name).write_text(text)
            words += ["--output-of", name, str(tmp_path / name)]
        measure_small_programs.main(words)
        return json.loads(output.read_text())

    return results


def shipped(subject: str) -> dict:
    return json.loads((TESTS / "gpu/results" / f"{subject}.json").read_text())


def test_round_trips_are_read_as_the_program_prints_them(results):
    expected = shipped("link_ways")["ways"]
    lines = [
        f"{row['way']}, {row['blocks']}: {row['p10_ns']}, {row['median_ns']}, {row['p90_ns']}; "
        f"{row['million_answers_per_s']:.2f}; {row['answers_per_batch']:.1f}; {row['call_ns']}; {row['answered']}"
        for row in expected
    ]
    refusal = "dma-buf with flags 0: result 801"
    file = results(
        "link_ways", link_ways="\n".join([f"mapped: {refusal}", "way, blocks: ...", *lines, "copy, 8: no answer"])
    )
    assert (file["ways"], file["mapped"]) == (expected, [refusal])
    assert file["device"] == HERE["device"]
    assert file["command"].startswith("python tests/gpu/measuring/schedulers/measure_small_programs.py link_ways ")


def test_costs_of_launches_are_medians_of_repeats(results):
    expected = shipped("spawn_costs")
    launched, decided = [], []
    for row in expected["launches"]:
        times = {name: row[f"{name}_ns"] for name in ("leave", "child", "grandchild") if f"{name}_ns" in row}
        for change in (-1, 0, 1):
            moved = {name: [value + change for value in values] for name, values in times.items()}
            sizes = {name: row[name] for name in ("warps", "lanes", "below")}
            launched.append({**sizes, "us": row["us"] + change, "refused": 0, **moved})
    for row in expected["decisions"]:
        for count in row["all_launched"]:
            sizes = {"decisions": row["rule"], "warps": row["warps"], "items": row["items"]}
            decided.append({**sizes, "us": 1.0, "launched": count, "arrive": [0], "took": row["took_ns"]})
    decided += [
        {"reads": row["reads"], "warps": row["warps"], "add": int(row["updates"]), "took": row["took_ns"]}
        for row in expected["reads"]
    ]
    texts = {"spawn_costs": launched, "spawn_decisions": decided}
    file = results("spawn_costs", **{name: "\n".join(map(json.dumps, rows)) for name, rows in texts.items()})
    assert {key: file[key] for key in ("launches", "decisions", "reads")} == {
        key: expected[key] for key in ("launches", "decisions", "reads")
    }


def test_times_of_launches_keep_experiments_of_earlier_programs(results):
    before = shipped("launches")
    row = {"name": "bfs", "all": {f"{rule}_us": [1.0, 3.0, 2.0] for rule in measure_small_programs.RULES}}
    other = {"name": "bfs", "all": {f"{rule}_us": [5.0, 4.0, 6.0] for rule in measure_small_programs.RULES}}
    rules = measure_small_programs.RULES
    nested = {"name": "amr-nested", "all": {f"{rule}_launched": [7, 2, 3] for rule in rules}}
    nested["differing"] = dict.fromkeys(("flat", *rules), 0) | {"warp": 1}
    texts = {"spawn_lock_0": json.dumps(row), "spawn_lock_1": json.dumps(other), "spawn_awake": json.dumps(nested)}
    file = results("launches", before, divergent_launches="4000 runs ended\n", **texts)
    assert file["experiments"] == before["experiments"]
    assert [way["way"] for way in file["ways"]] == [way["way"] for way in before["ways"]]
    assert file["times_us"]["programs"] == {
        "bfs": {rule: {"together": 2.0, "one at a time": 5.0} for rule in measure_small_programs.RULES}
    }
    row = {"runs": 2, "wrong": 0, "launched": 5}
    assert file["awake"]["programs"] == {"amr-nested": dict.fromkeys(rules, row) | {"warp": row | {"wrong": 1}}}


def test_wrong_rounds_are_read_as_the_programs_print_them(results):
    expected = shipped("halo")["rows"]
    texts = {"halo_race_race": "", "halo_alone_race": "", "halo_alone_omitted": ""}
    for row in expected:
        name = "halo_race_race" if row["synchronised_by"] == "cuSync" else "halo_alone_race"
        name = "halo_alone_omitted" if row["policy"] == "halo omitted" else name
        title = row["policy"] if name == "halo_race_race" else "./alone"
        texts[name] += (
            f"{title:<16s} late by {row['late_us']:8.1f} us: {row['rounds']:3d} rounds, {row['wrong_rounds']:3d} "
            f"wrong, {row['wrong_pixels']:6d} wrong pixels\n"
        )
    assert results("halo", **texts)["rows"] == expected


def test_rounds_and_sorts_of_both_processes_are_kept(results):
    expected = shipped("spawn_rounds")["processes"]
    printed = ["\n".join(map(json.dumps, rows["rounds"] + rows["sorts"])) for rows in expected]
    file = results("spawn_rounds", spawn_rounds_1=printed[0], spawn_rounds_2=printed[1])
    assert file["processes"] == expected
    assert printed[0] != printed[1]
