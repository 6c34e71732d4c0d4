"""``tileprof report`` as a user runs it."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.synthetic_graphs import write_mlp
from tileprof.cli.entry import main
from tileprof.trace import filters, load


def report(*arguments, cwd=None, environment=None):
    """Run `tileprof report`; in a separate process only if its environment matters."""
    if environment is None:
        with contextlib.chdir(cwd or Path.cwd()):
            return in_process(["report", *map(str, arguments)])
    return subprocess.run(
        [sys.executable, "-m", "tileprof.cli", "report", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def in_process(arguments):
    """Run as the command line would, without a new interpreter: starting one takes longer than the report."""
    with io.BytesIO() as out, io.BytesIO() as err:
        streams = [io.TextIOWrapper(file, encoding="utf-8", write_through=True) for file in (out, err)]
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            try:
                code = main(arguments)
            except SystemExit as stop:
                code = int(stop.code or 0)
        result = SimpleNamespace(returncode=code, stdout=out.getvalue().decode(), stderr=err.getvalue().decode())
        for stream in streams:
            stream.detach()
        return result


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    return write_mlp(tmp_path_factory.mktemp("report") / "mlp.tileprof", layers=3, tokens=1024, hidden=2048)


def test_the_report_begins_with_a_verdict_and_what_to_do(mlp):
    result = report(mlp)
    lines = result.stdout.splitlines()
    guidance = json.loads(report(mlp, "--json").stdout)["guidance"]
    first = guidance["actions"][0]
    assert lines[0].lower().startswith(guidance["verdict"]["sentence"][:60].lower())
    assert next(line for line in lines if line.startswith("1. "))[3:20].lower() == first["title"][:17].lower()
    assert first["command"] in " ".join(result.stdout.split())


def test_the_report_names_the_pair_to_look_at_and_the_next_command(mlp):
    result = report(mlp)
    text = " ".join(result.stdout.split())
    assert (result.returncode, result.stderr) == (0, "")
    assert "First pair: launches 0 → 1, addmm h.*.mlp.up → addmm h.*.mlp.down, \N{MULTIPLICATION SIGN}3." in text
    assert f"Next: tileprof view {mlp.name}" in text.replace(f"{mlp.parent}/", "")
    assert "modelled" in text


@pytest.mark.parametrize(
    ("is_warm", "options", "where", "why"),
    [
        (False, "", ">/dev/full", "No space left on device"),
        (True, "--json", ">/dev/full", "No space left on device"),
        (False, "", ">&-", "it is closed"),
    ],
)
def test_a_stdout_that_cannot_be_written_is_one_sentence(mlp, warm, is_warm, options, where, why):
    command = f"{warm.path}/tileprof" if is_warm else f"{sys.executable} -m tileprof.cli"
    line = f"{command} report {options} '{mlp}' {where}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, f"tileprof: cannot write to stdout: {why}\n")


def test_json_is_for_programs(mlp):
    document = json.loads(report(mlp, "--json").stdout)
    assert document["pairs"][0]["pattern"] == "row"
    assert document["pairs"][0]["times"] == 3
    bounds = document["bounds"]
    assert bounds["bound_ns"] <= bounds["ready_gated_bound_ns"] <= bounds["list_schedule_ns"] <= bounds["recorded_ns"]
    # Weights of three layers and the input, each once. Every activation stays in memory, since nothing is freed.
    weights, rows = 3 * 2 * 4 * 2048 * 2048 * 2, 1024 * 2048 * 2
    assert bounds["compulsory_dram_bytes"] == weights + rows + 3 * (4 * rows + rows)


def test_a_bound_has_one_name_in_tables_sentences_pages_and_json(mlp):
    text = report(mlp).stdout
    table = text.partition("Bounds on the program")[2].splitlines()
    for name in json.loads(report(mlp, "--json").stdout)["bounds"]["bounds_ns"]:
        assert any(re.match(rf"{name}( \*)? +\d", line) for line in table)
    pages = [path.read_text() for path in (Path(__file__).parents[3] / "docs").glob("*.md")]
    for message in (text, *pages):
        assert not re.search(r"critical path, |ready-gated critical path", message)


def test_another_gpu_is_asked_for_by_its_size(mlp):
    small = json.loads(report(mlp, "--json", "--sms", "40").stdout)
    large = json.loads(report(mlp, "--json", "--device", "H100").stdout)
    assert (small["device"]["sms"], small["device"]["replayed"]) == (40, True)
    assert small["program"]["waves"] > large["program"]["waves"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.tileprof"], "there is no trace"),
        (["--top", "-1", "x.tileprof"], "--top -1"),
        (["--sms", "0", "x.tileprof"], "at least one SM"),
    ],
)
def test_bad_usage_is_one_paragraph_and_code_two(arguments, says, tmp_path):
    result = report(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_gpu_is_answered_with_those_that_are_known(mlp):
    result = report(mlp, "--device", "H1000")
    assert result.returncode == 2
    assert "H100" in result.stderr


def test_a_reader_that_has_gone_is_no_failure(mlp):
    line = f"set -o pipefail; {sys.executable} -m tileprof.cli report '{mlp}' | head -1"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert ": " in result.stdout.splitlines()[0]


def test_the_gpu_is_drawn_over_time_and_pairs_as_they_become_ready(mlp):
    text = report(mlp).stdout
    [busy] = [line for line in text.splitlines() if line.startswith("slots busy")]
    assert re.fullmatch(r"slots busy +[ ▁▂▃▄▅▆▇█]{60} \d+% *", busy)
    assert re.search(r"edges .*[▁▂▃▄▅▆▇]█ ", text)


@pytest.mark.parametrize(("options", "environment"), [(["--plain"], None), ([], {"PYTHONIOENCODING": "ascii"})])
def test_a_plain_report_is_ascii_and_its_tables_stay_straight(mlp, options, environment):
    fancy = report(mlp).stdout.splitlines()
    plain = report(mlp, *options, environment=environment).stdout
    assert plain.isascii()
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in fancy]
    assert "0 > 1  x3" in plain


def test_a_map_is_never_cut(mlp):
    plain_text = report(mlp).stdout
    for pair in json.loads(report(mlp, "--json").stdout)["pairs"]:
        assert pair["map"] in plain_text


LAYER = """
import sys, time
sys.path.insert(0, {root!r})
from tileprof.trace import writer
from tests.support.small_programs import Program, norm
writer.CHECKPOINT_ROWS = 1
program = Program({path!r})
buffers = [program.buffer() for _ in range(4)]
for before, after in zip(buffers, buffers[1:]):
    program.launch("row", norm(), (before, after))
    print("launched", flush=True)
    sys.stdin.readline()
{end}
"""


WATCH = """
import sys
from tileprof.cli.entry import main
from tileprof.trace import filters, load
from tileprof.cli.verbs import report_watch

report_watch.LOOK_AGAIN_S = 0.05
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("end", "last"), [("program.writer.close()", "3 with 24 tiles"), ("import os; os._exit(3)", "PARTIAL")]
)
def test_a_watched_recording_is_reported_as_it_grows_and_until_it_ends(tmp_path, end, last, warm):
    root = Path(__file__).parents[3]
    code = LAYER.format(root=str(root), path=str(tmp_path / "t"), end=end)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as recording:
        recording.stdout.readline()
        (tmp_path / "watch.py").write_text(WATCH)
        command = [warm.python, tmp_path / "watch.py", "report", "--watch", tmp_path / "t.tileprof"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
            actual, reports = [], 0
            for line in watching.stdout:
                actual.append(line)
                reports += line.startswith("Next:")
                if line.startswith("Next:") and reports <= 3:
                    recording.stdin.write("\n")
                    recording.stdin.flush()
                if reports == 3:
                    recording.wait(200)
            assert watching.wait(200) == 0
            assert watching.stderr.read() == ""
    text = "".join(actual)
    assert text.startswith("STILL BEING RECORDED")
    assert "1 with 8 tiles" in text
    assert "\x1b" not in text
    assert reports >= 3
    assert last in text.split("Next: ")[-2]


def test_a_finished_trace_is_watched_once(mlp):
    result = report(mlp, "--watch")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == report(mlp).stdout


def test_a_watch_of_nothing_and_a_watch_for_programs_are_refused(mlp, tmp_path):
    assert "there is no trace" in report(tmp_path / "nothing", "--watch").stderr
    assert "--watch and --json exclude each other" in report(mlp, "--watch", "--json").stderr


def test_unknown_values_of_a_recording_on_a_gpu_are_not_shown_as_zero(mlp):
    golden = Path(__file__).parents[2] / "golden" / "gemm_pair.tileprof"
    golden_report, modelled = report(golden).stdout, report(mlp).stdout
    assert "arithmetic not recorded" in golden_report
    assert not re.search(r"^compute ", golden_report, re.MULTILINE)
    assert re.search(r"^work +[\d.]+ [GT]FLOP", modelled, re.MULTILINE)
    assert re.search(r"^compute ", modelled, re.MULTILINE)


def test_filters_that_blocks_filled_are_queried_and_their_cost_is_reported(tmp_path):
    """Filters of the first launch are full, the others empty: only dependencies on the first are found."""
    path = write_mlp(tmp_path / "mlp.tileprof", layers=2, tokens=256, hidden=512)
    trace = load(path)
    assert "Bloom filters of" not in report(path).stdout
    sizes = trace.launches["tiles"].tolist()
    words = [np.full((tiles, 2, 32), 0 if n else 0xFFFFFFFF, np.uint32) for n, tiles in enumerate(sizes)]
    stored = [filters.LaunchFilters(n, w, np.full(len(w), 7000)) for n, w in enumerate(words)]
    filters.write(path, filters.StoredFilters(1024, 2, 128, stored))
    part = json.loads(report(path, "--json").stdout)["filters"]
    answers = part["answers"]
    assert (part["bits"], part["hashes"], part["granule"], part["launches"]) == (1024, 2, 128, len(sizes))
    assert (answers["full"], answers["filters"]) == (2 * sizes[0], 2 * sum(sizes))
    assert answers["answered"] == answers["dependent"] - answers["missed"] + part["false"]
    assert answers["answered"] == sizes[0] * sum(sizes[1:5])
    assert 0 < answers["missed"] < answers["dependent"]
    text = " ".join(report(path).stdout.split())
    assert f"{answers['missed']:,} missed" in text
    assert f"Bloom filters of 1,024 bits, 2 hashes, granules of 128 bytes, which the blocks of {len(sizes)}" in text
