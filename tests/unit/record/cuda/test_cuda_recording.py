"""A whole recording without a GPU: the program is a stand-in that leaves raw records as the injection library would."""

import json
import re
import sys
from pathlib import Path

import pytest

from tileprof.errors import UserError
from tileprof.record import Options
from tileprof.record.cuda import recorded_run, recording
from tileprof.record.cuda.decode import Decoder
from tileprof.record.cuda.installation import gpu, locate, recorder_build
from tileprof.record.cuda.settings import Settings
from tileprof.record.cuda.tensor_maps import im2col, tensormap
from tileprof.record.filter_settings import FilterSettings
from tileprof.trace import load, validate

PROGRAM = """
import json, os, struct, sys
folder = os.environ["TILEPROF_RAW"]
print("hello from the program", flush=True)
if os.environ.get("ONCE") and os.environ.get("TILEPROF_PASS") != "accesses":
    sys.exit(0)
LAUNCHES = int(os.environ.get("N_" + os.environ.get("TILEPROF_PASS", "time"), "2"))

def process(pid, launches):
    place = os.path.join(folder, "process-%d" % pid)
    os.makedirs(place)
    if "TILEPROF_TIME" in os.environ:
        if os.environ.get("NO_CUPTI"):
            open(os.path.join(place, "failed.txt"), "w").write("ImportError: no CUPTI")
            return
        with open(os.path.join(place, "kernels.jsonl"), "w") as out:
            for n in range(launches):
                row = dict(name="_Z1kPi", grid=[1, 1, 1], block=[32, 1, 1], begin=1000 + 100 * n, end=1050 + 100 * n,
                           registers=40, device=0, shared=512, correlation=n, graph=0, stream=7)
                out.write(json.dumps(row) + "\\n")
            if os.environ.get("CUT_TIMES"):
                out.write('{"name": "_Z1k')
        return
    pass_ = os.environ["TILEPROF_PASS"]
    events = [dict(e="start", version=1, pid=pid, granule=32, arena=1, **{"pass": pass_}),
              dict(e="alloc", address=1 << 20, bytes=4096, device=0, flags=0),
              dict(e="kernel", id=0, name="k(int*)", symbol="_Z1kPi", scanned=1, fingerprint="00", registers=32,
                   static_shared=0, parameters=[528, 8], tensor_load=0, tensor_store=0, tensor_reduce=0)]
    entries = b""
    for n in range(launches):
        events.append(dict(e="launch", launch=n + 1, kernel=0, grid=[1, 1, 1], block=[32, 1, 1], cluster=[1, 1, 1],
                           stream="0x1", context=0, device=0, graph=-1, generation=0, ordinal=n, t=n))
        entries += struct.pack("<QII4I", 1 << 60 | 5, 0, n + 1, 100 * n, 0, 100 * n + 70, 0)
        if pass_ == "accesses":
            entries += struct.pack("<QII4I", 1024, 0, n + 1, 0, 1, 0, 100 * n + 35)
    events.append(dict(e="drain", entries=len(entries) // 32, lost=0))
    if os.environ.get("CUT_ENTRIES"):
        events += [dict(events[-2], launch=50, ordinal=50), dict(e="drain", entries=2, lost=0)]
        entries += struct.pack("<QII4I", 1 << 60 | 5, 0, 50, 0, 0, 9, 0)
    ends = [dict(e="complaint", text=text) for text in json.loads(os.environ.get("COMPLAINTS", "[]"))]
    if os.environ.get("HANGS"):
        events.append(dict(e="hung", kernel="spins", t=9))
    elif os.environ.get("DIES"):
        events += [dict(events[-2], launch=99, ordinal=99), *ends]
    else:
        if "TILEPROF_NVTX" in os.environ:
            events.append(dict(e="ranges", pattern=os.environ["TILEPROF_NVTX"], **json.loads(os.environ["RANGES"])))
        events += [*ends, dict(e="end", t=9)]
    open(os.path.join(place, "entries.bin"), "wb").write(entries)
    open(os.path.join(place, "events.jsonl"), "w").write(
        "".join(json.dumps(e, separators=(",", ":")) + "\\n" for e in events)
    )

if "NO_CUDA" not in os.environ:
    process(100, LAUNCHES)
if os.environ.get("FAILED") and os.environ.get("TILEPROF_PASS") == "accesses":
    os.makedirs(os.path.join(folder, "process-300"))
    open(os.path.join(folder, "process-300", "events.jsonl"), "w").write('{"e": "failed", "why": "another tool"}\\n')
    os.makedirs(os.path.join(folder, "process-301"))  # no room was left for its files
for extra in range(int(os.environ.get("EXTRA", "0"))):
    process(200 + extra, 1)
if "SIGNAL" in os.environ:
    os.kill(os.getpid(), int(os.environ["SIGNAL"]))
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Record the stand-in with these environment variables and settings."""
    monkeypatch.setattr(gpu, "gpus", lambda: [gpu.Gpu("NVIDIA H200", "sm_90", "13.0")])
    monkeypatch.setattr(gpu, "driver", lambda: None)
    monkeypatch.setattr(tensormap, "calibrate", lambda _: None)
    monkeypatch.setattr(im2col, "calibrate", lambda _: None)
    monkeypatch.setattr(locate, "sanitizer", lambda: locate.Sanitizer(tmp_path, tmp_path / "s.so", "13.4"))
    monkeypatch.setattr(
        recorder_build, "build", lambda _: recorder_build.Built(tmp_path / "l.so", tmp_path / "p.fatbin")
    )
    monkeypatch.delenv("CUDA_INJECTION64_PATH", raising=False)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def run(settings=None, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        # -S: the stand-in writes what the hooks of the time pass would
        options = Options(program=(sys.executable, "-S", str(script)), output=tmp_path / "t.tileprof", force=True)
        return recording.record(options, settings)

    return run


def test_three_passes_make_one_trace_and_the_program_prints_once(record, tmp_path, capfd):
    assert record() == 0
    out, err = capfd.readouterr()
    assert out == "hello from the program\n"
    assert "of 64 bytes written: 100.0% exact" in err
    assert "next: tileprof report" in err
    trace = load(tmp_path / "t.tileprof")
    assert validate(trace) == []
    assert trace.launches[["begin_ns", "duration_ns", "registers", "shared_bytes"]].to_numpy().tolist() == [
        [0, 50, 40, 512],
        [100, 50, 40, 512],
    ]
    assert trace.times[["sm", "begin_ns", "end_ns"]].to_numpy().tolist() == [[5, 0, 70]] * 2
    assert trace.accesses["first"].tolist() == [0.5]
    assert trace.manifest["notes"] == []
    assert "H200" in trace.device.name


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Return the passes, with whether a server listens that says which launches need no patches."""
    (tmp_path / "nvdisasm").touch()
    monkeypatch.setattr(locate, "nvdisasm", lambda: tmp_path / "nvdisasm")
    passes, run = {}, recorded_run.run

    def noted(command, variables, **options):
        path = variables.get("TILEPROF_PROOFS")
        passes[variables.get("TILEPROF_PASS", "time")] = path is not None and Path(path).is_socket()
        return run(command, variables, **options)

    monkeypatch.setattr(recorded_run, "run", noted)
    return passes


def test_only_the_accesses_pass_asks_which_launches_need_no_patches(record, served):
    record()
    assert served == {"accesses": True, "blocks": False, "time": False}
    served.clear()
    record(Settings(passes=("accesses", "blocks"), capture_only=True))
    assert served == {"accesses": True, "blocks": False}


@pytest.mark.parametrize(
    ("settings", "architectures", "tool"),
    [
        ({"passes": ("accesses", "time")}, ["sm_90"], True),
        ({"patch": "load"}, ["sm_90"], True),
        ({"patch": "range", "capture_only": True}, ["sm_90"], True),
        ({"passes": ("accesses", "blocks"), "filters": FilterSettings.parse("8192")}, ["sm_90"], True),
        ({}, ["sm_80"], True),
        ({}, ["sm_90", "sm_100"], True),
        ({}, ["sm_90"], False),
    ],
    ids=["no block times", "load", "range", "filters", "another GPU", "several GPUs", "no nvdisasm"],
)
def test_all_launches_get_patches_where_what_they_touch_is_not_computed(
    record, served, monkeypatch, settings, architectures, tool
):
    monkeypatch.setattr(gpu, "gpus", lambda: [gpu.Gpu("NVIDIA H200", name, "13.0") for name in architectures])
    if not tool:
        monkeypatch.setattr(locate, "nvdisasm", lambda: None)
    record(Settings(**settings))
    assert served["accesses"] is False


def test_decoding_knows_what_the_program_was_told(record, served, monkeypatch):
    serving, decoding = [], []
    enter = recording.Server.__enter__
    monkeypatch.setattr(recording.Server, "__enter__", lambda server: serving.append(server.proofs) or enter(server))
    monkeypatch.setattr(recording, "Decoder", lambda *a: decoding.append(a[-1]) or Decoder(*a))
    record(EXTRA="1")
    assert len(serving) == 1
    assert [kept is serving[0] for kept in decoding] == [True, True]


def test_the_programs_exit_code_is_the_recordings(record):
    assert record(CODE="7") == 7


def test_passes_that_disagree_are_reported_and_joined_as_far_as_they_agree(record, tmp_path, capfd):
    record(N_time="3")
    assert "the time pass saw 3 launches, the accesses pass 2" in capfd.readouterr().err
    trace = load(tmp_path / "t.tileprof")
    assert trace.launches.duration_ns.tolist() == [50, 50]
    assert any("not repeatable" in note for note in trace.manifest["notes"])


def test_without_cupti_durations_come_from_blocks_and_the_trace_says_so(record, tmp_path):
    record(NO_CUPTI="1")
    trace = load(tmp_path / "t.tileprof")
    assert trace.launches.duration_ns.tolist() == [70, 70]
    assert any("no CUPTI" in note for note in trace.manifest["notes"])


def test_a_program_that_profiles_itself_leaves_no_durations_and_the_trace_says_so(record, tmp_path):
    """The program's profiler takes CUPTI's records, so the time pass has none."""
    record(N_time="0")
    trace = load(tmp_path / "t.tileprof")
    assert trace.launches.duration_ns.tolist() == [70, 70]
    assert any(
        "CUPTI reported no kernel, as when the program profiles itself" in note for note in trace.manifest["notes"]
    )


def test_a_gpu_that_others_share_is_reported_before_the_program_runs_and_in_the_trace(
    record, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(gpu, "gpus", lambda: [gpu.Gpu("NVIDIA H200", "sm_90", "13.0", sms=132, mps=True)])
    assert record() == 0
    assert capfd.readouterr().err.startswith("tileprof: contexts on this GPU are clients of an MPS server")
    assert any("clients of an MPS server" in note for note in load(tmp_path / "t.tileprof").manifest["notes"])


@pytest.mark.parametrize(("value", "said"), [("1", True), ("0", False), ("", False)])
def test_kernels_that_triton_interprets_are_said_to_leave_no_launch(record, capfd, value, said):
    record(Settings(passes=("accesses",)), TRITON_INTERPRET=value)
    assert ("TRITON_INTERPRET=1 is set: Triton's kernels run on the CPU" in capfd.readouterr().err) == said


def test_on_a_slice_the_trace_is_of_the_slice(record, tmp_path, monkeypatch):
    slice_ = gpu.Gpu("NVIDIA H200 MIG 1g.18gb", "sm_90", "13.0", sms=4, memory_bytes=1 << 34)
    monkeypatch.setattr(gpu, "gpus", lambda: [slice_])
    record()
    trace = load(tmp_path / "t.tileprof")
    assert validate(trace) == []
    assert (trace.device.name, trace.device.sms, set(trace.times.sm)) == ("H200 MIG 1g.18gb", 4, {0})
    assert any("slice of a GPU" in note for note in trace.manifest["notes"])


def test_complaints_of_the_recorder_are_printed_once_and_not_without_end(record, capfd):
    record(COMPLAINTS=json.dumps(["the GPU was full", *(f"number {n}" for n in range(9)), "the GPU was full"]))
    err = capfd.readouterr().err
    assert err.count("the GPU was full") == 1
    assert "number 4" in err
    assert "number 5" not in err
    assert "4 more complaints of the recorder are among the trace's notes" in err


def test_what_explains_the_end_of_a_program_that_died_is_kept(record, tmp_path, capfd):
    record(DIES="1", COMPLAINTS='["one of its kernels faulted"]')
    assert "tileprof: one of its kernels faulted" in capfd.readouterr().err
    notes = load(tmp_path / "t.tileprof.partial").manifest["notes"]
    assert "the recorder complained: one of its kernels faulted" in notes


def test_one_pass_alone_is_a_trace(record, tmp_path):
    record(Settings(passes=("accesses",)))
    assert load(tmp_path / "t.tileprof").launches.coverage.tolist() == ["exact"] * 2
    record(Settings(passes=("blocks",)))
    trace = load(tmp_path / "t.tileprof")
    assert validate(trace) == []
    assert trace.launches.coverage.tolist() == ["conservative"] * 2
    assert "only the blocks pass ran" in trace.launches.note[0]
    assert sorted(zip(trace.accesses["mode"], trace.accesses.length, strict=True)) == [("read", 4096), ("write", 4096)]
    assert len(trace.times) == 2


def test_the_time_pass_alone_is_refused_with_what_to_add(record):
    with pytest.raises(UserError, match="Add blocks or accesses"):
        record(Settings(passes=("time",)))


def test_every_process_gets_a_trace_the_largest_the_name_that_was_asked_for(record, tmp_path):
    record(EXTRA="2")
    names = sorted(p.name for p in tmp_path.glob("*.tileprof"))
    assert names == ["t-process-200.tileprof", "t-process-201.tileprof", "t.tileprof"]
    assert len(load(tmp_path / "t.tileprof").launches) == 2
    assert len(load(tmp_path / "t-process-200.tileprof").launches) == 1


def test_raw_records_are_kept_where_asked_and_never_mixed(record, tmp_path):
    raw = tmp_path / "raw"
    record(Settings(raw=raw))
    assert sorted(p.name for p in raw.iterdir()) == ["accesses", "blocks", "time"]
    first = json.loads((raw / "accesses" / "process-100" / "events.jsonl").read_text().splitlines()[0])
    assert first["pass"] == "accesses"
    with pytest.raises(UserError, match="is not empty"):
        record(Settings(raw=raw))


def test_a_program_without_launches_is_no_trace(record):
    with pytest.raises(UserError, match="launched no kernel"):
        record(N_accesses="0")


@pytest.mark.parametrize(
    ("matched", "names", "unlisted", "words"),
    [
        (0, [["forward", 3], ["back'ward@mine", 1]], 0, "It opened 'forward' (3 times), \"back'ward@mine\"."),
        (0, [[f"r{n}", 1] for n in range(20)], 0, "'r19' and others."),
        (0, [["r", 1]], 5, "It opened 'r' and others."),
        (0, [], 0, "The program opened no NVTX range, so none matches --nvtx 'x.*'."),
        (1234, [["x1", 1234]], 0, "inside the 1,234 NVTX ranges that match --nvtx 'x.*'."),
    ],
)
def test_a_recording_without_a_matching_range_says_which_there_were(record, matched, names, unlisted, words):
    ranges = json.dumps({"matched": matched, "names": names, "unlisted": unlisted})
    with pytest.raises(UserError, match=re.escape(words)):
        record(Settings(nvtx="x.*"), N_accesses="0", RANGES=ranges)


def test_another_listener_to_ranges_ends_a_recording_that_needs_them_before_the_program_runs(record, capfd):
    variables = {"NVTX_INJECTION64_PATH": "/opt/nsys.so", "RANGES": '{"matched": 1, "names": [], "unlisted": 0}'}
    with pytest.raises(UserError, match=r"already set to /opt/nsys\.so"):
        record(Settings(nvtx="x"), **variables)
    assert capfd.readouterr().out == ""
    assert record() == 0, "without --nvtx it may listen"


def test_a_program_that_dies_leaves_a_partial_trace_without_the_launches_it_took_along(record, tmp_path, capfd):
    record(DIES="1")
    assert "launches after the records were last copied are not here; 1 of them are known" in capfd.readouterr().err
    assert not (tmp_path / "t.tileprof").exists()
    trace = load(tmp_path / "t.tileprof.partial")
    assert not trace.complete
    assert len(trace.launches) == 2
    assert "process-100 ended early" in trace.manifest["reason"]


def test_a_driver_with_another_layout_of_im2col_maps_is_a_note_and_no_end(record, tmp_path, monkeypatch):
    def differs(_):
        raise UserError("laid out otherwise")

    monkeypatch.setattr(im2col, "calibrate", differs)
    assert record() == 0
    assert "laid out otherwise" in load(tmp_path / "t.tileprof").manifest["notes"]


def test_a_program_that_cannot_run_twice_still_leaves_what_the_first_pass_saw(record, tmp_path):
    """Its output exists by then, or its port is taken, so the other passes end before they use CUDA."""
    assert record(ONCE="1") == 0
    trace = load(tmp_path / "t.tileprof")
    assert trace.launches.coverage.tolist() == ["exact"] * 2
    assert any("the blocks pass left nothing" in note for note in trace.manifest["notes"])


def test_times_that_were_cut_off_are_a_note(record, tmp_path):
    assert record(CUT_TIMES="1") == 0
    trace = load(tmp_path / "t.tileprof")
    assert trace.launches.duration_ns.tolist() == [70, 70]
    assert any("while its times were written" in note for note in trace.manifest["notes"])


def test_records_that_a_full_disk_lost_are_left_out_and_reported(record, tmp_path):
    """The file ends before what the drain's event promises; those launches would look as if they touched nothing."""
    record(CUT_ENTRIES="1")
    trace = load(tmp_path / "t.tileprof.partial")
    assert len(trace.launches) == 2
    assert "are not here; 1 of them are known" in trace.manifest["reason"]


def test_a_program_that_died_by_a_signal_is_not_run_again(record, tmp_path, capfd):
    assert record(SIGNAL="9") == 137
    assert capfd.readouterr().out == "hello from the program\n"
    trace = load(tmp_path / "t.tileprof")
    assert trace.launches.coverage.tolist() == ["exact"] * 2
    assert trace.manifest["notes"] == []


def test_a_program_that_died_before_it_used_cuda_is_distinguished_from_one_that_uses_none(record):
    with pytest.raises(UserError, match="died by signal 15 before it used CUDA") as error:
        record(NO_CUDA="1", SIGNAL="15")
    assert error.value.exit_code == 143


def test_a_program_that_was_ended_because_nothing_moved_is_not_run_again(record, tmp_path, capfd):
    assert record(HANGS="1", CODE="70") == 70
    out, err = capfd.readouterr()
    assert out == "hello from the program\n"
    assert "the program was ended, as spins had not" in err
    assert len(load(tmp_path / "t.tileprof.partial").launches) == 2


def test_a_process_in_which_the_recorder_did_not_start_does_not_take_the_others_along(record, tmp_path):
    record(FAILED="1")
    trace = load(tmp_path / "t.tileprof")
    assert len(trace.launches) == 2
    assert any("could not start in process process-300: another tool" in note for note in trace.manifest["notes"])


def test_a_write_check_says_what_it_did_not_look_at():
    launches = [{"e": "launch", "launch": i, "graph": graph} for i, graph in enumerate((-1, 0, 0, -1))]
    changed_events = [{"e": "changed", "launch": 0, "ranges": [[0, 8]]}]
    message = recording.write_check([*launches, *changed_events], 8, 0)
    assert message.startswith("write check: 8 bytes changed, 0 of them outside")
    assert "not checked: 2 launches in CUDA graphs" in message
    assert "1 other launches" not in message
    assert "1 other launch was not compared" in message
    assert "not checked" not in recording.write_check([launches[0], *changed_events], 8, 0)
