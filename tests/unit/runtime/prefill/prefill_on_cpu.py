"""Runs the prefill kernel's source on the CPU, in the machine of `emulated/`, with the arguments of its launches."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.support.runtime.kernel_on_cpu import EMULATED, HostArguments, Schedule, link_kernel, without_products
from tests.support.runtime.planted import Patch
from tileprof.runtime.persistent.model_kernel import LaunchOptions
from tileprof.runtime.prefill import prefill_launch
from tileprof.runtime.prefill.prefill_build import KERNEL
from tileprof.runtime.prefill.shape import PrefillShape


def compiled(
    shape: PrefillShape, blocks: int, folder: Path, patch: Patch | None = None, timeout_ns: int = 1_000_000_000
) -> Path:
    """Build the kernel for a shape as a library, in a new folder beside machine.o."""
    texts = KERNEL.texts()
    header = shape.header(blocks, LaunchOptions(timeout_ns=timeout_ns))
    texts["config.h"] = without_products(header)
    texts |= {name: (EMULATED / name).read_text(encoding="utf-8") for name in ("ptx.cuh", "warp.cuh")}
    return link_kernel(folder, texts, patch, "prefill_entry.cpp")


class HostPrefill(prefill_launch.Prefill):
    """`Prefill` on the machine.

    Launches follow each other on the same memory, as on a GPU; `said` is the fault that the machine detected in the
    last one.
    """

    def __init__(self, shape: PrefillShape, blocks: int, library: Path) -> None:
        self.shape, self.blocks, self.device = shape, blocks, torch.device("cpu")
        self.complaint: str | None = None
        self._run = ctypes.CDLL(str(library)).run_kernel
        self._run.restype = ctypes.c_char_p
        self._allocate(profile=False)
        self._kept = self._workspace
        flat = torch.zeros(self._kept.numel() + 32, dtype=torch.int32)
        at = -(flat.data_ptr() // 4) % 32
        self._workspace = flat[at : at + self._kept.numel()].copy_(self._kept)

    def start(self, layers: list[dict[str, Any]], model: dict[str, Any], logits: torch.Tensor, seed: int) -> str | None:
        """Return the fault that the machine detects in a launch in the order of a seed, or None."""
        poison = self._workspace[self._parts : self._flags].view(torch.float16)
        poison.fill_(float("nan"))

        def enter(_self: object, blocks: int, _threads: int, _stream: int, arguments: HostArguments, **_: bool) -> None:
            schedule = Schedule.of(seed, blocks, 1)
            schedule.drain_odds = min(schedule.drain_odds or 4, 4)  # unordered words arrive in the end
            flags = self._workspace[self._flags :]
            actual = self._run(
                ctypes.c_void_p(arguments.pointers[0]),
                blocks,
                1,
                ctypes.byref(schedule),
                ctypes.c_void_p(flags.data_ptr()),
                ctypes.c_uint64(4 * flags.numel()),
            )
            self.complaint = None if actual is None else actual.decode()

        self._function = type("Function", (), {"launch": enter})()
        with (
            mock.patch.object(prefill_launch, "Arguments", HostArguments),
            mock.patch.object(torch.cuda, "current_stream", return_value=mock.Mock(cuda_stream=0)),
        ):
            self.launch(layers, model, logits)
        if self.complaint is None and int(self._state[2]):
            self.complaint = f"a wait gave up: {self._state[8:14].tolist()}"
        return self.complaint
