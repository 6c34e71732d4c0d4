"""The injection library beside a fake driver: builds both, and runs programs under them."""

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.shared import once
from tests.unit.record.cuda.optional_tools import path_or_none
from tileprof.record.cuda.installation import locate, recorder_build
from tileprof.record.cuda.records import raw

needs_tools = pytest.mark.skipif(
    None
    in {
        path_or_none(locate.sanitizer),
        path_or_none(locate.host_compiler),
        path_or_none(locate.nvcc) and path_or_none(locate.cuda_include),
    },
    reason="needs cuda.h, a C++ compiler and the nvidia-cuda-sanitizer-api wheel",
)


PROGRAM = """
import ctypes, os, sys
fake = ctypes.CDLL(os.environ["TILEPROF_SANITIZER"], mode=ctypes.RTLD_GLOBAL)
C, M = ctypes.c_void_p(1), ctypes.c_void_p(0x10)
def module(code=0x1000, context=C, handle=M, cubin=b""):
    fake.fake_module(context, handle, ctypes.c_uint64(code), cubin or None, ctypes.c_uint64(len(cubin)))
def launch(name=b"k", blocks=2, context=C, handle=M, parameter=0):
    fake.fake_launch(context, handle, name, blocks, ctypes.c_uint64(parameter))
def value(cbid, address=0x100040, result=0, batch=None):
    fake.fake_value(cbid, ctypes.c_uint64(address), result, len(batch) // 6 if batch else 0, batch)
def memory(made, address, bytes=4096, context=C):
    fake.fake_memory(made, context, ctypes.c_uint64(address), ctypes.c_uint64(bytes))
def mapped(made, address, bytes, handle=7, result=0):
    fake.fake_map(made, *map(ctypes.c_uint64, (address, bytes, handle)), result)
def inject():
    global library
    library = ctypes.CDLL(os.environ["TILEPROF_LIBRARY"])
    assert library.InitializeInjection() == 1
"""

STREAMS = """
import threading, time
S1, S2 = ctypes.c_void_p(0x51), ctypes.c_void_p(0x52)
def launch_on(stream, name):
    fake.fake_stream(stream)
    launch(name)
def until_it_waits(thread):  # it sleeps whenever it is looked at, or has ended; at most ten seconds
    looks = 0
    for _ in range(500):
        time.sleep(0.02)
        try:
            with open(f"/proc/self/task/{thread.native_id}/stat") as file:
                looks = looks + 1 if file.read().rpartition(")")[2].split()[0] == "S" else 0
        except OSError:
            return
        if looks == 10:
            return
"""
"""A longer program, which launches on several streams."""


@dataclass(frozen=True)
class Libraries:
    library: str
    driver: str
    folder: str


@pytest.fixture(scope="session")
def libraries():
    folder = once("fake_libraries", compile_into)
    return Libraries(str(folder / "libtileprof.so"), str(folder / "libcuda.so.1"), str(folder))


def compile_into(folder):
    folder.mkdir()
    here = Path(__file__).parent
    includes = [f"-I{p}" for p in (locate.sanitizer().include, locate.cuda_include(), recorder_build.SOURCES)]
    driver, library = folder / "libcuda.so.1", folder / "libtileprof.so"
    compiler = [str(locate.host_compiler()), *recorder_build.HOST_FLAGS, *includes]
    units = recorder_build.units_of_the_library()
    subprocess.run([*compiler, here / "fake_driver.cpp", here / "fake_gpus.cpp", "-o", driver], check=True)
    subprocess.run([*compiler, *units, *recorder_build.LINK_FLAGS, "-o", library], check=True)
    (folder / "patches.fatbin").write_bytes(b"none")


@pytest.fixture
def runner(libraries, tmp_path):
    def folders(text, expected=0, complaint="", **variables):
        variables = {
            "LD_LIBRARY_PATH": libraries.folder, "TILEPROF_SANITIZER": libraries.driver,
            "TILEPROF_LIBRARY": libraries.library,
            "TILEPROF_RAW": str(tmp_path), "TILEPROF_PATCHES": f"{libraries.folder}/patches.fatbin",
            "TILEPROF_ARENA": str(1 << 20),
            **variables,
        }  # fmt: skip
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM + textwrap.dedent(text)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == expected, result.stderr
        assert complaint in result.stderr if complaint else result.stderr == "", result.stderr
        run.output = result.stdout.strip()
        return raw.processes(tmp_path)

    def run(text, expected=0, complaint="", **variables):
        [process] = folders(text, expected, complaint, **variables)
        return process, run.output

    run.folders = folders
    run.read = lambda: raw.processes(tmp_path)
    return run


def events(process, kind):
    return [e for e in process.events if e["e"] == kind]


STORES = """
__constant__ int table[16];
extern "C" __global__ void k(unsigned long long map) {
    __shared__ char tile[128];
    tile[threadIdx.x] = table[threadIdx.x & 15];
    unsigned from = (unsigned)__cvta_generic_to_shared(tile);
    asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%1}], [%2];"
                 :: "l"(map), "r"(0), "r"(from) : "memory");
}
"""


@pytest.fixture(scope="session")
def cubin():
    """Return a module whose kernels store through tensor maps, and that has a constant variable."""

    def make(folder):
        folder.mkdir()
        (folder / "k.cu").write_text(STORES)
        subprocess.run([locate.nvcc(), "-arch=sm_90", "-cubin", "-o", folder / "k.cubin", folder / "k.cu"], check=True)

    return str(once("cubin_that_stores", make) / "k.cubin")


LAUNCHES = """
__global__ void child(int* p) { p[threadIdx.x] = 1; }
extern "C" __global__ void parent(int* p) { child<<<1, 32>>>(p); }
"""


@pytest.fixture(scope="session")
def launching_cubin():
    """Return a module whose kernels launch kernels."""

    def make(folder):
        folder.mkdir()
        (folder / "k.cu").write_text(LAUNCHES)
        nvcc = [locate.nvcc(), "-arch=sm_90", "-cubin", "-o"]
        subprocess.run([*nvcc, folder / "part.cubin", "-rdc=true", folder / "k.cu"], check=True)
        subprocess.run([*nvcc, folder / "k.cubin", "-dlink", folder / "part.cubin", "-lcudadevrt"], check=True)

    return str(once("cubin_that_launches", make) / "k.cubin")
