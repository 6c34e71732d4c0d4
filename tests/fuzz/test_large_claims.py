"""Small files that claim large work: each verb refuses them, or takes bounded time and memory."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.harness import run

MOST_BYTES = 3 << 30
"""Memory that a verb may take beyond that of the process. The harness bounds its processor time."""

VERBS = {
    "report": ["report", "IN"],
    "view": ["view", "--quick", "-o", "OUT/page.html", "IN"],
    "simulate": ["simulate", "IN"],
    "export": ["export", "--format", "json", "--launches", "0,1", "-o", "OUT", "IN"],
    "verify": ["verify", "GOOD", "IN"],
}
HUGE = [100_000, 100_000]


def everywhere(table: str, **values: Any) -> list[list[Any]]:
    return [["column", table, column, 0, value] for column, value in values.items()]


def description(**changes: Any) -> str:
    tensors = [
        {"argument": name, "shape": HUGE, "strides": [100_000, 1], "dtype": "float16", "buffer": n,
         "offset": 0, "written": n == 2}
        for n, name in enumerate(("self", "mat2", "out"))
    ]  # fmt: skip
    places = {"self": {"tensor": 0}, "mat2": {"tensor": 1}}
    return json.dumps({"operands": [], "arguments": {}, "number": 0, "tensors": tensors, "places": places} | changes)


CLAIMS: dict[str, tuple[str, list[list[Any]]]] = {
    "boxes that repeat 1e8 times": ("tiny", everywhere("accesses", count_0=10**8)),
    "boxes that repeat 1e12 times in two directions": ("tiny", everywhere("accesses", count_0=2**20, count_1=2**20)),
    "boxes of one byte each, 1e6 apart": (
        "tiny", [*everywhere("buffers", bytes=2**50), *everywhere("accesses", count_0=2**20, stride_0=2**20, length=1)],
    ),
    "boxes of 1e12 bytes": ("tiny", [*everywhere("buffers", bytes=2**50), *everywhere("accesses", length=2**40)]),
    "steps of nothing": ("tiny", everywhere("accesses", count_0=2**20, stride_0=0, stride_1=0)),
    "buffers of 1e18 bytes": ("tiny", everywhere("buffers", bytes=2**60, shape=HUGE, strides=[100_000, 1])),
    "shapes of 64 dimensions": ("tiny", everywhere("buffers", shape=[2**40] * 64, strides=[1] * 64)),
    "a grid of 1e10 tiles": ("tiny", everywhere("launches", grid_x=10**5, grid_y=10**5)),
    "a grid of 1e8 tiles": ("tiny", everywhere("launches", grid_x=10**4, grid_y=10**4)),
    "launches of 1e18 ns": ("tiny", everywhere("launches", duration_ns=2**60)),
    "a device of 1e6 SMs": ("tiny", [["manifest", ["device", "sms"], 10**6]]),
    "1e12 FLOP in a tile": ("tiny", everywhere("launches", flops=2**62)),
    "operators of 1e10 elements": (
        "recording", [*everywhere("buffers", bytes=2**50), *everywhere("launches", call=description())],
    ),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_small_file_with_a_large_work_takes_bounded_time_and_memory(
    bases: Path, tmp_path: Path, claim: str, verb: str
) -> None:
    base, operations = CLAIMS[claim]
    with memory_bounded():
        outcome = run(bases, tmp_path / "one", base, operations, VERBS[verb])
    assert not outcome.fault, outcome.fault


class memory_bounded:  # noqa: N801 - reads as what it does
    """Allow at most `MOST_BYTES` more address space, as on a machine that has no more."""

    def __enter__(self) -> None:
        self.limits = resource.getrlimit(resource.RLIMIT_AS)
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, self.limits[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self.limits)
