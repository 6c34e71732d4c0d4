"""The injection library leaves modules without patches as long as a server says that their launches need none."""

import struct
import subprocess
from pathlib import Path

import pytest

from tests.support.shared import once
from tests.unit.record.cuda.code.cubins import section
from tests.unit.record.cuda.native.fake_libraries import events, needs_tools
from tileprof.record.cuda.code import proofs
from tileprof.record.cuda.code.proofs import Launch, Server
from tileprof.record.cuda.installation import locate

pytestmark = needs_tools

KERNELS = """
__device__ int variable[64];
extern "C" __global__ void one(int* p) { p[threadIdx.x] = 1; }
extern "C" __global__ void two(int* p) { p[p[threadIdx.x]] = 1; }
extern "C" __global__ void linked(int* p) { variable[threadIdx.x] = p[threadIdx.x]; }
"""
BUFFER = 0x100000
BEGIN = "inject(); memory(1, 0x100000, 4096); module(cubin=open(r'%s', 'rb').read());"


@pytest.fixture(scope="session")
def kernels():
    def make(folder):
        folder.mkdir()
        (folder / "k.cu").write_text(KERNELS)
        command = [locate.nvcc(), "-arch=sm_90", "-rdc=true", "-cubin", "-o", folder / "k.cubin", folder / "k.cu"]
        subprocess.run(command, check=True)

    return str(once("kernels_without_patches", make) / "k.cubin")


@pytest.fixture
def run(runner, kernels, monkeypatch):
    """Run a program beside a server that proves the kernels ``proven``. Return the process's records, what the program
    printed, and the launches that it asked of.
    """

    def start(text, proven=("one", "linked"), **variables):
        image, asked = Path(kernels).read_bytes(), []
        code = [section(image, f".text.{name}") for name in proven]

        def answer(_, launch):
            asked.append(launch)
            words = -(-launch.size // 4)
            return proofs.PROVEN + b"\xff" * -(-words // 8) if launch.code in code else proofs.NOT_PROVEN

        monkeypatch.setattr(Server, "of", answer)
        with Server(Path("nvdisasm")) as server:
            process, output = runner(BEGIN % kernels + text, TILEPROF_PROOFS=server.path, **variables)
        return process, output, asked

    return start


def counted(process):
    return [(e["counted"], "parameters" in e) for e in events(process, "launch")]


def test_a_launch_that_is_proven_is_left_alone_with_what_decides_where_it_goes(run, kernels):
    process, output, asked = run(
        "launch(b'one', 3, parameter=0x100040); launch(b'one', 3, parameter=0x100140); print(fake.fake_count(0))"
    )
    assert output == "0", "nothing is patched"
    text = section(Path(kernels).read_bytes(), ".text.one")
    offset = events(process, "kernel")[0]["parameters"][0]
    sizes = (3, 1, 1), (32, 1, 1), (1, 1, 1)
    assert asked == [Launch(text, (), offset, struct.pack("<Q", 0x100040), b"\1", *sizes)]
    launches = events(process, "launch")
    assert [(e["counted"], e["parameters"], e["pointers"]) for e in launches] == [(0, [0, 8], [0]), (0, [8, 8], [0])]
    assert (process.folder / "parameters.bin").read_bytes() == struct.pack("<QQ", 0x100040, 0x100140)
    assert (process.folder / "code-0.bin").read_bytes() == text
    assert not (process.folder / "relocated-0.bin").exists()
    assert len(process.entries) == 0


def test_relocated_instructions_are_told(run):
    process, _, [asked] = run("launch(b'linked', parameter=0x100000)")
    assert len(asked.relocated) > 0
    kept = (process.folder / "relocated-0.bin").read_bytes()
    assert kept == struct.pack(f"<{len(asked.relocated)}I", *asked.relocated)


def test_words_outside_of_memory_are_no_pointers(run):
    process, _, [asked] = run("launch(b'one', parameter=0x200000)")
    assert asked.pointers == b"\0"
    assert not events(process, "launch")[0].get("pointers")


def test_a_module_is_patched_before_the_first_launch_that_is_not_proven(run):
    process, output, asked = run(
        "launch(b'one', 2, parameter=0x100000); launch(b'two', 3, parameter=0x100000);"
        "launch(b'one', 4, parameter=0x100000); print(fake.fake_count(0) > 0)"
    )
    assert output == "True"
    assert counted(process) == [(0, True), (1, False), (1, False)]
    assert [len(launch.parameters) for launch in asked] == [8, 8], "of a patched module nothing is asked"
    assert sorted(process.entries["launch"].tolist()) == [2] * 3 + [3] * 4


def test_other_modules_stay_as_they_are(run, kernels):
    other = "ctypes.c_void_p(0x20)"
    process, _, _ = run(
        f"module(0x2000, handle={other}, cubin=open(r'{kernels}', 'rb').read());"
        f"launch(b'two', 3, parameter=0x100000); launch(b'one', 2, handle={other}, parameter=0x100000)"
    )
    assert counted(process) == [(1, False), (0, True)]


def test_a_launch_that_could_not_be_patched_has_nothing_of_the_one_before_it(run):
    """Code is not changed while a launch of it has not ended; what is launched meanwhile was not seen."""
    process, output, _ = run(
        "S = ctypes.c_void_p(0x51); fake.fake_stream(S); launch(b'one', 2, parameter=0x100000); fake.fake_spin(S);"
        "launch(b'two', 2, parameter=0x100000); print(fake.fake_count(0)); fake.fake_let_go(S)",
        complaint="two has not ended in 0.1 s",
        TILEPROF_WAIT="0.1",
    )
    assert counted(process) == [(0, True), (0, False)]
    assert output == "0"


def test_before_a_graph_is_made_all_is_patched_and_stays_so(run, kernels):
    process, _, asked = run(
        "launch(b'one', 2, parameter=0x100000); fake.fake_capture(1, None); fake.fake_capture(0, None);"
        f"launch(b'one', 3, parameter=0x100000); module(0x2000, cubin=open(r'{kernels}', 'rb').read());"
        "launch(b'one', 4, parameter=0x100000)"
    )
    assert counted(process) == [(0, True), (1, False), (1, False)]
    assert len(asked) == 1


def test_kernels_that_are_not_recorded_are_not_asked_of(run):
    process, output, asked = run("launch(b'two'); print(fake.fake_count(0))", TILEPROF_KERNEL="one")
    assert (output, asked) == ("0", [])
    assert events(process, "launch") == []


def test_without_an_answer_all_is_patched(runner, kernels, tmp_path):
    process, _ = runner(
        BEGIN % kernels + "launch(b'one', 2, parameter=0x100000); launch(b'one', 3, parameter=0x100000)",
        TILEPROF_PROOFS=str(tmp_path / "gone"),
    )
    assert counted(process) == [(1, False), (1, False)]
    [complaint] = [e["text"] for e in events(process, "complaint")]
    assert complaint.startswith("nobody answered which kernels need no patches")


@pytest.mark.parametrize("settings", [{"TILEPROF_PASS": "blocks"}, {"TILEPROF_PATCH": "range"}])
def test_other_passes_ask_nothing(run, settings):
    process, _, asked = run("launch(b'one', 2, parameter=0x100000)", **settings)
    assert asked == []
    assert counted(process) == [(1, False)]
