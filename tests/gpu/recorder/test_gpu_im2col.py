"""Loads in im2col mode on a real GPU: `im2col` derives the bytes that the hardware fetched from maps and
coordinates.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tileprof.record.cuda.installation import gpu, locate
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.tensor_maps import im2col, tensormap
from tileprof.trace import READ, load, validate

SOURCE = Path(__file__).parent / "programs" / "im2col_loads.cu"
ELEMENT = 4


@pytest.fixture
def recording(record, tmp_path):
    """A recording of the program, what its loads fetched (tensor and elements by case and block), and its maps."""
    if int(gpu.gpus()[0].architecture[3:-1]) < tensormap.FIRST_MAJOR:
        pytest.skip("needs a GPU with tensor maps")
    program = tmp_path / "im2col_loads"
    flags = ["-std=c++17", f"-arch={gpu.gpus()[0].architecture}"]
    subprocess.run([locate.nvcc(), *flags, SOURCE, "-o", program], check=True)
    result = record(program, passes=("accesses",))
    assert result.code == 0
    reads, maps = {}, {}
    for line in result.output.splitlines():
        what, *words = line.split()
        if what == "reads":
            case, block, base, *elements = map(int, words)
            reads[case, block] = base, set(elements)
        elif what == "map":
            maps[int(words[0])] = np.array([int(w, 16) for w in words[1:]], np.uint32)
    return result, reads, maps


def touched_bytes(boxes, of):
    """Return the bytes of the boxes whose load or tile is ``of``."""
    out = set()
    for i in np.flatnonzero(boxes.load == of):
        for outer in range(boxes.count[i, 1]):
            for inner in range(boxes.count[i, 0]):
                start = boxes.address[i] + outer * boxes.stride[i, 1] + inner * boxes.stride[i, 0]
                out |= set(range(start, start + boxes.length[i]))
    return out


def test_what_the_decoder_says_of_every_load_is_what_it_fetched(recording, tmp_path):
    _, reads, maps = recording
    [process] = raw.processes(tmp_path / "raw0" / "accesses")
    launches = [e for e in process.events if e["e"] == "launch"]
    assert len(launches) == len(maps)
    for case, event in enumerate(launches):
        map_ = tensormap.decode(maps[case])
        assert map_ is not None
        assert map_.im2col
        entries = process.of(event["launch"], 0)
        kinds = raw.kinds(entries)
        heads, tails = entries[kinds == raw.TENSOR], entries[kinds == raw.TENSOR_TAIL]
        order, tail_order = np.argsort(heads["block"]), np.argsort(tails["block"])
        heads, tails = heads[order], tails[tail_order]
        coordinates = np.column_stack([heads["payload"].astype(np.int32), tails["payload"][:, :1].astype(np.int32)])
        offsets = tails["payload"][:, 1].astype(np.int64)
        boxes = im2col.boxes(map_, coordinates.astype(np.int64), offsets)
        for load_, block in enumerate(heads["block"].tolist()):
            base, elements = reads[case, block]
            expected = {base + e * ELEMENT + b for e in elements for b in range(ELEMENT)}
            assert touched_bytes(boxes, load_) == expected, (case, block, coordinates[load_], hex(offsets[load_]))


def test_the_trace_of_such_loads_holds_no_other_bytes_of_the_tensor(recording):
    run_result, reads, _ = recording
    trace = load(run_result.path)
    assert validate(trace) == []
    kernels = trace.launches[trace.launches.kernel.str.contains("load_pixels")]
    assert set(kernels.coverage) == {"exact"}
    sizes = dict(zip(trace.buffers.base.tolist(), trace.buffers.bytes.tolist(), strict=True))
    for case, launch in enumerate(kernels.launch.tolist()):
        buffers, offsets = trace.operands_of(launch)
        boxes = trace.footprint(int(kernels.footprint[kernels.launch == launch].iloc[0])).boxes
        boxes = boxes.take(boxes.mode == READ)
        starts = (trace.buffers.base.to_numpy()[buffers] + offsets)[boxes.operand] + boxes.offset
        for block in {b for c, b in reads if c == case}:
            base, elements = reads[case, block]
            actual = set()
            for i in np.flatnonzero((boxes.tile == block) & (starts >= base) & (starts < base + sizes[base])):
                for outer in range(boxes.count_1[i]):
                    for inner in range(boxes.count_0[i]):
                        start = starts[i] + outer * boxes.stride_1[i] + inner * boxes.stride_0[i]
                        actual |= set(range(start, start + boxes.length[i]))
            assert actual == {base + e * ELEMENT + b for e in elements for b in range(ELEMENT)}, (case, block)
