"""Runs the decoder's source on the CPU, in the machine of `emulated/`; the same code as on a GPU computes its
arguments.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.support.runtime.kernel_on_cpu import EMULATED, Schedule, link_kernel
from tests.support.runtime.planted import Patch
from tileprof.runtime.decode import decoder_launch
from tileprof.runtime.decode.decoder_build import KERNEL
from tileprof.runtime.decode.shape import DecoderShape
from tileprof.runtime.persistent.driver import Arguments


def compiled(shape: DecoderShape, blocks: int, folder: Path, patch: Patch | None = None) -> Path:
    """Build the kernel for a shape as a library, in a new folder beside machine.o."""
    texts = KERNEL.texts()
    texts["config.h"] = shape.header(blocks)
    texts["ptx.cuh"] = (EMULATED / "ptx.cuh").read_text(encoding="utf-8")
    texts["decoder_ptx.cuh"] = (EMULATED / "decoder_ptx.cuh").read_text(encoding="utf-8")
    return link_kernel(folder, texts, patch, "decoder_entry.cpp")


class HostDecoder(decoder_launch.Decoder):
    """`Decoder` on the machine.

    Launches follow each other on the same memory, as on a GPU; `said` is the fault that the machine detected in the
    last one.
    """

    def __init__(self, shape: DecoderShape, blocks: int, library: Path) -> None:
        self.shape, self.blocks, self.device = shape, blocks, torch.device("cpu")
        self._allocate(profile=False)
        self._run = ctypes.CDLL(str(library)).run_kernel
        self._run.restype = ctypes.c_char_p
        self._function = self  # type: ignore[assignment]
        self.seed, self.complaint = 0, None

    def start(self, layers: list[dict[str, Any]], model: dict[str, Any], logits: torch.Tensor, seed: int) -> str | None:
        """Return the fault that the machine detects in a launch in the order of a seed, or None."""
        self.seed = seed
        function = type("Function", (), {"launch": lambda _self, *a, **k: self._enter(*a, **k)})()
        with (
            mock.patch.object(self, "_function", function),
            mock.patch.object(torch.cuda, "current_stream", return_value=mock.Mock(cuda_stream=0)),
        ):
            super().launch(layers, model, logits)
        if self.complaint is None and int(self._state[2]):
            self.complaint = f"a wait gave up: {self._state[8:14].tolist()}"
        return self.complaint

    def _enter(self, blocks: int, _threads: int, _stream: int, arguments: Arguments, **_: bool) -> None:
        schedule = Schedule.of(self.seed, blocks, 1)
        schedule.drain_odds = min(schedule.drain_odds or 4, 4)  # unordered words arrive in the end
        actual = self._run(
            ctypes.c_void_p(arguments.pointers[0]), blocks, 1, ctypes.byref(schedule), None, ctypes.c_uint64(0)
        )
        self.complaint = None if actual is None else actual.decode()
