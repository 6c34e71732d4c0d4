import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from tileprof.errors import TraceError, UserError
from tileprof.trace import arrow, folder, load, manifest, schema, validate
from tileprof.trace import writer as writing

PARTS = 22
"""Number of parts of three layers with a checkpoint every 20 rows."""


class Killed(BaseException):
    """An exception that stands for a signal; nothing may catch it."""


def no_space():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(writing, "CHECKPOINT_ROWS", 20)


@pytest.fixture
def fail_at(monkeypatch):
    """Let the nth part, and ``times - 1`` after it, fail with an error. Return the list of requested parts."""

    def arrange(nth, error=None, times=1):
        real, actual = arrow.write_part, []

        def write_part(path, table, columns):
            actual.append(path)
            if nth < len(actual) <= nth + times:
                raise error
            real(path, table, columns)

        monkeypatch.setattr(arrow, "write_part", write_part)
        return actual

    return arrange


def run(result, layers):
    layers(result)
    result.close()


def assert_beginning_of_a_run(trace, whole):
    assert validate(trace) == []
    launches = len(trace.launches)
    pd.testing.assert_frame_equal(trace.launches, whole.launches[:launches])
    pd.testing.assert_frame_equal(trace.operands, whole.operands[: 2 * launches])
    for number in range(trace.footprints):
        assert (trace.footprint(number).boxes.offset == whole.footprint(number).boxes.offset).all()


def test_a_run_makes_as_many_parts_as_the_tests_below_assume(writer, layers, small_parts, fail_at):
    actual = fail_at(1 << 30)
    run(writer(), layers)
    assert len(actual) == PARTS


@pytest.mark.parametrize("nth", range(PARTS))
def test_a_recording_killed_at_any_write_loads_as_its_beginning(writer, layers, whole_trace, small_parts, fail_at, nth):
    fail_at(nth, Killed())
    trace_writer = writer("killed")
    with pytest.raises(Killed):
        run(trace_writer, layers)
    trace = load(trace_writer.partial_path)
    assert not trace.complete
    assert_beginning_of_a_run(trace, whole_trace)
    if nth >= 6:
        assert len(trace.launches) >= 2


@pytest.mark.parametrize("nth", range(PARTS))
def test_abandoning_after_an_interrupted_write_keeps_everything(writer, layers, whole_trace, small_parts, fail_at, nth):
    fail_at(nth, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), writer("stopped") as result:
        run(result, layers)
    trace = load(result.partial_path)
    assert trace.manifest["reason"].startswith("KeyboardInterrupt")
    assert trace.manifest["writer"] is None
    assert trace.manifest["rows"]["launches"] == len(trace.launches)
    assert_beginning_of_a_run(trace, whole_trace)


@pytest.mark.parametrize("nth", range(PARTS))
def test_a_full_disk_is_reported_and_the_written_part_loads(writer, layers, whole_trace, small_parts, fail_at, nth):
    fail_at(nth, no_space(), times=1000)
    trace_writer = writer("full")
    with pytest.raises(UserError, match=r"the disk is full while writing .*full\.tileprof\.partial"):
        run(trace_writer, layers)
    with pytest.raises(UserError, match="the disk is full"):
        trace_writer.note("more")
    with pytest.raises(UserError, match="the disk is full"):
        trace_writer.close()
    with pytest.raises(UserError, match="the disk is full"):
        trace_writer.abandon("the disk is full")
    assert not trace_writer.path.exists()
    trace = load(trace_writer.partial_path)
    assert trace.manifest["reason"] == "the disk is full"
    assert_beginning_of_a_run(trace, whole_trace)


def test_abandon_keeps_the_rest_when_space_came_back(writer, layers, whole_trace, small_parts, fail_at):
    fail_at(4, no_space())
    trace_writer = writer("full")
    with pytest.raises(UserError):
        layers(trace_writer)
    trace_writer.abandon("full for a moment")
    assert_beginning_of_a_run(load(trace_writer.partial_path), whole_trace)
    assert len(load(trace_writer.partial_path).launches) >= 2


def test_no_half_written_part_is_left(writer, layers, monkeypatch):
    def write_half(_table, file, **_):
        file.write(b"PAR1")
        raise no_space()

    trace_writer = writer()
    layers(trace_writer)
    monkeypatch.setattr(arrow.pq, "write_table", write_half)
    with pytest.raises(UserError):
        trace_writer.close()
    assert [p.name for p in trace_writer.partial_path.rglob("*") if p.is_file()] == ["manifest.json"]


def test_a_process_killed_outright_leaves_a_partial_trace(tmp_path, whole_trace):
    program = textwrap.dedent(f"""
        import os, signal
        from importlib.util import module_from_spec, spec_from_file_location
        from tileprof import devices
        from tileprof.trace import TraceWriter, writer
        spec = spec_from_file_location("builders", {str(Path(__file__).with_name("conftest.py"))!r})
        builders = module_from_spec(spec)
        spec.loader.exec_module(builders)
        writer.CHECKPOINT_ROWS = 20
        made = TraceWriter({str(tmp_path / "killed")!r}, recorder="test", command=[], device=devices.get("H200"))
        builders.record_layers(made)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    result = subprocess.run([sys.executable, "-c", program], check=False)
    assert result.returncode == -signal.SIGKILL
    with pytest.raises(TraceError, match=r"only a recording that did not end: open .*killed\.tileprof\.partial"):
        load(tmp_path / "killed")
    trace = load(tmp_path / "killed.tileprof.partial")
    assert repr(trace).endswith("launches on H200, partial>")
    assert len(trace.launches) >= 4
    assert_beginning_of_a_run(trace, whole_trace)


# ---- what is in the way


def test_an_existing_trace_is_not_overwritten(whole_trace, writer):
    with pytest.raises(UserError, match=r"will not overwrite .*run\.tileprof without --force"):
        writer()
    assert len(load(whole_trace.path).launches) == 6


def test_force_replaces_the_old_trace_only_when_the_new_one_is_whole(whole_trace, writer):
    trace_writer = writer(force=True)
    assert len(load(whole_trace.path).launches) == 6
    trace_writer.close()
    assert len(load(whole_trace.path).launches) == 0
    assert sorted(p.name for p in whole_trace.path.parent.iterdir()) == ["run.tileprof"]


def test_a_failed_replacement_leaves_the_old_trace(whole_trace, writer, monkeypatch):
    trace_writer = writer(force=True)
    real = type(trace_writer.path).rename

    def rename(self, target):
        if self == trace_writer.partial_path:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(type(trace_writer.path), "rename", rename)
    with pytest.raises(UserError, match="Input/output error"):
        trace_writer.close()
    assert len(load(whole_trace.path).launches) == 6
    assert load(trace_writer.partial_path).complete


@pytest.mark.parametrize("suffix", ["", folder.PARTIAL])
def test_force_does_not_replace_what_is_no_trace(writer, tmp_path, suffix):
    place = tmp_path / f"run{schema.SUFFIX}{suffix}"
    place.mkdir()
    (place / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="it is not a trace"):
        writer(force=True)
    assert (place / "thesis.tex").exists()


def test_force_does_not_follow_a_link(whole_trace, writer):
    link = whole_trace.path.parent / "link.tileprof"
    link.symlink_to(whole_trace.path)
    with pytest.raises(UserError, match="it is not a trace"):
        writer("link", force=True)
    assert len(load(whole_trace.path).launches) == 6


def test_a_trace_that_appears_meanwhile_wins(writer, whole_trace):
    whole_trace.path.rename(whole_trace.path.with_name("aside"))
    trace_writer = writer()
    whole_trace.path.with_name("aside").rename(whole_trace.path)
    with pytest.raises(UserError, match="will not overwrite"):
        trace_writer.close()
    assert load(trace_writer.partial_path).complete
    assert len(load(whole_trace.path).launches) == 6


def test_a_recording_under_way_is_left_alone_even_with_force(writer):
    trace_writer = writer()
    with pytest.raises(UserError, match=f"being written by process {os.getpid()}"):
        writer(force=True)
    assert trace_writer.close().exists()


def test_what_a_killed_recording_left_needs_force(writer):
    dead_writer = writer()
    dead_writer.abandon("for the test")
    with pytest.raises(UserError, match=r"did not end: will not overwrite it without --force \(it holds no launches"):
        writer()
    assert writer(force=True).close().exists()


def test_a_dead_writers_folder_is_not_taken_for_a_live_one(writer):
    dead_writer = writer()
    first_manifest = json.loads((dead_writer.partial_path / manifest.FILE_NAME).read_text())
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    first_manifest["writer"]["pid"] = child.pid
    manifest.write(dead_writer.partial_path, first_manifest)
    assert writer(force=True).close().exists()


def test_no_permission_is_a_sentence(writer, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(folder.Path, "mkdir", refuse)
    with pytest.raises(UserError, match="no permission while writing"):
        writer()


def test_a_writer_that_cannot_begin_leaves_nothing(writer, tmp_path, monkeypatch):
    def refuse(*_):
        raise no_space()

    monkeypatch.setattr(manifest, "write", refuse)
    with pytest.raises(UserError, match="the disk is full"):
        writer()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_touch_its_parents_trace(writer, layers, small_parts):
    trace_writer = writer()
    layers(trace_writer, 1)
    child = os.fork()
    if child == 0:
        layers(trace_writer, 4)
        trace_writer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert trace_writer.partial_path.exists()
    assert len(load(trace_writer.close()).launches) == 2


# ---- calls that would make an invalid trace


def test_a_closed_writer_takes_no_more(writer):
    trace_writer = writer()
    trace_writer.close()
    assert trace_writer.close() == trace_writer.path
    with pytest.raises(ValueError, match="is closed"):
        trace_writer.note("late")


def test_invalid_calls_are_refused_at_once(writer, footprint, launch):
    trace_writer = writer()
    buffer = trace_writer.add_buffer(base=0, bytes=4096, kind="unknown")
    number = trace_writer.add_footprint(footprint())
    wrong = {
        "no footprint 1": lambda: trace_writer.add_launch(launch(1, (buffer, buffer))),
        "has 2 operands, bound are 1": lambda: trace_writer.add_launch(launch(number, (buffer,))),
        "no buffer 7": lambda: trace_writer.add_launch(launch(number, (buffer, 7))),
        "timing is 'guessed', expected one of measured, modelled": lambda: trace_writer.add_launch(
            launch(number, (buffer, buffer), timing="guessed")
        ),
        "kind is 'weights'": lambda: trace_writer.add_buffer(base=0, bytes=0, kind="weights"),
        "times for launch 0": lambda: trace_writer.add_times(0, [0], [0], [0], [0]),
        "cannot be changed": lambda: trace_writer.describe_buffer(buffer, base=3),
        "a length below 1": lambda: trace_writer.add_footprint(footprint(length=0)),
        "at least one tile": lambda: trace_writer.add_footprint(footprint(tiles=0)),
    }
    for words, call in wrong.items():
        with pytest.raises(ValueError, match=words):
            call()
    trace_writer.free_buffer(buffer)
    with pytest.raises(ValueError, match="freed twice"):
        trace_writer.free_buffer(buffer)
    with pytest.raises(ValueError, match="after it was freed"):
        trace_writer.add_launch(launch(number, (buffer, buffer)))
    assert validate(load(trace_writer.close())) == []


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("tile", 9, "a tile beyond"),
        ("operand", -1, "a negative operand"),
        ("mode", 3, "an unknown mode"),
        ("count_0", 0, "a count below 1"),
        ("count_1", -1, "a count below 1"),
    ],
)
def test_boxes_that_no_trace_may_hold_are_refused(writer, footprint, column, value, words):
    wrong = footprint()
    getattr(wrong.boxes, column)[3] = value
    with pytest.raises(ValueError, match=f"box 3 of 8 has {words}"):
        writer().add_footprint(wrong)


def test_a_folder_that_is_removed_under_the_writer_is_reported(writer, layers):
    trace_writer = writer()
    layers(trace_writer)
    shutil.rmtree(trace_writer.partial_path)
    with pytest.raises(UserError, match="No such file"):
        trace_writer.close()


def _interrupted(result, layers, lines):
    """Record until this many lines of the writer have run, then raise; return whether that happened."""
    lines_left = lines

    def count(frame, event, _):
        nonlocal lines_left
        if not frame.f_code.co_filename.endswith("trace/writer.py"):
            return None
        if event == "line":
            lines_left -= 1
            if lines_left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        layers(result)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("every", [29, pytest.param(3, marks=pytest.mark.nightly)])
def test_an_interrupt_at_any_line_leaves_a_trace_that_validates(writer, layers, monkeypatch, every):
    monkeypatch.setattr("tileprof.trace.writer.CHECKPOINT_ROWS", 20)
    lines, came = 1, True
    while came:
        trace_writer = writer(f"run{lines}")
        came = _interrupted(trace_writer, layers, lines)
        trace = load(trace_writer.abandon("KeyboardInterrupt"))
        assert validate(trace) == [], f"interrupted after {lines} lines"
        assert trace.count("launches") == trace_writer.launches
        lines += every  # of some hundreds, and no two of a loop alike
    assert lines > 300
