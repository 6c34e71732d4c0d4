"""The kernel of convolutional networks, run on the CPU thread by thread in adversarial orders: always the same bits, and every planted fault is seen."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kernel_on_cpu import compile_machine, compiler_missing
from network_on_cpu import HostNetwork, compiled
from networks import image, parameters, small

from tileprof.runtime.convnet.build import Options
from tileprof.runtime.convnet.network import Convolution, computed
from tileprof.runtime.convnet.plan import Plan, planned, verify
from tileprof.runtime.convnet.tiling import Tiling, candidates

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles the kernel for the CPU")

RUNS = int(os.environ.get("TILEPROF_KERNEL_RUNS", "12"))
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.5e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("machine")
    compile_machine(made)
    return made


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    return compiled(folder / "kernel")


def host(plan: Plan, library: Path) -> HostNetwork:
    images, dtype = plan.network.layers[0].shape[0], plan.network.dtype
    return HostNetwork(plan, library, image(images, dtype), parameters(dtype))


def far_layers(runner: HostNetwork) -> Iterator[str]:
    network = runner.plan.network
    wanted = computed(network, runner.x, parameters(network.dtype))
    for number, (ours, theirs) in enumerate(zip(runner.results, wanted, strict=True)):
        error = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        if not error < TOLERANCE[network.dtype]:
            yield f"layer {number}: {error}"


@pytest.mark.parametrize(("images", "blocks", "flattened"), [(1, 5, False), (2, 3, True), (3, 2, False), (2, 7, False)])
def test_every_layer_is_pytorchs_in_every_order(library: Path, images: int, blocks: int, flattened: bool) -> None:
    plan = planned(small(images, flattened=flattened), blocks)
    verify(plan)
    runner = host(plan, library)
    first = None
    for seed in range(RUNS):
        assert runner.run(seed) is None
        if first is None:
            assert list(far_layers(runner)) == []
            first = [result.clone() for result in runner.results]
        assert all(torch.equal(a, b) for a, b in zip(first, runner.results, strict=True))


def test_bfloat16_is_computed_too(folder: Path) -> None:
    library = compiled(folder / "bfloats", Options(dtype="bfloat16"))
    runner = host(planned(small(2, "bfloat16"), 4), library)
    assert runner.run(3) is None
    assert list(far_layers(runner)) == []


def test_every_tiling_of_a_layer_gives_its_result(library: Path) -> None:
    network = small(3)
    plan = planned(network, 3)
    for number, layer in enumerate(network.layers):
        if not isinstance(layer, Convolution):
            continue
        for tiling in candidates(network, layer):
            tilings: tuple[Tiling, ...] = (*plan.tilings[:number], tiling, *plan.tilings[number + 1 :])
            runner = host(planned(network, 3, tilings), library)
            assert runner.run(number) is None
            assert list(far_layers(runner)) == [], tiling


def without_wait(plan: Plan, number: int) -> Plan:
    waits = plan.waits.copy()
    waits[number] = (plan.semaphores, 0)  # which nobody posts, and nobody need to
    return replace(plan, waits=waits)


def test_a_dropped_wait_is_seen(library: Path) -> None:
    """Not each alone, as others may imply it: all waits of a task."""
    plan = planned(small(1), 5)
    seen = []
    for begin, end in plan.tasks[:, 5:7].tolist():
        if begin == end:
            continue
        waits = plan.waits.copy()
        waits[begin:end] = (plan.semaphores, 0)
        broken = replace(
            plan, waits=waits, bands=(*plan.bands[:-1], replace(plan.bands[-1], count=plan.bands[-1].count + 1))
        )
        runner = host(broken, library)
        seen.append(any(runner.run(seed) is not None or list(far_layers(runner)) for seed in range(8)))
    assert np.mean(seen) > 0.9


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("loads.cuh", "fence_proxy_async_global();\n                if (stage.window)", "if (stage.window)"),
        ("loads.cuh", "wait_cta(shared + W_FREE + 8 * ring.slot, ring.turn ^ 1);", ""),
        ("loads.cuh", "wait_cta(shared + A_FREE + 8 * ring.slot, ring.turn ^ 1);\n        if (halo)", "if (halo)"),
        ("kernel.cu", "fence_proxy_async_global();\n        add_release", "add_release"),
        ("kernel.cu", "wait_cta(shared + STORED + 8 * ring.slot, ring.turn);", ""),
        ("products.cuh", "if (k == a_begin) wait_cta(shared + A_FULL + 8 * reader.a.slot, reader.a.turn);", ""),
        ("products.cuh", "if (down == 0) wait_cta(shared + A_FULL + 8 * reader.a.slot, reader.a.turn);", ""),
        ("products.cuh", "turn ^= 1;\n        }", "}"),
        ("pools.cuh", "barrier_sync<1, CONSUMERS>();\n    if (thread < 32)", "if (thread < 32)"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_seen(folder: Path, name: str, old: str, new: str) -> None:
    def plant(file: str, text: str) -> str:
        if file != name:
            return text
        assert old in text, "the fault has lost its place"
        return text.replace(old, new, 1)

    library = compiled(folder / f"fault{zlib.crc32((name + old).encode())}", patch=plant)
    for plan in (planned(small(2), 3), deep(1)):
        runner = host(plan, library)
        for seed in range(40):
            if runner.run(seed) is not None or list(far_layers(runner)):
                return
    pytest.fail("nothing was seen")


def deep(blocks: int) -> Plan:
    """Tiles whose k the warpgroups share, wherever they can be."""
    network = small(2)
    tilings = []
    for layer, tiling in zip(network.layers, planned(network, blocks).tilings, strict=True):
        shared = [t for t in candidates(network, layer) if t.deep] if isinstance(layer, Convolution) else []
        tilings.append(min(shared, key=lambda t: t.width) if shared else tiling)
    return planned(network, blocks, tuple(tilings))
