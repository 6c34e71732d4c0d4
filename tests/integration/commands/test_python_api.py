"""tileprof from Python: recording a block, what a trace answers, the cell magic, the pytest marker."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tileprof
from tileprof.errors import UserError

torch = pytest.importorskip("torch")


def compute():
    x = torch.ones(64, 64)
    return (x @ x).relu()


@pytest.fixture(scope="module")
def block_recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("api") / "block.tileprof"
    with tileprof.record(path, device="H100"):
        compute()
    compute()  # after the block, so not in the trace
    return tileprof.load(path)


def test_only_the_block_is_recorded(block_recording):
    assert block_recording.complete
    assert block_recording.device.name.startswith("H100")
    assert list(block_recording.launches["op"].astype(str))[-2:] == ["aten::mm", "aten::relu"]
    assert (block_recording.launches["op"].astype(str) == "aten::mm").sum() == 1


def test_a_trace_answers_with_its_graph_its_report_and_its_page(block_recording, tmp_path):
    assert block_recording.graph() is block_recording.graph()
    assert repr(block_recording.graph()).startswith("<TileGraph: ")
    summary = block_recording.report()
    assert summary.guidance.verdict.sentence in repr(summary)
    assert "Dependent launches" in str(summary)
    assert "<table>" in block_recording._repr_html_()
    assert "aten::mm → aten::relu" in block_recording.graph()._repr_html_()
    page = block_recording.show(tmp_path / "page.html", browser=False)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_block_gives_a_recording_whose_trace_is_there_after_its_end(tmp_path):
    path = tmp_path / "block.tileprof"
    with tileprof.record(path) as recording:
        compute()
        with pytest.raises(UserError, match="is being written: read its trace after the `with` block"):
            recording.trace()
    assert repr(recording) == f"<Recording {path}: written>"
    assert recording.trace().launches.op.nunique() == 3


def test_a_step_counter_of_an_optimizer_is_no_read_from_the_gpu(tmp_path):
    weight = torch.ones(8, requires_grad=True)
    optimizer = torch.optim.AdamW([weight])
    with tileprof.record(tmp_path / "step.tileprof") as stepping:
        weight.sum().backward()
        optimizer.step()
    assert not any("read a value" in note for note in stepping.notes)
    with tileprof.record(tmp_path / "read.tileprof") as reading:
        weight.sum().item()
    assert any("read a value" in note for note in reading.notes)


def test_pairs_know_their_gain_and_a_graph_draws_itself(block_recording):
    graph = block_recording.graph()
    pairs = graph.pairs
    assert (pairs["gain_ns"] > 0).any()
    assert set(zip(pairs["producer"], pairs["consumer"], strict=True)) == set(
        zip(graph.links["producer"], graph.links["consumer"], strict=True)
    )
    producer, consumer = pairs[["producer", "consumer"]].iloc[-1]
    figures = (
        graph.plot_pair(producer, consumer),
        graph.plot_tiles(),
        graph.plot_tiles([producer, consumer]),
        graph.plot_timeline(),
        graph.plot_gain(),
    )
    for figure in figures:
        assert figure.layout.title.text
        assert len(figure.to_json()) > 500
    gains = graph.plot_gain().data[0]
    assert sum(gains.x) == pytest.approx(block_recording.report().report.groups["gain_ns"].sum() / 1e3)
    timeline = graph.plot_timeline()
    assert sum(map(len, (bar.x for bar in timeline.data))) == len(block_recording.launches)


@pytest.mark.parametrize("library", ["duckdb", "polars"])
def test_the_documented_line_reads_the_tables(block_recording, library, monkeypatch):
    module = pytest.importorskip(library)
    reference_page = (Path(__file__).parents[3] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"`({library}\.[^`]*)`", reference_page)
    monkeypatch.chdir(block_recording.path.parent)
    rows = eval(line.replace("step.tileprof", block_recording.path.name), {library: module})
    assert len(rows) > 0


def test_capture_outside_of_a_recording_warns_once(tmp_path):
    source = "import tileprof\nfor _ in range(2):\n    with tileprof.capture():\n        pass"
    result = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert result.stderr.count("records nothing by itself") == 1


def test_a_block_that_raises_leaves_a_partial_trace(tmp_path):
    def failing():
        torch.ones(8).exp()
        raise RuntimeError("no such thing")

    with pytest.raises(RuntimeError, match="no such thing"), tileprof.record(tmp_path / "t.tileprof"):
        failing()
    (partial_path,) = tmp_path.iterdir()
    trace = tileprof.load(partial_path)
    assert not trace.complete
    assert "RuntimeError: " in trace.manifest["reason"]


def test_an_existing_trace_is_only_overwritten_on_request(block_recording):
    with pytest.raises(UserError, match="force"), tileprof.record(block_recording.path):
        compute()


def test_the_names_of_the_package_are_shown():
    assert {"capture", "load", "record", "Trace"} <= set(dir(tileprof))


NESTED = """
import tileprof, torch
torch.ones(8).exp()
with tileprof.record("inner.tileprof"):
    torch.ones(8).sin()
"""


def test_inside_a_recorded_program_a_block_limits_that_recording(tmp_path, warm):
    (tmp_path / "program.py").write_text(NESTED)
    command = [warm.path / "tileprof", "record", "--recorder", "model", "--", sys.executable, "program.py"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert [p.name for p in tmp_path.glob("*.tileprof")] == ["program.tileprof"]
    operators = set(tileprof.load(tmp_path / "program.tileprof").launches["op"].astype(str))
    assert "aten::sin" in operators
    assert "aten::exp" not in operators


def test_the_cell_magic_records_a_cell_and_shows_its_trace(tmp_path, monkeypatch):
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.chdir(tmp_path)
    shell = interactive.InteractiveShell()
    tileprof.load_ipython_extension(shell)
    shell.user_ns["torch"] = torch
    trace = shell.run_cell_magic("tileprof", "cell.tileprof --device H100", "y = torch.ones(8).sin()")
    assert trace.path.name == "cell.tileprof"
    assert "aten::sin" in set(trace.launches["op"].astype(str))
    with pytest.raises(UserError, match="unrecognized arguments: --devise"):
        shell.run_cell_magic("tileprof", "--devise H100", "pass")


MARKED = """
import pytest, torch

@pytest.mark.tileprof(max_launches=10, no_conservative=True)
def test_within():
    torch.ones(8).sin()

@pytest.mark.tileprof(max_launches=1)
def test_beyond():
    torch.ones(8).sin().cos()

@pytest.mark.tileprof(fail_if="launches>1")
def test_condition():
    torch.ones(8).sin().cos()

@pytest.mark.tileprof(max_gpa=1)
def test_misspelt():
    pass

def test_unmarked():
    pass
"""


def test_the_marker_fails_a_test_whose_trace_breaks_a_limit(tmp_path, warm):
    (tmp_path / "test_marked.py").write_text(MARKED)
    plugins = ["-p", "tileprof.pytest_plugin", "-p", "no:cacheprovider"]
    command = [warm.python, "-m", "pytest", "-q", *plugins, "test_marked.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in result.stdout, result.stdout + result.stderr
    assert "3 failed" in result.stdout
    for message in ("more than 1", "launches>1 holds", "unknown arguments ['max_gpa']"):
        assert message in result.stdout
