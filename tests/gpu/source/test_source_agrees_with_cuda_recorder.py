"""Two recorders that share no code on the device see the same bytes of the same kernels."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.gpu.source.known_kernels import CASES, GPU_CASES, need_a_gpu, true_sets
from tileprof.trace import load

# Its wrapper names fewer accesses than the kernel makes.
LEFT_OUT = {"named"}


def disagreement(folder: Path) -> dict[str, int]:
    """Return, per kernel, the bytes of tiles that only the truth or only the recorder has; -1 for a launch it did not
    see.
    """
    from tileprof.record import Options
    from tileprof.record.cuda import record
    from tileprof.record.cuda.settings import Settings

    script, message = Path(__file__).with_name("source_program.py"), folder / "addresses.json"
    options = Options(program=(sys.executable, str(script), str(message)), output=folder / "cuda.tileprof", force=True)
    names = {case.kernel.split("<")[0] for case in CASES + GPU_CASES}
    settings = Settings(passes=("accesses",), granule=1, kernel=rf"\b({'|'.join(sorted(names))})\b")
    assert record(options, settings) == 0
    return comparison(load(folder / "cuda.tileprof"), json.loads(message.read_text()))


def comparison(trace, addresses: list[list[int]]) -> dict[str, int]:
    launches = iter(range(len(trace.launches)))
    matches = {}
    for case, bases in zip(CASES + GPU_CASES, addresses, strict=True):
        name = case.kernel.split("<")[0]
        launch = next((n for n in launches if re.search(rf"\b{name}\b", trace.launches.kernel[n])), None)
        if launch is None:
            matches[case.kernel] = -1
            continue
        truth = defaultdict(set)
        for (tile, array, mode), true_set in true_sets(case).items():
            truth[tile, mode].update(bases[array] + byte for byte in true_set)
        actual = absolute(trace, launch)
        matches[case.kernel] = sum(
            len(truth.get(k, set()) ^ actual.get(k, set())) for k in truth.keys() | actual.keys()
        )
    return matches


def absolute(trace, launch: int) -> dict[tuple[int, int], set[int]]:
    """Return addresses by (tile, mode)."""
    matches = defaultdict(set)
    boxes = trace.footprint(int(trace.launches.footprint[launch])).boxes
    buffer, offset = trace.operands_of(launch)
    base = trace.buffers.base.to_numpy()[buffer] + offset
    for row in range(len(boxes)):
        for i in range(boxes.count_0[row]):
            for j in range(boxes.count_1[row]):
                begin = int(
                    base[boxes.operand[row]] + boxes.offset[row] + i * boxes.stride_0[row] + j * boxes.stride_1[row]
                )
                matches[int(boxes.tile[row]), int(boxes.mode[row])].update(range(begin, begin + int(boxes.length[row])))
    return matches


@pytest.mark.gpu
def test_the_cuda_recorder_sees_the_true_bytes_too(tmp_path: Path) -> None:
    need_a_gpu()
    actual = disagreement(tmp_path)
    assert {k: n for k, n in actual.items() if n and k not in LEFT_OUT} == {}
