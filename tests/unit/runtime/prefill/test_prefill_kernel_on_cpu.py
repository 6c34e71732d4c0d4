"""The prefill's source, run on the CPU thread by thread in adversarial orders: PyTorch's results, always the same bits,
and planted faults are detected.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.support.orders import seeds
from tests.support.runtime.kernel_on_cpu import compile_machine, compiler_missing
from tests.support.runtime.planted import gate_third, replaced, without_effect
from tests.support.runtime.prefill_model import HostModel
from tests.unit.runtime.prefill.prefill_on_cpu import HostPrefill, compiled
from tileprof.runtime.prefill.prefill_build import KERNEL
from tileprof.runtime.prefill.shape import PrefillShape

pytestmark = pytest.mark.skipif(compiler_missing(), reason="needs g++, which compiles the kernel for the CPU")

BASE = PrefillShape(
    "bfloat16",
    batch=1,
    length=40,
    layers=2,
    hidden=256,
    intermediate=256,
    heads=2,
    kv_heads=1,
    head_dim=64,
    vocabulary=264,
    epsilon=1e-5,
    scale=0.125,
    cache=48,
)
CASES = {
    "k cut in two": (BASE, 5),
    "two sequences, float16, more blocks than tasks": (replace(BASE, batch=2, length=9, dtype="float16", cache=0), 7),
    "an odd number of layers, blocks without a gate": (
        replace(BASE, layers=3, hidden=512, intermediate=128, heads=4, kv_heads=2),
        4,
    ),
    "more tasks than blocks": (replace(BASE, layers=1, hidden=512, cache=0), 2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("prefill")
    compile_machine(place)
    return place


@cache
def model_of(name: str) -> HostModel:
    return HostModel(CASES[name][0])


def launches(
    name: str, library: Path, seeds: tuple[int, ...], right: torch.Tensor | None = None
) -> tuple[list[torch.Tensor], str | None]:
    """Return logits of launches that follow each other on the same memory, and the faults that the machine detected.

    Stops at the first launch whose logits are not ``right``.
    """
    shape, blocks = CASES[name]
    prefill, model, results = HostPrefill(shape, blocks, library), model_of(name), []
    for seed in seeds:
        logits = model.logits()
        complaints = prefill.start(model.layers, model.tensors, logits, seed)
        results.append(logits)
        if complaints is not None or not (right is None or torch.equal(logits, right)):
            return results, complaints
    return results, None


@pytest.mark.orders
@pytest.mark.parametrize("name", CASES)
def test_in_every_order_the_results_are_pytorchs_and_the_same_bits(name, folder):
    shape = CASES[name][0]
    results, complaints = launches(
        name, compiled(*CASES[name], folder / name.replace(" ", "-")), tuple(seeds(4, list(CASES).index(name)))
    )
    assert complaints is None
    expected, kept_keys = model_of(name).expected()
    tolerance = {"float16": 4e-3, "bfloat16": 2e-2}[shape.dtype]
    assert float((results[0].float() - expected).norm() / expected.norm()) < tolerance
    assert all(torch.equal(result, results[0]) for result in results)
    for layer, reference in zip(model_of(name).layers, kept_keys, strict=True):
        for role, rows in zip(("keys", "values"), reference, strict=True):
            if role in layer:
                actual = layer[role][:, :, : shape.length].float()
                assert float((actual - rows).norm() / rows.norm()) < tolerance


FAULTS = {
    "a part is read once": (
        "common.cuh",
        "if (missing < 0 || !patience.more(block, stage, -1 - missing)) return;",
        "return;",
    ),
    "parts of the other set stay": (
        "product.cuh",
        "store_relaxed_gpu_u32x4(block.at(16ll * (other + vector)), none);",
        "",
    ),
    "parts are made absent before their readers are done": (
        "product.cuh",
        "        wait_local(block.shared + A_FULL + 8 * rings.activations.slot, rings.activations.turn);\n",
        "",
    ),
    "rows are not waited for": (
        "loads.cuh",
        "            if (!ready) wait_flags(block, P::STAGE, flags, ROWS, per_launch);\n",
        "",
    ),
    "heads are not waited for": (
        "loads.cuh",
        "chunks<Output, QUERY_TASKS>(MAP_ATTENDED, ATTENDED_FLAGS)",
        "chunks<Output, QUERY_TASKS>(MAP_ATTENDED, NORMED_FLAGS)",
    ),
    "a flag is posted before all have stored": (
        "common.cuh",
        "    delay(block, stage);\n    consumers_meet();\n",
        "    delay(block, stage);\n",
    ),
    "no fence in front of a flag": (
        "common.cuh",
        "    fence_proxy_async_global();\n    delay(block, stage);",
        "    delay(block, stage);",
    ),
    "a slot of weights is filled before it is free": (
        "loads.cuh",
        "            wait_local(block.shared + W_FREE + 8 * ring.slot, ring.turn ^ 1);\n",
        "",
    ),
    "a slot of activations is filled before it is free": (
        "loads.cuh",
        "        wait_local(block.shared + A_FREE + 8 * ring.slot, ring.turn ^ 1);\n",
        "",
    ),
    "weights are read before they are there": (
        "product.cuh",
        "            wait_local(block.shared + W_FULL + 8 * weights[i], rings.weights.turn);\n",
        "",
    ),
    "attention begins before all keys are there": (
        "attention.cuh",
        "    load_heads(block, layer, head, first, keys);\n    consumers_meet();\n",
        "    load_heads(block, layer, head, first, keys);\n",
    ),
    "warps' squares are added too early": (
        "finish.cuh",
        "store_shared_f32(block.shared + SQUARES_AT + 4 * block.warp, squares);\n    consumers_meet();",
        "store_shared_f32(block.shared + SQUARES_AT + 4 * block.warp, squares);",
    ),
}


SEEN_IN = {
    "parts are made absent before their readers are done": "an odd number of layers, blocks without a gate",
    "a slot of activations is filled before it is free": "more tasks than blocks",
}


def test_every_fault_that_is_planted_at_night_still_changes_the_source():
    faults = {fault: replaced(file, (old, new)) for fault, (file, old, new) in FAULTS.items()}
    assert without_effect(faults, KERNEL.texts()) == []


@pytest.fixture(scope="module")
def right(folder):
    """Return a function that gives the logits of a case without a fault."""

    @cache
    def right(name):
        library = compiled(*CASES[name], folder / f"right-{name.replace(' ', '-')}")
        return launches(name, library, (0,))[0][0]

    return right


@pytest.mark.parametrize("fault", gate_third(FAULTS))
def test_a_planted_fault_is_detected(fault, folder, right):
    name = SEEN_IN.get(fault, "k cut in two")
    source, before, after = FAULTS[fault]

    place = fault.replace(" ", "-").replace("'", "")
    broken_library = compiled(*CASES[name], folder / place, replaced(source, (before, after)))
    results, complaints = launches(name, broken_library, tuple(range(1, 17)), right(name))
    assert complaints is not None or not all(torch.equal(result, right(name)) for result in results)


def test_a_wait_that_times_out_names_stage_layer_and_awaited_word(folder):
    name = "k cut in two"
    posting, missing = (
        "if (block.thread == 0" + more + ") add_release" for more in ("", " && flag != MIDDLE_FLAGS + 7")
    )
    patch = replaced("common.cuh", (posting, missing))

    library = compiled(*CASES[name], folder / "missing", patch, timeout_ns=1000)
    prefill = HostPrefill(*CASES[name], library)
    model = model_of(name)
    prefill.start(model.layers, model.tensors, model.logits(), 0)
    with pytest.raises(
        RuntimeError, match=r"stage \w+ of layer \d, block \d, warp \d waited for (flag|vector) \d+ of "
    ):
        prefill.check()
    assert not any(prefill._state.tolist())
