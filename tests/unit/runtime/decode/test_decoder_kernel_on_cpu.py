"""The decoder's source, run on the CPU thread by thread in adversarial orders: PyTorch's results, always the same bits,
and planted faults are detected.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.support.orders import orders
from tests.support.runtime.kernel_on_cpu import compile_machine, compiler_missing
from tests.support.runtime.planted import gate_third, replaced, without_effect
from tests.unit.runtime.decode.decoder_model import HostModel
from tests.unit.runtime.decode.decoder_on_cpu import HostDecoder, compiled
from tileprof.runtime.decode.decoder_build import KERNEL
from tileprof.runtime.decode.shape import DecoderShape

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles the kernel for the CPU")

BASE = DecoderShape(
    "bfloat16",
    batch=1,
    layers=2,
    hidden=64,
    intermediate=96,
    heads=2,
    kv_heads=1,
    head_dim=64,
    vocabulary=72,
    cache=160,
    epsilon=1e-6,
    scale=0.125,
)
CASES = {
    "three chunks": (BASE, 3),
    "two sequences, float16": (replace(BASE, batch=2, heads=4, kv_heads=2, dtype="float16"), 3),
    "biases, ragged columns": (replace(BASE, hidden=160, intermediate=1184, heads=3, biased=True), 2),
    "norms of wide heads": (replace(BASE, head_dim=128, head_norms=True, scale=128**-0.5), 4),
    "eight sequences": (replace(BASE, batch=8), 4),
}
POSITIONS = (0, 150, 7, 159, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("decoder")
    compile_machine(place)
    return place


@cache
def model_of(name: str) -> HostModel:
    return HostModel(CASES[name][0])


def launches(name: str, library: Path, seed: int, most: int = 5) -> tuple[list[torch.Tensor], str | None]:
    """Return logits of launches that follow each other on the same memory, and the faults that the machine detected."""
    shape, blocks = CASES[name]
    decoder, results = HostDecoder(shape, blocks, library), []
    for number, position in enumerate(POSITIONS[:most]):
        logits, complaints = model_of(name).decode(decoder, position, seed + 10 * number if seed else 0)
        results.append(logits)
        if complaints is not None:
            return results, complaints
    return results, None


@pytest.mark.orders
@pytest.mark.parametrize("name", CASES)
def test_in_every_order_the_results_are_pytorchs_and_the_same_bits(name, folder):
    library = compiled(*CASES[name], folder / name.replace(" ", "-"))
    calm, complaints = launches(name, library, 0)
    assert complaints is None
    for logits, position in zip(calm, POSITIONS, strict=True):
        expected = model_of(name).expected(position)
        error = float((logits.float() - expected).norm() / expected.norm())
        assert error < {"float16": 4e-3, "bfloat16": 3e-2}[CASES[name][0].dtype]
    for seed in range(1, orders(3)):
        results, complaints = launches(name, library, seed, most=3)
        assert complaints is None
        assert all(torch.equal(a, b) for a, b in zip(results, calm[:3], strict=True))


FAULTS = {
    "a word is polled once": (
        "common.cuh",
        "    while (again) {",
        "    for (int once = 0; again && once < 1; ++once) {",
    ),
    "words are not marked absent": ("common.cuh", "        store_relaxed_gpu_u32(other + word, ABSENT);\n", ""),
    "a slot is filled before it is free": (
        "stream.cuh",
        "        wait_local(block.shared + FREE_AT + 8 * ring.slot, ring.turn ^ 1);\n        if",
        "        if",
    ),
    "a slot is read before it is filled": (
        "product.cuh",
        "    wait_local(block.shared + FULL_AT + 8 * at.slot, at.turn);\n",
        "",
    ),
    "a tile is finished before all warps have it": (
        "product.cuh",
        "            barrier_wait(barrier, CONSUMERS);\n",
        "",
    ),
    "sums are added before all warps have them": (
        "product.cuh",
        "        consumers_meet();\n        end(first, left);",
        "        end(first, left);",
    ),
    "warps' squares are added too early": (
        "product.cuh",
        "        consumers_meet();\n#pragma unroll\n        for (int i = 0; i < MINE; ++i) {\n            if (token(i)",
        "#pragma unroll\n        for (int i = 0; i < MINE; ++i) {\n            if (token(i)",
    ),
}


def test_every_fault_that_is_planted_at_night_still_changes_the_source() -> None:
    faults = {fault: replaced(file, (old, new)) for fault, (file, old, new) in FAULTS.items()}
    assert without_effect(faults, KERNEL.texts()) == []


@pytest.fixture(scope="module")
def right(folder):
    """Return the results of the source without a fault."""
    return launches("three chunks", compiled(*CASES["three chunks"], folder / "right"), 0)[0]


@pytest.mark.parametrize("fault", gate_third(FAULTS))
def test_a_planted_fault_is_detected(fault, folder, right):
    name = "three chunks"
    source, before, after = FAULTS[fault]
    broken_library = compiled(*CASES[name], folder / fault.replace(" ", "-"), replaced(source, (before, after)))

    def is_seen(seed: int) -> bool:
        results, complaints = launches(name, broken_library, seed)
        return complaints is not None or not all(torch.equal(a, b) for a, b in zip(results, right, strict=True))

    assert any(is_seen(seed) for seed in range(1, 13))
