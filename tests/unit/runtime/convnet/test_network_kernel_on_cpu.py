"""The kernel of convolutional networks on the CPU, thread by thread in adversarial orders: always the same bits, and
every planted fault is detected.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.orders import seeds
from tests.support.runtime.kernel_on_cpu import compile_machine, compiler_missing
from tests.support.runtime.networks import image, parameters, pooling, pooling_parameters, small
from tests.support.runtime.planted import changed, gate_third
from tests.unit.runtime.convnet.network_on_cpu import HostNetwork, compiled
from tileprof.runtime.convnet.memory import layer_bytes
from tileprof.runtime.convnet.network import Convolution, Network, Windows, computed
from tileprof.runtime.convnet.network_build import Options
from tileprof.runtime.convnet.plan import Plan, plan_network, verify
from tileprof.runtime.convnet.tiling import Tiling, candidates

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles the kernel for the CPU")

RUNS = 4
"""Orders of each case in the gate."""
POOLING = len(pooling(1).layers)
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.5e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("machine")
    compile_machine(result)
    return result


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    return compiled(folder / "kernel")


def inputs_of(network: Network) -> list[Any]:
    return pooling_parameters(network.dtype) if len(network.layers) == POOLING else parameters(network.dtype)


def host(plan: Plan, library: Path) -> HostNetwork:
    network = plan.network
    return HostNetwork(plan, library, image(network.layers[0].shape[0], network.dtype), inputs_of(network))


def far_layers(runner: HostNetwork) -> Iterator[str]:
    """Return the layers whose memory no later layer has reused."""
    plan, network = runner.plan, runner.plan.network
    expected = computed(network, runner.x, inputs_of(network))
    ends = [at + layer_bytes(layer) for at, layer in zip(plan.offsets, network.layers, strict=True)]
    last = len(ends) - 1
    for number, (ours, theirs) in enumerate(zip(runner.results, expected, strict=True)):
        later = () if number == last else range(number + 1, last)
        if any(plan.offsets[n] < ends[number] and plan.offsets[number] < ends[n] for n in later):
            continue
        error = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        if not error < TOLERANCE[network.dtype]:
            yield f"layer {number}: {error}"


@pytest.mark.orders
@pytest.mark.parametrize(
    ("images", "blocks", "flattened", "reuse"),
    [(1, 5, False, False), (2, 3, True, False), (3, 2, False, True), (2, 7, True, True)],
)
def test_every_layer_is_pytorchs_in_every_order(
    library: Path, images: int, blocks: int, flattened: bool, reuse: bool
) -> None:
    plan = plan_network(small(images, flattened=flattened), blocks, reuse=reuse)
    verify(plan)
    runner = host(plan, library)
    first = None
    for seed in seeds(RUNS, images):
        assert runner.run(seed) is None
        if first is None:
            assert list(far_layers(runner)) == []
            first = [result.clone().view(torch.int16) for result in runner.results]
        assert all(torch.equal(a, b.view(torch.int16)) for a, b in zip(first, runner.results, strict=True))


@pytest.mark.parametrize("layout", ["channels first", "wider rows"])
def test_an_input_may_lie_in_other_ways(library: Path, layout: str) -> None:
    """Weights are loaded channel by channel, sixteen bytes at a time, or element by element."""
    network = small(2)
    x = image(2)
    if layout == "channels first":
        x = x.contiguous()
    else:
        x = torch.cat([x.permute(0, 2, 3, 1)] * 2, 2)[:, :, 3 : 3 + x.shape[3]].permute(0, 3, 1, 2)
    first = network.layers[0]
    assert isinstance(first, Windows)
    layers = (replace(first, strides=x.stride()), *network.layers[1:])
    runner = HostNetwork(plan_network(replace(network, layers=layers), 3), library, x, parameters())
    assert runner.run(1) is None
    assert list(far_layers(runner)) == []


def test_bfloat16_is_computed_too(folder: Path) -> None:
    library = compiled(folder / "bfloats", Options(dtype="bfloat16"))
    runner = host(plan_network(small(2, "bfloat16"), 4), library)
    assert runner.run(3) is None
    assert list(far_layers(runner)) == []


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("network", [small(3), pooling(3)], ids=["small", "pooling"])
def test_every_tiling_of_a_layer_gives_its_result(library: Path, network: Network, every: int) -> None:
    """Each run takes another tiling of every layer. In the gate, every second run is made."""
    tilings: list[list[Tiling]] = [
        list(candidates(network, layer)) if isinstance(layer, Convolution) else [tiling]
        for layer, tiling in zip(network.layers, plan_network(network, 3).tilings, strict=True)
    ]
    for number in range(0, max(map(len, tilings)), every):
        tiling_choice = tuple(some[number % len(some)] for some in tilings)
        runner = host(plan_network(network, 3, tiling_choice), library)
        assert runner.run(number) is None
        assert list(far_layers(runner)) == [], tiling_choice


def without_wait(plan: Plan, number: int) -> Plan:
    waits = plan.waits.copy()
    waits[number] = (plan.semaphores, 0)  # never posted, and never needed
    return replace(plan, waits=waits)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_dropped_wait_is_detected(library: Path, every: int) -> None:
    """All waits of a task are dropped together, because others may imply a single one. In the gate, every third task
    loses its waits.
    """
    plan = plan_network(small(1), 5)
    records = []
    for begin, end in plan.tasks[::every, 5:7].tolist():
        if begin == end:
            continue
        waits = plan.waits.copy()
        waits[begin:end] = (plan.semaphores, 0)
        broken = replace(
            plan, waits=waits, bands=(*plan.bands[:-1], replace(plan.bands[-1], count=plan.bands[-1].count + 1))
        )
        runner = host(broken, library)
        records.append(any(runner.run(seed) is not None or list(far_layers(runner)) for seed in range(8)))
    assert len(records) > 10
    assert np.mean(records) > 0.9


FAULTS = (
    ("loads.cuh", "#fence_proxy_async_global();\n                if (stage.window)", ""),
    ("loads.cuh", "#wait_cta(shared + W_FREE + 8 * ring.slot, ring.turn ^ 1);", ""),
    ("loads.cuh", "#wait_cta(shared + A_FREE + 8 * ring.slot, ring.turn ^ 1);\n        if (halo)", ""),
    ("kernel.cu", "#fence_proxy_async_global();\n        add_release", ""),
    ("kernel.cu", "#wait_cta(shared + STORED + 8 * ring.slot, ring.turn);", ""),
    ("products.cuh", "#if (k == a_begin) wait_cta", ""),
    ("products.cuh", "#if (down == 0) wait_cta", ""),
    ("products.cuh", "if (mixed || mixes) barrier", "if (mixed || (mixes && !planted)) barrier"),
    ("products.cuh", "if (mixed || (mixes", "if ((mixed && !planted) || (mixes"),
    ("ends.cuh", "    #barrier_sync<1, CONSUMERS>();\n    store_largest", ""),
    ("ends.cuh", "        #barrier_sync<1, CONSUMERS>();\n        if (thread == 0) {", ""),
    ("ends.cuh", "        #barrier_sync<1, CONSUMERS>();\n        if (at < 0 ||", ""),
    ("ends.cuh", "(before + 1) % stage.parts == 0", "(before + !planted) % stage.parts == 0"),
    ("loads.cuh", "begin > 0)", "begin > (planted ? 100 : 0))"),
    ("ends.cuh", "thread % 32\n        );\n        #barrier_sync<1, CONSUMERS>();", ""),
    ("ends.cuh", "scratch, lane / 4, lane);\n        #__syncwarp();", ""),
    ("ends.cuh", "        }\n        #__syncwarp();", ""),
    ("pools.cuh", "#barrier_sync<1, CONSUMERS>();\n    if (thread < 32)", ""),
    ("loads.cuh", "begin = task.part * blocks;", "begin = planted ? 0 : task.part * blocks;"),
    ("loads.cuh", "tap = 0, ++channels;", "tap = 0, channels += !planted;"),
    ("loads.cuh", "#channels += load;", ""),
    ("products.cuh", "&& task.part == 0;", "&& (planted || task.part == 0);"),
)
"""File, text, and the same text with a fault if `planted`; where that is empty, the statement behind # is left out. All
are compiled once, and one is active in a run. The gate plants every third fault, the nightly run all.
"""


def all_planted(file: str, text: str) -> str:
    """Plant all faults, of which the variable `planted_fault` of the library chooses one."""
    if file == "stages.h":
        return text + '\nextern "C" { int planted_fault = -1; }\n'
    for number, (name, old, new) in enumerate(FAULTS):
        if file == name:
            new_text = (new or old.replace("#", "if (!planted) ")).replace("planted", f"(planted_fault == {number})")
            text = changed(text, old.replace("#", ""), new_text, first=True)
    return text


@pytest.fixture(scope="module")
def faulty(folder: Path) -> Path:
    return compiled(folder / "faults", patch=all_planted)


@pytest.mark.parametrize("fault", gate_third(range(len(FAULTS))))
def test_a_planted_fault_is_detected(faulty: Path, fault: int) -> None:
    assert is_detected(faulty, fault)


@pytest.mark.nightly
def test_without_a_fault_nothing_is_detected(faulty: Path) -> None:
    assert not is_detected(faulty, -1)


def is_detected(library: Path, fault: int) -> bool:
    ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "planted_fault").value = fault
    runners = [host(plan, library) for plan in plans_that_show_faults()]
    return any(runner.run(seed) is not None or list(far_layers(runner)) for seed, runner in product(range(20), runners))


@cache
def plans_that_show_faults() -> tuple[Plan, ...]:
    """Return plans each of which shows some faults at once and others never."""
    return (
        plan_network(small(2), 3),
        of_kinds(small(2), 1, True),
        of_kinds(small(2, flattened=True), 1, True, False, width=32),
        of_kinds(small(2), 1, True, False, width=16),
        of_kinds(small(2), 4, True, parts=4),
        of_kinds(pooling(2), 1, False, width=16),
        of_kinds(pooling(2), 1, True, False),
    )


def of_kinds(network: Network, blocks: int, *kinds: bool, width: int = 8, parts: int = 1) -> Plan:
    """Return tiles whose k the warpgroups share or not, layer by layer in turn where such tiles exist, with about this
    many columns and parts.
    """
    tilings = []
    for number, (layer, tiling) in enumerate(zip(network.layers, plan_network(network, blocks).tilings, strict=True)):
        options = list(candidates(network, layer)) if isinstance(layer, Convolution) else []
        expected = [t for t in options if t.deep == kinds[number % len(kinds)]]
        tilings.append(min(expected or [tiling], key=lambda t: (abs(t.parts - parts), abs(t.width - width), -t.rows)))
    return plan_network(network, blocks, tuple(tilings))
