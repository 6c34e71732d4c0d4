"""Runs the kernel of a layer of experts on the CPU, from its own source, in the machine of `emulated/`; `layer.py`
computes its arguments.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.support.runtime.kernel_on_cpu import EMULATED, HostArguments, Schedule, link_kernel, without_products
from tests.support.runtime.planted import Patch
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.copilot.copilot import Copilot
from tileprof.runtime.experts import layer
from tileprof.runtime.experts.experts_build import KERNEL, PILOT, compiled_pilot
from tileprof.runtime.experts.shape import Dealing, ExpertsShape


def compiled(shape: ExpertsShape, blocks: int, dealing: Dealing, folder: Path, patch: Patch | None = None) -> Path:
    """Build the kernel for a shape as a library, in a new folder beside machine.o."""
    texts = KERNEL.texts()
    header = shape.header(blocks, dealing, delay_ns=0, timeout_ns=1_000_000_000)
    texts["config.h"] = without_products(header)
    texts |= {name: (EMULATED / name).read_text(encoding="utf-8") for name in ("ptx.cuh", "warp.cuh")}
    return link_kernel(folder, texts, patch, "experts_entry.cpp")


class HostExperts(layer.Experts):
    """`Experts` on the machine.

    Calls follow each other on the same memory, as on a GPU; ``complaint`` is the fault that the machine detected in the
    last one.
    """

    def __init__(
        self, weights: tuple[Any, Any, Any], *, tokens: int, top: int, schedule: str, blocks: int, library: Path,
        choices: Choices | None = None, pilot_patch: Patch | None = None,
    ) -> None:  # fmt: skip
        self._host_blocks, self._pilot_patch, self.complaint = blocks, pilot_patch, None
        self._library = ctypes.CDLL(str(library))
        self._library.run_kernel.restype = ctypes.c_char_p
        self.run_seed = 0
        super().__init__(*weights, tokens=tokens, top=top, schedule=schedule, choices=choices)
        if self._pilot is not None:
            self._beside()

    def _block_count(self) -> int:
        return self._host_blocks

    def _loaded(self, *_: int) -> Any:
        return mock.Mock(launch=self._enter)

    def _stream(self) -> int:
        return 0

    def _pilot_of(self, choices: Choices) -> Copilot:
        text = PILOT.read_text(encoding="utf-8")
        library = compiled_pilot(
            self.shape, self.blocks, choices, self._pilot_patch("pilot.cpp", text) if self._pilot_patch else text
        )
        return Copilot(self.shape.link_words(self.blocks), library, pinned=False, threaded=False)

    def _beside(self) -> None:
        step, pilot = self._pilot.stepping
        self._library.run_beside(ctypes.cast(step, ctypes.c_void_p), ctypes.c_void_p(pilot))

    def _zeros(self, count: int, dtype: Any = torch.int32) -> Any:
        flat = torch.zeros(count + 64, dtype=dtype)
        at = -(flat.data_ptr() // flat.element_size()) % 64
        return flat[at : at + count]

    def _enter(self, blocks: int, _threads: int, _stream: int, arguments: HostArguments, **_: bool) -> None:
        if self.complaint is not None:
            return
        schedule = Schedule.of(self.run_seed, blocks, 1)
        tell_bytes = 4 * (2 * self.shape.tiles + 64)  # counters up to those for memory that TMA reads
        status = self._library.run_kernel(
            ctypes.c_void_p(arguments.pointers[0]), blocks, 1, ctypes.byref(schedule),
            ctypes.c_void_p(self._counts.data_ptr()), ctypes.c_uint64(tell_bytes),
        )  # fmt: skip
        self.complaint = None if status is None else status.decode()

    def run(self, x: Any, seed: int) -> str | None:
        """Poison the results of all tasks, and run in the order of a seed.

        Return the fault that the machine detected, or the wait that timed out.
        """
        self.run_seed, self.complaint = seed, None
        self.poison()
        with mock.patch.object(layer, "Arguments", HostArguments):
            self(x)
        if self.complaint is None and int(self._record[0]):
            self.complaint = f"a wait gave up: {self._record.tolist()}"
        if self.complaint is not None:
            self.begin_anew()
            if self._pilot is not None:
                self._beside()
        return self.complaint
