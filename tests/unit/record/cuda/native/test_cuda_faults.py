"""Faults inside the recorded process that end in one sentence, with a fake driver."""

import signal
import subprocess

import pytest

from tests.unit.record.cuda.native.fake_libraries import events, needs_tools
from tileprof.devices import get
from tileprof.errors import UserError
from tileprof.record.cuda.decode import Decoder
from tileprof.record.cuda.installation import locate
from tileprof.trace import TraceWriter, load, validate

pytestmark = needs_tools

FAILS = """
library = ctypes.CDLL(os.environ["TILEPROF_LIBRARY"])
assert library.InitializeInjection() == 0
print("the program runs", flush=True)
"""


def complaints(process):
    return " / ".join(e["text"] for e in events(process, "complaint"))


def trace_of(process, path):
    with TraceWriter(path, recorder="cuda", command=["x"], device=get("H200"), granule=32) as writer:
        Decoder(process, writer, get("H200")).run()
        return load(writer.close(0) if process.complete else writer.abandon("early"))


@pytest.fixture
def start_refusal(runner):
    """Return why the recorder does not start, as the program's user and the caller of ``tileprof record`` read it."""

    def run(**variables):
        with pytest.raises(AssertionError) as failure:
            runner(FAILS, **variables)
        with pytest.raises(UserError) as error:
            runner.read()
        assert "nothing is recorded: " in str(failure.value)
        return str(error.value)

    return run


def test_another_tool_of_compute_sanitizer_in_the_program_is_named(start_refusal):
    assert "another Compute Sanitizer tool is attached to this program" in start_refusal(FAKE_SUBSCRIBE="10")


def test_a_driver_that_compute_sanitizer_does_not_take_is_named_with_the_reason(start_refusal):
    assert "Compute Sanitizer refused (fake): the driver may be too old" in start_refusal(FAKE_SUBSCRIBE="12")


def test_a_driver_without_a_function_that_is_needed_is_too_old(start_refusal, tmp_path):
    old = tmp_path / "old"
    old.mkdir()
    (old / "none.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    subprocess.run([locate.host_compiler(), "-shared", "-fPIC", old / "none.c", "-o", old / "libcuda.so.1"], check=True)
    assert "has no symbol cuLaunchKernel: the NVIDIA driver is too old" in start_refusal(LD_LIBRARY_PATH=str(old))


def test_a_library_without_a_function_that_is_needed_is_too_old(start_refusal, libraries):
    message = start_refusal(TILEPROF_SANITIZER=libraries.library)
    assert "has no symbol sanitizerSubscribe: it is too old; update nvidia-cuda-sanitizer-api" in message


def test_without_room_for_records_launches_are_conservative_and_the_option_is_named(runner, tmp_path):
    process, _ = runner("inject(); module(); memory(1, 0x100000); launch(); launch()", FAKE_MEMORY="100000")
    assert "has no room for the recorder's 1 MiB" in complaints(process)
    assert "--arena" in complaints(process)
    trace = trace_of(process, tmp_path / "t.tileprof")
    assert validate(trace) == []
    assert trace.launches.coverage.tolist() == ["conservative"] * 2
    assert any("--arena" in note for note in trace.manifest["notes"])


def test_a_program_that_runs_out_of_memory_is_told_the_recorders_share_once(runner):
    process, _ = runner("""
        inject(); module(); launch(); fake.fake_allocates(0); fake.fake_allocates(1)
        fake.fake_allocates(2); fake.fake_allocates(2)
    """)
    [message] = events(process, "complaint")
    assert message["text"].startswith(
        "the GPU was out of memory when the program asked for some; of it, 1 MiB are the recorder's."
    )
    assert message["text"].endswith("make that less with --arena")


def test_a_kernel_that_faults_leaves_what_was_copied_and_a_sentence(runner, tmp_path):
    process, _ = runner(
        "inject(); module(); launch(); library.tileprof_drain(); launch(); fake.fake_fault(); library.tileprof_drain()"
    )
    assert "one of its kernels faulted" in complaints(process)
    trace = trace_of(process, tmp_path / "t.tileprof")
    assert len(trace.launches) == 1
    assert not trace.complete
    assert any("are not here; 1 of them are known" in note for note in trace.manifest["notes"])


def test_a_killed_program_leaves_what_was_copied(runner):
    process, _ = runner(
        "import signal\n"
        "inject(); module(); launch(); library.tileprof_drain(); launch(); library.tileprof_flush(); "
        "os.kill(os.getpid(), signal.SIGKILL)",
        expected=-signal.SIGKILL,
    )
    assert (process.complete, process.lost, len(events(process, "launch"))) == (False, 1, 1)
