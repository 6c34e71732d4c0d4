"""Grids that kernels launch: what the recorder sees of them, and what Compute Sanitizer tells a tool.

The second test holds down what the library did when it was last looked at (13.4.92): no callback for such a launch, the
callback data of the launch from the host, and no call where blocks of the launching kernel enter. Where it fails, a
newer library tells more, or `children.py` is wrong.
"""

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tileprof.analysis import build_graph
from tileprof.record.cuda.installation import gpu, locate, selftest
from tileprof.trace import READ, WRITE, load, validate

PROGRAMS = Path(__file__).parent / "programs"
PARENTS, CHILDREN, BLOCKS, THREADS = 4, 2, 3, 32  # as in children.cu
BYTES = {"in": 4 * PARENTS * CHILDREN * BLOCKS * THREADS, "count": 4 * PARENTS}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    program_file = tmp_path_factory.mktemp("children") / "children"
    architecture = f"-arch={gpu.gpus()[0].architecture}"
    words = [locate.nvcc(), architecture, "-rdc=true", PROGRAMS / "children.cu", "-lcudadevrt", "-o", program_file]
    subprocess.run(words, check=True)
    return program_file


def test_a_launch_stands_for_what_its_children_touch_and_for_nothing_else(record, program):
    result = record(program, passes=("accesses",), granule=4, verify=True)
    assert (result.code, result.output.split()[-1]) == (0, "right")
    assert ", 0 of them outside every recorded write" in result.messages
    trace = load(result.path)
    assert validate(trace) == []
    where = selftest.buffers(result.output)
    names = trace.launches.kernel.str.partition("(")[0]
    parents = trace.launches.index[names == "parent"].tolist()
    assert len(parents) == 2
    for number in parents:
        bytes_by_launch = {}
        for _, mode, granule in selftest.granules(trace, number, 4):
            for name, start in where.items():
                if start <= 4 * granule < start + BYTES.get(name, BYTES["in"]):
                    bytes_by_launch.setdefault(mode, Counter())[name] += 1
        assert bytes_by_launch[READ]["in"] == BYTES["in"] // 4, "children read it"
        assert bytes_by_launch[WRITE]["out"] == BYTES["in"] // 4, "children write it"
        assert bytes_by_launch[WRITE]["count"] == PARENTS
        assert all("copy" not in mode for mode in bytes_by_launch.values())
        note = trace.launches.note[number]
        blocks = sorted(int(n) for n in re.findall(r"(\d+) of a kernel that the host did not launch", note))
        assert blocks == [PARENTS * CHILDREN, PARENTS * CHILDREN * BLOCKS], note  # grandchildren, children
    after = trace.launches.index[names == "after"][0]
    pairs = build_graph(trace).pairs
    assert (pairs[(pairs.producer == parents[1]) & (pairs.consumer == after)].raw > 0).all()


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe")
    includes = [f"-I{locate.sanitizer().include}", f"-I{locate.cuda_include()}"]
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared"]
    library, patches = folder / "probe.so", folder / "probe.fatbin"
    source = PROGRAMS / "children_probe.cpp"
    subprocess.run([locate.host_compiler(), *flags, *includes, source, "-ldl", "-o", library], check=True)
    words = ["-std=c++17", f"-arch={gpu.gpus()[0].architecture}", "--fatbin", "--compile-as-tools-patch", *includes]
    subprocess.run([locate.nvcc(), *words, PROGRAMS / "children_patch.cu", "-o", patches], check=True)
    return library, patches


def test_the_library_reports_no_launch_of_a_child_and_no_entry_of_a_parent_and_gives_children_its_data(program, probe):
    library, patches = probe
    environment = os.environ | {
        "CUDA_INJECTION64_PATH": str(library),
        "PROBE_PATCHES": str(patches),
        "TILEPROF_SANITIZER": str(locate.sanitizer().library),
    }
    result = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    assert "refused" not in result.stdout, result.stdout
    launches = re.findall(r"launch (\S+) source (\d+)", result.stdout)
    assert [name for name, _ in launches] == ["_Z6parentPKiPiS1_"] * 2 + ["_Z5afterPKiPi"]
    reports = re.findall(r"block \d+ of \d+ grid (-?\d+) pc (\w+) source (\d+) left (\d+)", result.stdout)
    children = [(pc, source) for grid, pc, source, left in reports if int(grid) < 0 and left == "0"]
    each = PARENTS * CHILDREN * (BLOCKS + 1)
    assert Counter(source for _, source in children) == {source: each for _, source in launches[:2]}
    assert len({pc for pc, _ in children}) == 2, "children and grandchildren"
    own = Counter()
    for grid, _, source, threads_left in reports:
        if int(grid) >= 0:
            own[source, threads_left == "0"] += int(threads_left) or 1
    parents, after = [source for _, source in launches[:2]], launches[2][1]
    assert own == {
        **{(source, False): PARENTS * THREADS for source in parents},  # they exit, and do not enter
        (after, True): PARENTS * CHILDREN * BLOCKS * THREADS // 64,
        (after, False): PARENTS * CHILDREN * BLOCKS * THREADS,
    }
