"""What reaches memory beside kernels' loads and stores and plain copies is in the trace: `unusual.cu`."""

import subprocess
from pathlib import Path

import pytest

from tileprof.analysis import build_graph
from tileprof.record.cuda import gpu, locate, selftest
from tileprof.trace import READ, WRITE, load, validate

SIZES = {"flag": 64, "scale": 64}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    out = tmp_path_factory.mktemp("unusual") / "unusual"
    source = Path(__file__).parent / "unusual.cu"
    subprocess.run([locate.nvcc(), f"-arch={gpu.gpus()[0].architecture}", source, "-o", out], check=True)
    return out


@pytest.fixture
def recorded(record, program):
    """The trace of the program, and the named buffers that launches of each kernel touch, by mode."""
    done = record(program, passes=("accesses",), granule=4, verify=True)
    assert (done.code, done.output.split()[-1]) == (0, "right")
    assert ", 0 of them outside every recorded write" in done.said
    trace = load(done.path)
    assert validate(trace) == []
    where = selftest.buffers(done.output)
    touched = {}
    for launch, kernel in enumerate(trace.launches.kernel.tolist()):
        for _, mode, granule in selftest.granules(trace, launch, 4):
            found = [name for name, start in where.items() if start <= 4 * granule < start + SIZES.get(name, 4096)]
            touched.setdefault((kernel.partition("(")[0], mode), set()).update(found)
    return trace, touched


def test_constant_memory_and_words_of_streams(recorded):
    _, touched = recorded
    assert touched["scaled", READ] == {"in", "scale"}
    assert touched["flagged", READ] == {"flag", "out", "scale"}, "any kernel of a module may read its constants"
    assert touched["stream write value", WRITE] == touched["stream wait value", READ] == {"flag"}


def test_copies_of_arrays(recorded):
    trace, touched = recorded
    assert touched["memcpy of an array", READ] == {"last"}
    assert touched["memcpy of an array", WRITE] == {"in"}
    copies = trace.launches.index[trace.launches.kernel == "memcpy of an array"]
    assert len(copies) == 3
    pairs = build_graph(trace).pairs
    made = pairs[(pairs.producer == copies[0]) & (pairs.raw > 0)]
    assert set(copies[1:]) <= set(made.consumer), "what the array holds comes from the first copy"


def test_a_graph_that_copies_an_array_and_the_kernels_of_a_graph_inside(record, program):
    done = record(program, "graph", passes=("accesses",), granule=4, verify=True)
    assert (done.code, done.output.split()[-1]) == (0, "right")
    assert ", 0 of them outside every recorded write" in done.said
    trace = load(done.path)
    assert validate(trace) == []
    copies = trace.launches[trace.launches.kernel == "memcpy of an array"]
    assert set(copies.coverage[copies.index[3:]]) == {"conservative"}, "no callback says what a graph copies"
    inside = trace.launches[trace.launches.kernel.str.startswith("doubled")].grid_x.tolist()
    assert inside == [8, 4] or "child graph" in set(trace.launches.kernel), trace.launches[
        ["kernel", "coverage", "note"]
    ].to_string()
