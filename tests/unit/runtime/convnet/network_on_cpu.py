"""Runs the kernel of convolutional networks on the CPU, in the machine of `emulated/`; see `kernel_on_cpu`."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import torch

from tests.support.runtime.kernel_on_cpu import (
    EMULATED,
    HostArguments,
    Schedule,
    _aligned,
    link_kernel,
    without_products,
)
from tests.support.runtime.planted import Patch
from tileprof.runtime.convnet.network import Convolution, Network
from tileprof.runtime.convnet.network_build import KERNEL, Options, header
from tileprof.runtime.convnet.network_launch import (
    ARGUMENT_WORDS,
    flag_words,
    layer_results,
    plan_tables,
    stage_table,
    sum_bytes,
)
from tileprof.runtime.convnet.plan import Plan
from tileprof.runtime.convnet.weights import Weights, laid_out
from tileprof.runtime.sync.tables import FLAG_BYTES

_NAMED = re.compile(r"\b([A-Z]+_FULL|[A-Z]+_FREE|STORED|POSTED) = ")


def compiled(folder: Path, options: Options | None = None, patch: Patch | None = None) -> Path:
    """Build the kernel, which runs any plan, as a library in a new folder next to machine.o."""
    texts = KERNEL.texts()
    texts["stages.h"] = without_products(header(options or Options()))
    texts["ptx.cuh"] = (EMULATED / "ptx.cuh").read_text(encoding="utf-8")
    texts["names.h"] = "".join(f"NAME({name})\n" for name in _NAMED.findall(texts["common.cuh"]))
    return link_kernel(folder, texts, patch, "entry.cpp")


class HostNetwork:
    """A network with its tensors in memory. Runs follow each other on the same semaphores, as on a GPU."""

    def __init__(self, plan: Plan, library: Path, x: Any, parameters: list[Any]) -> None:
        self.plan, network = plan, plan.network
        loaded_library = ctypes.CDLL(str(library))
        self._run = loaded_library.run_kernel
        self._run.restype = ctypes.c_char_p
        dtype = getattr(torch, network.dtype)
        self.x = x
        self._memory = _room((plan.memory_bytes // dtype.itemsize,), dtype)
        result = _room(network.layers[-1].shape, dtype)
        self.results = [*layer_results(plan, self._memory.view(torch.uint8)), result]
        weights = [
            _in_memory(laid_out(network, layer, tiling, parameters)) if isinstance(layer, Convolution) else None
            for layer, tiling in zip(network.layers, plan.tilings, strict=True)
        ]
        self._weights = weights
        self._sums = _room((sum_bytes(plan) // 2,), torch.float16)
        self._stages = _kept(stage_table(plan, self.results, weights, self._sums, HostArguments))
        self._tables = [_aligned(table.numpy()) for table in plan_tables(plan)]
        flags = torch.zeros(flag_words(plan) + 32, dtype=torch.int32)
        self.flags = flags[-(flags.data_ptr() // 4) % 32 :][: flag_words(plan)]
        self._shared = [
            torch.zeros(1, dtype=torch.int32),
            self.flags,
            *(torch.zeros(n, dtype=torch.int32) for n in (2, 8)),
        ]

    def run(self, seed: int) -> str | None:
        """Poison the results of all layers, and run. Return None or the fault."""
        for poisoned in (self._memory, self.results[-1], self._sums):
            poisoned.fill_(float("nan"))
        arguments = HostArguments(ARGUMENT_WORDS)
        pointers = (self._stages, *self._tables, self.x, self.results[-1], *self._shared)
        arguments.words[:] = [*(tensor.data_ptr() for tensor in pointers), 0]
        schedule = Schedule.of(seed, self.plan.blocks, 1)
        message = self._run(
            ctypes.c_void_p(arguments.pointers[0]), self.plan.blocks, 1, ctypes.byref(schedule),
            # where data that TMA reads is posted
            ctypes.c_void_p(self.flags.data_ptr()), ctypes.c_uint64(self.plan.counters[0] * FLAG_BYTES),
        )  # fmt: skip
        if message is None and int(self._shared[3][0]):
            return f"a wait gave up: {self._shared[3].tolist()}"
        return None if message is None else message.decode()


def _room(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """Return memory that begins at a multiple of 128 bytes."""
    elements = 1
    for side in shape:
        elements *= side
    flat = torch.zeros(elements + 128, dtype=dtype)
    at = -(flat.data_ptr() // dtype.itemsize) % (128 // dtype.itemsize)
    return flat[at : at + elements].view(shape)


def _in_memory(weights: Weights) -> Weights:
    return Weights(_kept(weights.weights), _kept(weights.ends))


def _kept(tensor: Any) -> Any:
    """Return a copy that begins at a multiple of 128 bytes."""
    return _room(tuple(tensor.shape), tensor.dtype).copy_(tensor)


__all__ = ["HostNetwork", "Network", "compiled"]
