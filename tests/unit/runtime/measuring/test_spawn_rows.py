"""The script that runs programs with child grids writes what readers of ``spawn.json`` expect."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "gpu" / "measuring" / "schedulers"))
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "spawn"))

import bench_spawn
import measure_spawn

TESTS = Path(__file__).parents[3]
RESULTS = TESTS / "gpu/results/spawn.json"
KEYS = ("scale 16, process f", "scale 16, process g")
HERE = {"device": "NVIDIA H200", "driver": "580.159.04", "cuda": "13.0", "date": "2026-11-29"}
VERSIONS = {key: HERE[key] for key in ("date", "driver", "cuda")}
PRINTED = (
    '{"first_ns": 34649, "another_ns": 393.9, "taken_first_ns": 45706, "taken_another_ns": 391.0, "window_log2": 16, '
    '"untried": 1024, "scale": 16, "repeats": 4, "round_us": 22.74, "parents_after_child": 0.000}\n'
)
"""The first line of a process on an H200."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs the script on a program that does what a text of shell says."""
    monkeypatch.setattr(measure_spawn, "machine", lambda: HERE)
    output, program = tmp_path / "out.json", tmp_path / "spawn"

    def run(shell: str, *words: str):
        program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/words\n{shell}\n')
        program.chmod(0o755)
        code = measure_spawn.main([str(output), "--built", str(tmp_path), *words])
        return code, json.loads(output.read_text())

    return run


def recorded(tmp_path, key: str) -> Path:
    """Return a file of the lines that the program printed for an entry."""
    path = tmp_path / f"{key[-1]}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in json.loads(RESULTS.read_text())[key]))
    return path


def test_entries_are_what_the_program_printed_and_their_reader_joins_them(run, tmp_path) -> None:
    f, g = (recorded(tmp_path, key) for key in KEYS)
    code, results = run(f"[ -e {tmp_path}/once ] && exec cat {g}; touch {tmp_path}/once; cat {f}", "--replace", *"fg")
    shipped = json.loads(RESULTS.read_text())
    expected = {key: [VERSIONS | shipped[key][0], *shipped[key][1:]] for key in KEYS}
    assert (code, results) == (0, HERE | expected)
    first_words = (tmp_path / "words").read_text().splitlines()[0].split()
    assert first_words[:7] == ["--costs=45706,390.6", "--no-search", "7", "16", "16", "32", "1024"]
    assert set(first_words[7:]) == {row["name"] for row in shipped[KEYS[0]][1:]}
    joined = bench_spawn.joined(bench_spawn.runs_at(results, 16))
    assert joined == bench_spawn.joined([shipped[key] for key in KEYS])


def test_entries_of_other_processes_stay_and_numbers_remain_on_a_line(run, tmp_path) -> None:
    (tmp_path / "out.json").write_text(RESULTS.read_text())
    lines = recorded(tmp_path, KEYS[0])
    _, results = run(f"cat {lines}", "--processes", "1", "--scales", "12", "16", "--untried", "8192")
    shipped = json.loads(RESULTS.read_text())
    new = [key for key in results if key not in shipped]
    assert {key: results[key] for key in shipped} == shipped
    assert [key.rpartition(" ")[0] for key in new] == [f"untried 8192, scale {n}, process" for n in (12, 16)]
    assert not bench_spawn.runs_at({key: results[key] for key in new}, 12)
    assert '"flat_launched": [0, 0, 0, 0, 0, 0, 0],\n' in (tmp_path / "out.json").read_text()


def test_graphs_of_files_have_entries_of_their_names(run, tmp_path) -> None:
    graphs = [str(tmp_path / name) for name in ("routers.txt", "friends.txt")]
    _, results = run(f"printf '%s' '{PRINTED}'", "--processes", "1", "--search", "--graphs", *graphs)
    assert list(results)[-2:] == ["graph routers, process a", "graph friends, process b"]
    words = [line.split() for line in (tmp_path / "words").read_text().splitlines()]
    assert [line[1] for line in words] == [f"--graph={graph}" for graph in graphs]
    assert words[0][2:] == ["7", "5", "16", "32", "1024", "bfs-file", "sssp-file", "colouring-file"]


@pytest.mark.parametrize(("end", "cut"), [("kill -9 $$", "signal 9, at most 60 s"), ("exit 3", "exit 3")])
def test_lines_before_a_process_dies_are_kept_with_the_reason(run, end, cut) -> None:
    code, results = run(f"printf '%s' '{PRINTED}'\nprintf '{{\"name\": \"bf'\n{end}", "--processes", "1")
    assert code == 1
    assert results == HERE | {"scale 16, process a": [VERSIONS | json.loads(PRINTED) | {"cut": cut}]}


def test_a_process_that_hangs_is_ended(run) -> None:
    code, results = run(f"printf '%s' '{PRINTED}'\nsleep 600", "--processes", "1", "--limit", "1")
    assert (code, results["scale 16, process a"][0]["cut"]) == (1, "signal 9, at most 1 s")


def test_a_result_that_differs_is_no_success(run) -> None:
    row = '{"name": "bfs", "right": false, "flat_us": 1.0, "said": " warp differs from flat."}'
    code, results = run(f"printf '%s' '{PRINTED}'\necho '{row}'\nexit 1", "--processes", "1", "--costs", "")
    assert (code, results["assuming its own costs, scale 16, process a"][1]) == (1, json.loads(row))


def test_a_program_that_finds_no_gpu_is_no_success(run, tmp_path) -> None:
    (tmp_path / "out.json").write_text(json.dumps(HERE))
    assert run("exit 1", "--processes", "1") == (1, HERE)


def test_results_of_another_gpu_are_not_mixed(run, tmp_path) -> None:
    (tmp_path / "out.json").write_text(json.dumps(HERE | {"device": "NVIDIA L4"}))
    with pytest.raises(SystemExit):
        run("true")
