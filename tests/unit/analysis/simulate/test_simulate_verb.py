"""``tileprof simulate`` from its options to its table."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.simulate_command import simulate
from tests.support.small_programs import Program
from tests.support.synthetic_graphs import write_mlp
from tileprof import devices
from tileprof.analysis.simulate.filters import bloom
from tileprof.analysis.times_and_counts import counted, duration, signed_percent
from tileprof.cli.text.simulate_text import print_standing, standing_of, wide_terminal
from tileprof.errors import UserError
from tileprof.trace import load


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    return write_mlp(tmp_path_factory.mktemp("simulate") / "mlp.tileprof", layers=2, tokens=1024, hidden=1024)


def test_every_scheduler_is_compared_with_stream_order_and_the_bounds(mlp, capsys):
    assert simulate(mlp) == 0
    text = capsys.readouterr().out
    for name in (
        "stream",
        "graph",
        "pdl",
        "streams",
        "acs-sw",
        "acs-hw",
        "cusync",
        "persistent",
        "persistent-dynamic",
        "ccks",
        "blockmaestro",
        "wireframe",
        "dataflow-bloom",
        "dataflow",
        "list",
        "bound, any schedule",
        "bound, ready-gated",
        "The program took",
    ):
        assert name in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda writer: writer.close(), "nothing that runs on a GPU was recorded"),
        (lambda writer: writer.abandon("killed"), "the recording was cut before anything was saved"),
    ],
)
def test_a_trace_without_launches_is_refused_in_one_sentence(mlp, tmp_path, capsys, end, why):
    trace = end(Program(tmp_path / "empty").writer)
    for words in ((trace,), (mlp, trace), (trace, "--scheduler", "list", "--sweep", "sms=4:8:2"), (trace, "--dask")):
        with pytest.raises(UserError, match=f"{re.escape(str(trace))} holds no launches to simulate: {why}$"):
            simulate(*words)
    assert capsys.readouterr().out == ""


def test_the_launch_rate_of_another_device_counts(mlp, tmp_path, capsys):
    device = {**devices.get("H200").to_dict(), "host_issue_ns": 1e6, "host_issue_shared_ns": 1e6}
    (tmp_path / "slow.json").write_text(json.dumps(device))
    simulate(mlp, "--device", tmp_path / "slow.json", "--scheduler", "stream", "--scheduler", "graph", "--json")
    times = [s["time_ns"] for s in json.loads(capsys.readouterr().out)["schedules"]]
    assert times[1] < 1e6 < times[0]


def test_a_host_that_is_slower_than_the_recorded_one_is_named(tmp_path, capsys):
    simulate(
        write_mlp(tmp_path / "small.tileprof", layers=20, tokens=128, hidden=128, tile_ns=[500.0, 500.0]),
        "--scheduler",
        "stream",
    )
    text = " ".join(capsys.readouterr().out.split())
    assert "since the simulated host takes 3.7 us per launch, and kernels wait for it" in text


def test_schedulers_are_chosen_by_name_and_options(mlp, capsys):
    simulate(mlp, "--scheduler", "stream:gap_ns=0", "--scheduler", "list", "--json")
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["version"]) == ("tileprof simulation", 1)
    assert [s["scheduler"] for s in document["schedules"]] == ["stream:gap_ns=0", "list"]
    times = [s["time_ns"] for s in document["schedules"]]
    assert document["bounds"]["bound_ns"] <= times[1] <= times[0] < document["stream_ns"]


def test_a_scheduler_that_cannot_run_is_left_out_unless_it_was_asked_for(mlp, capsys, monkeypatch):
    monkeypatch.setattr(bloom, "_MOST_BYTES", 1)
    assert simulate(mlp) == 0
    out, err = capsys.readouterr()
    assert "dataflow-bloom is left out" in err
    assert "dataflow-bloom" not in out
    with pytest.raises(UserError, match="too many pairs"):
        simulate(mlp, "--scheduler", "dataflow-bloom")


def test_another_gpu_may_be_asked_for(mlp, capsys):
    simulate(mlp, "--scheduler", "list", "--sms", "8", "--json")
    small = json.loads(capsys.readouterr().out)["stream_ns"]
    simulate(mlp, "--scheduler", "list", "--device", "H100", "--json")
    assert json.loads(capsys.readouterr().out)["stream_ns"] < small


def test_advice_comes_with_its_reasons(mlp, capsys):
    simulate(mlp, "--scheduler", "list", "--advice")
    text = " ".join(capsys.readouterr().out.split())
    assert "What to do first" in text
    assert "because" in text
    assert "held back" in text


def test_dependent_launch_is_listed_pair_by_pair_on_request(mlp, capsys):
    simulate(mlp, "--scheduler", "pdl:recorded=1")
    text = capsys.readouterr().out
    assert "Dependent launch, pair by pair" in text
    assert "safe trigger" in text
    assert max(map(len, text.splitlines())) <= 80
    simulate(mlp, "--scheduler", "pdl", "--json")
    document = json.loads(capsys.readouterr().out)["dependent_launch"]
    assert {"last_store", "last_store_ns", "prologue", "prologue_ns", "saves_ns", "times"} <= set(document[0])
    simulate(mlp, "--scheduler", "list")
    assert "pair by pair" not in capsys.readouterr().out


def test_every_bound_in_the_table_has_a_footnote_with_what_it_assumes(mlp, capsys):
    simulate(mlp, "--scheduler", "list")
    text = " ".join(capsys.readouterr().out.split())
    assert "¹ " in text
    assert "any schedule" in text.split("¹ ")[2]
    assert "The optimum of ready-gated schedules without costs lies between" in text
    assert "within 5%" in text


@pytest.mark.parametrize("model", ["recorded", "co-residency-scaled:sensitivity=0.5", "shared-roofline"])
def test_the_duration_model_is_chosen_and_printed(mlp, capsys, model):
    simulate(mlp, "--scheduler", "list", "--durations", model)
    message = {"recorded": "Tiles last as recorded", "co": "fuller SMs", "shared": "ask for more DRAM bandwidth"}
    assert message[model.split("-")[0]] in " ".join(capsys.readouterr().out.split())
    simulate(mlp, "--scheduler", "list", "--durations", model, "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["durations"] == model.split(":")[0]
    assert document["schedules"][0]["time_ns"] >= document["bounds"]["ready_gated_bound_ns"]


def test_timelines_are_written_once_and_not_over_each_other(mlp, tmp_path, capsys):
    target = tmp_path / "timeline.json"
    words = ("--scheduler", "stream", "--scheduler", "list", "--export", "perfetto", "-o", target)
    simulate(mlp, *words)
    events = json.loads(target.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"stream: launches", "stream: SMs", "list: launches", "list: SMs"}
    tiles = [e for e in events if e.get("cat") == "tile"]
    simulate(mlp, "--scheduler", "stream", "--json")
    capsys.readouterr()
    assert len(tiles) == 2 * len({(e["args"]["launch"], e["args"]["tile"]) for e in tiles})
    by_track = {}
    for e in tiles:
        by_track.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for spans in by_track.values():  # one tile at a time in a slot
        ordered_spans = sorted(spans)
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in pairwise(ordered_spans))
    with pytest.raises(UserError, match="without --force"):
        simulate(mlp, *words)
    simulate(mlp, *words, "--force")


def test_a_scheduler_that_is_asked_for_twice_is_exported_twice(mlp, tmp_path):
    target = tmp_path / "timeline.json"
    simulate(mlp, "--scheduler", "list", "--scheduler", "list", "--export", "perfetto", "-o", target)
    events = json.loads(target.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"list: launches", "list: SMs", "list (2): launches", "list (2): SMs"}


def test_partial_and_conservative_traces_are_reported_first(mlp, tmp_path, capsys):
    partial = tmp_path / "partial.tileprof"
    shutil.copytree(mlp, partial)
    manifest = json.loads((partial / "manifest.json").read_text())
    (partial / "manifest.json").write_text(json.dumps(manifest | {"complete": False, "reason": "killed"}))
    simulate(partial, "--scheduler", "list")
    assert capsys.readouterr().out.startswith("PARTIAL TRACE (killed)")
    for request in ((partial, "--scheduler", "list"), (partial, "--scheduler", "list", "--sweep", "sms=4:8:2")):
        simulate(*request, "--json")
        document = json.loads(capsys.readouterr().out)
        assert (document["complete"], document["reason"], document["conservative_launches"]) == (False, "killed", 0)
    simulate(mlp, "--scheduler", "list")
    assert "PARTIAL" not in capsys.readouterr().out


def test_conservative_launches_are_counted(mlp, capsys):
    trace = load(mlp)
    trace.launches["coverage"] = "conservative"
    many = len(trace.launches)
    assert standing_of(trace) == {"complete": True, "reason": "", "conservative_launches": many}
    print_standing(wide_terminal(), trace)
    assert f"{many} of {many} launches are conservative" in capsys.readouterr().out


@pytest.mark.parametrize("width", ["80", "100"])
def test_no_value_is_broken_or_cut(mlp, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    simulate(mlp)
    for line in capsys.readouterr().out.splitlines():
        assert not re.fullmatch(r" +(s|ms|us|ns)", line)
        assert len(line) <= int(width)
        if line.startswith("saved:"):
            break
        assert "…" not in line


def test_launches_without_flops_are_reported(capsys):
    golden = Path(__file__).parents[3] / "golden" / "gemm_pair.tileprof"
    simulate(golden, "--scheduler", "list", "--durations", "shared-roofline")
    text = " ".join(capsys.readouterr().out.split())
    assert "The trace has no FLOPs" in text
    assert "recorded time of its 2 launches by construction" in text
    assert "ready-gated schedules without costs is 7.3 us." in text
    simulate(golden, "--scheduler", "list")
    assert "FLOPs" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ns", "message"), [(999_700, "1 ms"), (999_400, "999 us"), (0, "0 ns"), (5e12, "5,000 s"), (1e300, "1e+291 s")]
)
def test_times_have_three_figures_and_never_fill_a_line(ns, message):
    assert duration(ns) == message


def test_one_is_not_many_and_nothing_is_not_negative():
    assert [counted(1, "launch"), counted(2, "launch"), counted(1, "round")] == ["1 launch", "2 launches", "1 round"]
    assert [signed_percent(-1e-9), signed_percent(1e-9, plus=True), signed_percent(-0.5)] == ["0.0%", "+0.0%", "-50.0%"]


def test_advice_links_into_a_page(mlp, tmp_path, capsys):
    golden = Path(__file__).parents[3] / "golden" / "gpt2_graph.tileprof"
    simulate(golden, "--scheduler", "list", "--advice", "--page", tmp_path / "page.html")
    text, warning = capsys.readouterr()
    assert warning.count("is not written yet; type: tileprof view") == 1
    first = re.search(r"launches (\d+) → (\d+)", text)
    assert f"page.html#pair={first[1]},{first[2]}&beside=" in text
    simulate(mlp, "--scheduler", "list", "--advice")
    assert "--page FILE" in capsys.readouterr().out


def test_rules_for_child_grids_are_compared_on_a_workload(capsys):
    assert simulate("workload:bfs:scale=8,seed=1", "--scheduler", "spawn:launch=1us,queues=4") == 0
    text = capsys.readouterr().out
    for rule in ("flat", "always", "program", "threshold ", "spawn", "warp"):
        assert rule in text
    assert max(map(len, text.splitlines())) <= 80
    simulate("workload:join:scale=8", "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tileprof spawns"
    assert [r["policy"].split()[0] for r in document["rules"]] == [
        "flat",
        "always",
        "program",
        "threshold",
        "spawn",
        "warp",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["workload:bsf"], "did you mean bfs?"),
        (["workload:bfs:size=3"], "takes scale and seed"),
        (["workload:bfs:scale=99"], "expected 4 to 17"),
        (["workload:bfs:scale=x"], "is not a whole number"),
        (["workload:bfs:scal=9"], "did you mean scale?"),
        (["workload:bfs:9"], "'9' is not key=value; write workload:bfs:scale=14,seed=0"),
        (["workload:bfs,scale=9"], "write workload:bfs:scale=9"),
        (["workload:bfs:seed=-1"], "seed is -1, expected at least 0"),
        (["workload:bfs", "--scheduler", "list"], "record a program"),
        (["workload:bfs", "--scheduler", "spawn:launchns=1"], "did you mean launch_ns?"),
        (["workload:bfs", "--scheduler", "spawn:launch=1"], "not a time with a unit"),
        (["workload:bfs", "--scheduler", "spawn:queues=0"], "at least 1"),
        (["workload:bfs", "--sms", "3"], "needs a trace"),
        (["anything", "--scheduler", "spawn"], "no spawn events"),
    ],
)
def test_workloads_that_do_not_exist_are_answered_with_what_there_is(arguments, says):
    with pytest.raises(UserError) as error:
        simulate(*arguments)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "bad",
    [
        ["--scheduler", "lits"],
        ["--sms", "0"],
        ["--device", "H1000"],
        ["--durations", "recored"],
        ["--occupancy", "0"],
        ["-o", "there.json"],
        ["--export", "perfetto", "-o", "/no/such/folder/x.json"],
        ["--export", "perfetto", "-o", "x.json", "--scheduler", "list", "--sweep", "sms=1:2:2"],
        ["--dask", "--advice"],
        ["--occupancy", "2", "--scheduler", "list", "--sweep", "sms=1:2:2"],
        ["--sms", "999999999"],
        ["--occupancy", "9000000000000000000"],
        ["--page", "page.html"],
    ],
)
def test_bad_usage_is_a_user_error(mlp, bad):
    with pytest.raises(UserError):
        simulate(mlp, *bad)
