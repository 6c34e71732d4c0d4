"""A described GPU in the place of a real one, for as long as Inductor asks about it.

PyTorch's own questions about the device are answered from its description; what PyTorch remembers of the answers is
forgotten before and after. Nothing here touches a driver.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._prims_common import suggest_memory_format

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tileprof.devices import Device

_CUDA = "12.8"
"""The toolkit that PyTorch is said to be built with; Inductor asks for the version only to know what Triton can do."""

_REMEMBERING = (
    "torch.utils._triton", "torch._inductor.utils", "torch._inductor.runtime.hints",
    "torch._inductor.runtime.runtime_utils", "torch._inductor.choices", "torch._inductor.select_algorithm",
    "torch._inductor.fx_passes.pad_mm", "torch._inductor.codegen.triton_utils",
)  # fmt: skip
"""Modules whose cached functions remember answers about the device."""


def properties(device: Device) -> Any:
    """Return what ``torch.cuda.get_device_properties`` says of the device."""
    major, minor = capability(device)
    return SimpleNamespace(
        name=f"NVIDIA {device.name}", major=major, minor=minor, multi_processor_count=device.sms,
        total_memory=device.dram_bytes, regs_per_multiprocessor=device.registers_per_sm,
        max_threads_per_multi_processor=device.threads_per_sm, max_threads_per_block=device.threads_per_block,
        warp_size=device.warp_size, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=device.shared_bytes_per_block,
        shared_memory_per_multiprocessor=device.shared_bytes_per_sm, L2_cache_size=device.l2_bytes,
        gcnArchName="", is_integrated=0, is_multi_gpu_board=0, uuid="", clock_rate=0, memory_clock_rate=0,
        memory_bus_width=0,
    )  # fmt: skip


def capability(device: Device) -> tuple[int, int]:
    """Return ``(9, 0)`` of sm_90."""
    digits = "".join(c for c in device.architecture if c.isdigit())
    return int(digits[:-1]), int(digits[-1])


@contextmanager
def as_only_gpu(device: Device) -> Iterator[None]:
    """Let PyTorch see the device as its only GPU."""
    answers = properties(device)
    numbers = capability(device)

    def backend() -> Any:
        from triton.backends.compiler import GPUTarget  # noqa: PLC0415 (optional)
        from triton.compiler.compiler import make_backend  # noqa: PLC0415

        return make_backend(GPUTarget("cuda", numbers[0] * 10 + numbers[1], device.warp_size))

    replaced: dict[str, Any] = {
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.is_initialized": lambda: False,
        "torch.cuda._lazy_init": lambda: None,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.set_device": lambda _device=None: None,
        "torch.cuda.synchronize": lambda _device=None: None,
        "torch.cuda.get_device_properties": lambda _device=None: answers,
        "torch.cuda._get_device_properties": lambda _device=None: answers,
        "torch.cuda.get_device_capability": lambda _device=None: numbers,
        "torch.cuda.get_device_name": lambda _device=None: answers.name,
        "torch.cuda.get_rng_state": lambda _device=0: torch.zeros(16, dtype=torch.uint8),
        "torch.cuda.set_rng_state": lambda _state, _device=0: None,
        "torch.cuda._exchange_device": lambda _device: 0,
        "torch.cuda._maybe_exchange_device": lambda _device: 0,
        "torch.cuda.is_bf16_supported": lambda including_emulation=True: including_emulation or numbers >= (8, 0),
        "torch._C._cuda_getDevice": lambda: 0,
        "torch._C._cuda_getCurrentRawStream": lambda _device=0: 0,
        "torch.backends.cudnn.is_available": lambda: True,
        "torch.version.cuda": _CUDA,
        "torch.utils._triton.triton_backend": backend,
    }
    if sys.modules.get("torch._dynamo.device_interface") is not None:
        replaced["torch._dynamo.device_interface.get_cuda_stream"] = lambda _device=0: 0
    with ExitStack() as stack:
        _forget()
        stack.callback(_forget)
        for name, answer in replaced.items():
            stack.enter_context(mock.patch(name, answer, create=True))
        yield


@contextmanager
def convolution_layouts() -> Iterator[None]:
    """Let convolutions of fake tensors lie as cuDNN lays them: channels last if the input or the filter is."""

    def layout(input_: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.memory_format:
        suggested = [suggest_memory_format(tensor) for tensor in (input_, weight)]
        return next((one for one in suggested if one is not torch.contiguous_format), torch.contiguous_format)

    with mock.patch("torch._C._conv_determine_backend_memory_format", layout):
        yield


def _forget() -> None:
    """Clear what modules of the compiler remember of the device."""
    for name in _REMEMBERING:
        module = sys.modules.get(name)
        for value in list(vars(module).values()) if module is not None else ():
            owners = (value, *vars(value).values()) if isinstance(value, type) else (value,)
            for owner in owners:
                function = getattr(owner, "__func__", owner)
                clear = getattr(function, "cache_clear", None)
                if (
                    callable(clear)
                    and hasattr(function, "cache_info")
                    and str(getattr(function, "__module__", "")).startswith("torch")
                ):
                    clear()
