"""Accesses other than loads and stores of kernels and plain copies, and accesses by several addresses, are in the
trace.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tileprof.analysis import build_graph
from tileprof.record.cuda.installation import gpu, locate, selftest
from tileprof.trace import READ, WRITE, load, validate

SIZES = {"flag": 64, "scale": 64}


@pytest.fixture(scope="module")
def binaries(tmp_path_factory):
    """Compile a program of this folder for this machine's GPU."""
    folder = tmp_path_factory.mktemp("unusual")

    def build(name):
        out, source = folder / name, Path(__file__).parent / "programs" / f"{name}.cu"
        subprocess.run([locate.nvcc(), f"-arch={gpu.gpus()[0].architecture}", source, "-o", out], check=True)
        return out

    return build


@pytest.fixture(scope="module")
def program(binaries):
    return binaries("unusual")


@pytest.fixture
def recording(record, program):
    """Return the trace of the program, and the named buffers that launches of each kernel touch, by mode."""
    result = record(program, passes=("accesses",), granule=4, verify=True)
    assert (result.code, result.output.split()[-1]) == (0, "right")
    assert ", 0 of them outside every recorded write" in result.messages
    trace = load(result.path)
    assert validate(trace) == []
    where = selftest.buffers(result.output)
    true_bytes = {}
    for launch, kernel in enumerate(trace.launches.kernel.tolist()):
        for _, mode, granule in selftest.granules(trace, launch, 4):
            actual = [name for name, start in where.items() if start <= 4 * granule < start + SIZES.get(name, 4096)]
            true_bytes.setdefault((kernel.partition("(")[0], mode), set()).update(actual)
    return trace, true_bytes


def test_constant_memory_and_words_of_streams(recording):
    _, true_bytes = recording
    assert true_bytes["scaled", READ] == {"in", "scale"}
    assert true_bytes["flagged", READ] == {"flag", "out", "scale"}, "any kernel of a module may read its constants"
    assert true_bytes["stream write value", WRITE] == true_bytes["stream wait value", READ] == {"flag"}


def test_copies_of_arrays(recording):
    trace, true_bytes = recording
    assert true_bytes["memcpy of an array", READ] == {"last"}
    assert true_bytes["memcpy of an array", WRITE] == {"in"}
    copies = trace.launches.index[trace.launches.kernel == "memcpy of an array"]
    assert len(copies) == 3
    pairs = build_graph(trace).pairs
    result = pairs[(pairs.producer == copies[0]) & (pairs.raw > 0)]
    assert set(copies[1:]) <= set(result.consumer), "what the array holds comes from the first copy"


def test_a_graph_that_copies_an_array_and_the_kernels_of_a_graph_inside(record, program):
    result = record(program, "graph", passes=("accesses",), granule=4, verify=True)
    assert (result.code, result.output.split()[-1]) == (0, "right")
    assert ", 0 of them outside every recorded write" in result.messages
    trace = load(result.path)
    assert validate(trace) == []
    copies = trace.launches[trace.launches.kernel == "memcpy in a graph"]
    assert copies.coverage.tolist() == ["conservative"], "no callback says what it touches"
    inside = trace.launches[trace.launches.kernel.str.startswith("doubled")]
    assert inside.grid_x.tolist() == [8, 4]
    assert set(inside.coverage) == {"exact"}


def test_copies_in_graphs_are_exact_or_stand_for_all_memory(record, binaries):
    result = record(binaries("graph_copies"), passes=("accesses",), granule=4, verify=True)
    assert result.code == 0
    *lines, right = result.output.splitlines()
    assert right == "right"
    trace = load(result.path)
    assert validate(trace) == []
    for number, line in enumerate(lines):
        mine = trace.launches[trace.launches.graph == number]
        actual = list(zip(mine.kernel.str.partition("(")[0], mine.coverage, strict=True))
        copied = ("memcpy device to device", "exact")
        assert (
            actual
            == {
                "bytes": [copied],
                "unsaid": [("memcpy in a graph", "conservative")],
                "inside": [("counted", "exact"), copied],
            }[line.partition(":")[0]]
        ), line
    rows = trace.launches.index[trace.launches.graph == 1][0]
    sizes = [
        len({g for _, mode, g in selftest.granules(trace, rows, 4) if mode == expected}) for expected in (READ, WRITE)
    ]
    assert sizes == [64 * 16] * 2


def test_memory_with_several_addresses_is_one_memory(record, binaries):
    result = record(binaries("mapped"), passes=("accesses",), granule=4, verify=True)
    assert (result.code, result.output.split()[-1]) == (0, "right")
    trace = load(result.path)
    assert validate(trace) == []
    assert ", 0 of them outside every recorded write" in result.messages
    kernels = trace.launches.kernel.str.partition("(")[0]
    place = {launch: n for n, launch in enumerate(np.flatnonzero(kernels.isin(["written", "doubled"])))}
    pairs = build_graph(trace).pairs
    pairs = pairs[pairs.raw > 0]
    actual = {(place[p], place[c]) for p, c in zip(pairs.producer, pairs.consumer, strict=True) if {p, c} <= set(place)}
    # Written, doubled, doubled; by an imported handle, over a ring's end, before access was revoked, of other memory:
    # written, doubled.
    assert actual == {(0, 1), (0, 2), (3, 4), (5, 6), (7, 8), (9, 10)}, result.output
