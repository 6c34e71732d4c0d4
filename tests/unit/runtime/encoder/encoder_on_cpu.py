"""Runs the transformer kernel's source on the CPU, in the machine of `emulated/`; the same code as on a GPU computes
its arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

from tests.support.runtime.kernel_on_cpu import EMULATED, HostArguments, Schedule, link_kernel
from tests.support.runtime.planted import Patch
from tileprof.runtime.encoder import encoder_launch
from tileprof.runtime.encoder.encoder_build import KERNEL
from tileprof.runtime.encoder.memory import Memory
from tileprof.runtime.encoder.plan import Plan
from tileprof.runtime.encoder.source import Options, header


def compiled(
    plan: Plan,
    folder: Path,
    patch: Patch | None = None,
    timeout_ns: int = 2_000_000_000,
    stamps: bool = False,
    wiping_warp: bool = False,
) -> Path:
    """Build the kernel for a plan as a library, with a machine of its own, in a new folder beside machine.o."""
    texts = KERNEL.texts()
    texts["stages.h"] = header(plan, Options(timeout_ns, stamps=stamps, wiping_warp=wiping_warp))
    texts |= {name: (EMULATED / name).read_text(encoding="utf-8") for name in ("ptx.cuh", "warp.cuh")}
    return link_kernel(folder, texts, patch, "transformer_entry.cpp")


@dataclass
class HostLauncher:
    """`Launcher` on the machine; runs follow each other on the same semaphores, as on a GPU."""

    plan: Plan
    library: Path
    memory: Memory | None = None
    drain_odds: int = 16
    """One of this many steps releases a delayed store, when the schedule releases none."""

    def __post_init__(self) -> None:
        run = ctypes.CDLL(str(self.library)).run_kernel
        run.restype = ctypes.c_char_p
        self.complaint: str | None = None
        self.seed = 0

        def start(_self: object, blocks: int, _threads: int, _stream: int, arguments: HostArguments, **_: bool) -> None:
            schedule = Schedule.of(self.seed, blocks, self.plan.cluster)
            schedule.drain_odds = schedule.drain_odds or self.drain_odds  # unordered stores arrive in the end
            message = run(
                ctypes.c_void_p(arguments.pointers[0]),
                blocks,
                self.plan.cluster,
                ctypes.byref(schedule),
                None,
                ctypes.c_uint64(0),
            )
            self.complaint = None if message is None else message.decode()

        self._start = start
        with self._patched():
            self.launcher = encoder_launch.Launcher(self.plan, torch.device("cpu"), memory=self.memory)

    def _patched(self) -> mock._patch:  # type: ignore[type-arg]
        function = type("Function", (), {"launch": self._start})()
        stream = type("Stream", (), {"cuda_stream": 0, "synchronize": lambda _self: None})()
        return mock.patch.multiple(
            encoder_launch,
            Arguments=HostArguments,
            KERNEL=mock.Mock(loaded=lambda *_: function),
            torch=_Torch(stream),
        )

    def run(self, inputs: Mapping[str, torch.Tensor], seed: int) -> list[torch.Tensor]:
        """Return the outputs of a run in the order of a seed; `said` is the fault that the machine detected, or
        None.
        """
        self.seed = seed
        with self._patched():
            outputs = self.launcher(inputs)
        if self.complaint is None and self.launcher.record[0]:
            self.complaint = f"a wait gave up: {self.launcher.record.tolist()}"
        return outputs


class _Cuda:
    def __init__(self, stream: object) -> None:
        self._stream = stream

    def device(self, _device: object) -> mock.MagicMock:
        return mock.MagicMock()

    def current_stream(self, _device: object = None) -> object:
        return self._stream

    def current_device(self) -> int:
        return 0

    def is_current_stream_capturing(self) -> bool:
        return False


class _Torch:
    """Stands for torch: its device is the CPU, and memory begins at multiples of 128 bytes."""

    def __init__(self, stream: object) -> None:
        self.cuda = _Cuda(stream)

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def empty(self, size: tuple[int, ...], dtype: torch.dtype, device: object) -> torch.Tensor:
        return aligned(torch.full(size, float("nan"), dtype=dtype))


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that begins at a multiple of 128 bytes."""
    size = tensor.element_size()
    flat = torch.empty(tensor.numel() + 128, dtype=tensor.dtype)
    at = -(flat.data_ptr() // size) % (128 // size)
    copy = flat[at : at + tensor.numel()].view(tensor.shape)
    return copy.copy_(tensor)
