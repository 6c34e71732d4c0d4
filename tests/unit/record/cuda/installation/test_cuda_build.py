"""The build cache, and the layout that host and device share; all sources compile."""

import json
import subprocess

import pytest

from tests.unit.record.cuda.code.cubins import compiled, headers, section
from tests.unit.record.cuda.optional_tools import path_or_none
from tileprof.errors import UserError
from tileprof.record.cuda.installation import locate, recorder_build
from tileprof.record.cuda.records import raw

needs_compiler = pytest.mark.skipif(path_or_none(locate.host_compiler) is None, reason="no C++ compiler here")
needs_everything = pytest.mark.skipif(
    None in {path_or_none(locate.nvcc), path_or_none(locate.sanitizer), path_or_none(locate.host_compiler)},
    reason="needs nvcc, a C++ compiler and the nvidia-cuda-sanitizer-api wheel",
)


def test_the_key_depends_on_every_part_and_not_on_their_order():
    parts = {"architecture": "sm_90", "flags": ["-O2"], "sources": "x"}
    assert recorder_build.key_of(parts) == recorder_build.key_of(dict(reversed(parts.items())))
    keys = {recorder_build.key_of(parts | {name: "other"}) for name in parts}
    assert len(keys | {recorder_build.key_of(parts)}) == 4


def test_the_hash_of_files_sees_names_and_contents(tmp_path):
    one, two = tmp_path / "a", tmp_path / "b"
    one.write_text("x")
    two.write_text("x")
    assert recorder_build.hash_files([one]) != recorder_build.hash_files([two])
    before = recorder_build.hash_files([one])
    one.write_text("y")
    assert recorder_build.hash_files([one]) != before


def test_a_broken_cache_names_the_folder_to_delete(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path))
    monkeypatch.setattr(recorder_build, "key_of", lambda _: "key")
    monkeypatch.setattr(recorder_build, "_version", str)
    for name in ("nvcc", "host_compiler", "cuda_include"):
        monkeypatch.setattr(locate, name, lambda: tmp_path)
    monkeypatch.setattr(locate, "sanitizer", lambda: locate.Sanitizer(tmp_path, tmp_path, "13.4"))
    (tmp_path / "cuda" / "key").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cuda/key is broken. Delete"):
        recorder_build.build("sm_90")


def test_a_compilers_own_words_reach_the_user(tmp_path):
    script = tmp_path / "cc"
    script.write_text("#!/bin/sh\necho 'x.cpp:1: no such thing' >&2\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(UserError, match=r"exit code 3\):\nx.cpp:1: no such thing"):
        recorder_build._run([str(script)])


LAYOUT = """
#include <stdio.h>
#include <stddef.h>
#include "records/records.h"
using namespace tileprof;
int main() {
    printf("{\\"size\\":%zu,\\"key\\":%zu,\\"block\\":%zu,\\"launch\\":%zu,\\"payload\\":%zu,",
           sizeof(Entry), offsetof(Entry, key),
           offsetof(Entry, block), offsetof(Entry, launch), offsetof(Entry, payload));
    printf("\\"kinds\\":[%d,%d,%d,%d,%d,%d,%d],\\"modes\\":[%d,%d,%d],",
           kAccess, kBlock, kExit, kTensor, kTensorTail, kMap, kRange,
           kRead, kWrite, kAtomic);
    printf("\\"shifts\\":[%u,%u],\\"low\\":%llu,\\"last\\":%u,\\"page\\":%u,\\"pages\\":%u}",
           kKindShift, kGenerationShift,
           (unsigned long long)kLowMask, kLastGeneration, 1u << kPageShift, kPages);
}
"""


@needs_compiler
def test_python_reads_the_layout_that_the_library_writes(tmp_path):
    source, program = tmp_path / "layout.cpp", tmp_path / "layout"
    source.write_text(LAYOUT)
    subprocess.run(
        [locate.host_compiler(), "-std=c++17", f"-I{recorder_build.SOURCES}", source, "-o", program], check=True
    )
    native = json.loads(subprocess.run([program], capture_output=True, check=True).stdout)
    assert native["size"] == raw.ENTRY.itemsize
    assert {name: raw.ENTRY.fields[name][1] for name in raw.ENTRY.names} == {n: native[n] for n in raw.ENTRY.names}
    assert native["kinds"] == [raw.ACCESS, raw.BLOCK, raw.EXIT, raw.TENSOR, raw.TENSOR_TAIL, raw.MAP, raw.RANGE]
    assert native["modes"] == [0, 1, 2]
    assert native["shifts"] == [raw.KIND_SHIFT, raw.GENERATION_SHIFT]
    assert (native["low"], native["last"]) == (raw.LOW_MASK, raw.LAST_GENERATION)
    assert (native["page"], native["pages"]) == (raw.SPILL_PAGE_BYTES, raw.SPILL_PAGES)


@needs_everything
def test_library_and_patches_compile_once_and_are_then_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path))
    recorder_files = recorder_build.build("sm_90")
    assert recorder_files.library.stat().st_size > 0
    assert recorder_files.patches.stat().st_size > 0
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", recorder_files.library], capture_output=True, text=True, check=True
    ).stdout
    assert {"InitializeInjection", "tileprof_capture", "tileprof_event"} <= set(symbols.split())
    undefined = subprocess.run(
        ["nm", "-D", "-u", recorder_files.library], capture_output=True, text=True, check=True
    ).stdout
    assert not [s for s in undefined.split() if s.startswith(("cu", "sanitizer"))], "linked, not resolved at run time"
    stamp = recorder_files.library.stat().st_mtime_ns
    assert recorder_build.build("sm_90") == recorder_files
    assert recorder_files.library.stat().st_mtime_ns == stamp
    assert [p.name for p in recorder_files.library.parent.parent.iterdir()] == [recorder_files.library.parent.name]


SCAN = """
#include <stdio.h>
#include <fstream>
#include <iterator>
#include <vector>
#include "code/cubin.h"
int main(int, char** a) {
    bool all_text = a[2][0] == '1';
    std::ifstream file(a[1], std::ios::binary);
    std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
    for (auto& [name, k] : tileprof::scan_cubin(bytes.data(), bytes.size(), all_text)) {
        printf("%s %d%d%d%d%d%d ", name.c_str(),
               k.tensor_load, k.tensor_store, k.tensor_reduce, k.texture, k.surface, k.launches);
        for (unsigned char byte : k.text ? *k.text : std::string()) printf("%02x", byte);
        for (uint32_t offset : k.relocated) printf(",%u", offset);
        printf("\\n");
    }
}
"""

UNSEEN = """
#include <cuda_runtime.h>
extern "C" __global__ void plain(const float* a, float* b) { atomicAdd(b + threadIdx.x, __sinf(a[threadIdx.x])); }
extern "C" __global__ void fetch(cudaTextureObject_t t, float* b) {
    b[threadIdx.x] = tex1Dfetch<float>(t, threadIdx.x); }
extern "C" __global__ void sample(const cudaTextureObject_t* t, float* b) {
    b[threadIdx.x] = tex2D<float>(t[threadIdx.x], threadIdx.x, 1.f); }
extern "C" __global__ void look(cudaSurfaceObject_t s, float* b) {
    b[threadIdx.x] = surf2Dread<float>(s, threadIdx.x * 4, 1); }
extern "C" __global__ void draw(cudaSurfaceObject_t s, float* b) {
    surf2Dwrite<float>(b[threadIdx.x], s, threadIdx.x * 4, 1); }
"""

STORE = """
extern "C" __device__ __noinline__ void store(unsigned long long map, unsigned from) {
    asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%1}], [%2];"
                 :: "l"(map), "r"(0), "r"(from) : "memory");
}
"""
CALL = """
extern "C" __device__ void store(unsigned long long map, unsigned from);
extern "C" __global__ void calls(unsigned long long map) {
    __shared__ char tile[128];
    tile[threadIdx.x] = 1;
    store(map, (unsigned)__cvta_generic_to_shared(tile));
}
"""


@pytest.fixture
def scan_of(tmp_path):
    """Return what the library says about a cubin: kernel, and whether it loads, stores or reduces through maps, uses
    textures or surfaces, or launches; with ``code`` the text that it keeps, all or where that is needed, and offsets of
    relocated instructions instead.
    """
    source, program = tmp_path / "scan.cpp", tmp_path / "scan"
    source.write_text(SCAN)
    units = [source, recorder_build.SOURCES / "code" / "cubin.cpp"]
    subprocess.run(
        [locate.host_compiler(), "-std=c++17", f"-I{recorder_build.SOURCES}", *units, "-o", program], check=True
    )

    def scan(cubin, code=None):
        lines = subprocess.run(
            [program, cubin, "1" if code == "all" else "0"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        rows = [line.split(" ") for line in lines]
        if code is None:
            return {name: flags for name, flags, _ in rows}
        parts = {name: kept.split(",") for name, _, kept in rows}
        return {name: (bytes.fromhex(text), [int(o) for o in offsets]) for name, (text, *offsets) in parts.items()}

    return scan


@needs_everything
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_textures_and_surfaces_are_seen_in_machine_code(tmp_path, scan_of, architecture):
    actual = scan_of(compiled(tmp_path, "unseen", UNSEEN, f"-arch={architecture}"))
    actual.pop("reserved.0", None)  # the system's shared memory
    assert actual == {"plain": "000000", "fetch": "000100", "sample": "000100", "look": "000100", "draw": "000010"}


@needs_everything
def test_a_function_that_stores_through_a_map_makes_its_callers_do_so(tmp_path, scan_of):
    parts = [compiled(tmp_path, n, t, "-arch=sm_90", "-rdc=true") for n, t in (("store", STORE), ("call", CALL))]
    linked_file = tmp_path / "linked.cubin"
    subprocess.run([locate.nvcc(), "-arch=sm_90", "-dlink", "-cubin", "-o", linked_file, *parts], check=True)
    assert scan_of(linked_file)["calls"] == "010000"


RELOCATED = """
__device__ int variable[64];
extern "C" __global__ void plain(int* p) { p[threadIdx.x] = 1; }
extern "C" __global__ void relocated(int* p) { variable[threadIdx.x] = p[threadIdx.x]; }
"""


@needs_everything
def test_the_text_of_kernels_and_their_relocated_instructions_are_kept(tmp_path, scan_of):
    parts = [compiled(tmp_path, n, t, "-arch=sm_90", "-rdc=true") for n, t in (("k", RELOCATED), ("store", STORE))]
    image = parts[0].read_bytes()
    kept = scan_of(parts[0], "all")
    assert {n: kept[n][0] for n in ("plain", "relocated")} == {
        n: section(image, f".text.{n}") for n in ("plain", "relocated")
    }
    command = ["readelf", "-r", "-W", parts[0]]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [entries] = [p.splitlines()[2:] for p in listing.split("Relocation section ") if p.startswith("'.rela.text.rel")]
    places = [int(line.split()[0], 16) // 16 * 16 for line in entries if line]
    assert kept["relocated"][1] == places != []
    assert kept["plain"][1] == []
    assert {n: text for n, (text, _) in scan_of(parts[0], "needed").items() if text} == {}
    assert scan_of(parts[1], "needed")["store"][0] == section(parts[1].read_bytes(), ".text.store")


@needs_everything
def test_relocations_that_are_cut_off_are_beyond_all_code(tmp_path, scan_of):
    cubin = compiled(tmp_path, "k", RELOCATED, "-arch=sm_90", "-rdc=true")
    image = bytearray(cubin.read_bytes())
    header, *_ = headers(image)[".rela.text.relocated"]
    image[header + 32 : header + 40] = (1 << 40).to_bytes(8, "little")  # sh_size
    cubin.write_bytes(image)
    assert scan_of(cubin, "all")["relocated"][1] == [0xFFFFFFFF]


LAUNCH = """
__global__ void child(int* p) { p[threadIdx.x] = 1; }
extern "C" __global__ void parent(int* p) { child<<<1, 32>>>(p); }
"""
LAUNCH_GRAPH = (
    'extern "C" __global__ void parent(cudaGraphExec_t g) { cudaGraphLaunch(g, cudaStreamGraphFireAndForget); }'
)
MEET = """
#include <cooperative_groups.h>
extern "C" __global__ void parent(int* p) { cooperative_groups::this_grid().sync(); p[0] = 1; }
"""


@needs_everything
@pytest.mark.parametrize(("text", "launches"), [(LAUNCH, "1"), (LAUNCH_GRAPH, "2"), (MEET, "0")])
def test_kernels_that_launch_kernels_or_graphs_are_seen_in_a_linked_module(tmp_path, scan_of, text, launches):
    part, linked_file = compiled(tmp_path, "part", text, "-arch=sm_90", "-rdc=true"), tmp_path / "linked.cubin"
    command = [locate.nvcc(), "-arch=sm_90", "-dlink", "-cubin", "-o", linked_file, part, "-lcudadevrt"]
    subprocess.run(command, check=True)
    assert scan_of(linked_file)["parent"][5] == launches


CHILD_WITH_SURFACE = """
__global__ void child(cudaSurfaceObject_t s) { surf1Dwrite(1, s, 4 * threadIdx.x); }
extern "C" __global__ void parent(cudaSurfaceObject_t s) { child<<<1, 32>>>(s); }
"""


@needs_everything
def test_a_kernel_that_launches_others_does_what_they_do(tmp_path, scan_of):
    part, linked_file = (
        compiled(tmp_path, "part", CHILD_WITH_SURFACE, "-arch=sm_90", "-rdc=true"),
        tmp_path / "linked.cubin",
    )
    command = [locate.nvcc(), "-arch=sm_90", "-dlink", "-cubin", "-o", linked_file, part, "-lcudadevrt"]
    subprocess.run(command, check=True)
    assert scan_of(linked_file)["parent"][3:] == "011"  # reads through textures, writes through surfaces, launches
