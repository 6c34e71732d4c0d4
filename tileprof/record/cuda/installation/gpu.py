"""Asks the driver about the GPUs here, through libcuda alone and without a context on any of them.

The driver itself honours CUDA_VISIBLE_DEVICES: what it shows is what a program sees, in that order. A slice of a GPU
(MIG) is a GPU to it, with a name such as "NVIDIA H200 MIG 1g.18gb", and with its own SMs and memory.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from dataclasses import dataclass, replace

from tileprof.devices import Device, get
from tileprof.errors import UserError

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_SMS, _L2_BYTES, _MPS = (
    16,
    38,
    133,
)  # .._MULTIPROCESSOR_COUNT, _L2_CACHE_SIZE, _MPS_ENABLED (which older drivers do not know)
_OLDEST_MAJOR = 7
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SLICE = " MIG "

_NO_DEVICE = 100
_WHY = {
    _NO_DEVICE: "it shows no GPU",
    802: "the system is not ready: on machines with NVSwitch the fabric manager has to run",
    803: "its library is of another version than its kernel module: reboot, or reload the module",
    804: "its library is newer than this GPU's driver allows",
    805: "the MPS daemon that CUDA_MPS_PIPE_DIRECTORY names does not answer: start it, or unset the variable",
    807: "the MPS server is not ready, perhaps because a client of it has just faulted: try again, or restart it",
    808: "the MPS server has as many clients as it takes",
    999: "for a reason it does not know: often its kernel module, or a permission of /dev/nvidia*",
}
"""Meanings of CUresult for a user who starts the driver."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its name, its architecture ("sm_90"), and the CUDA version of the driver ("13.0").

    ``sms``, ``memory_bytes`` and ``l2_bytes`` are what a program may use of it; 0 where the driver does not say.
    ``mps``: contexts on it are clients of an MPS server, and share it with those of other programs.
    """

    name: str
    architecture: str
    driver: str
    sms: int = 0
    memory_bytes: int = 0
    l2_bytes: int = 0
    mps: bool = False
    id: str = ""
    """The identifier in the form of nvidia-smi -L and CUDA_VISIBLE_DEVICES."""

    @property
    def sliced(self) -> bool:
        """True for a slice of a GPU (MIG)."""
        return _SLICE in self.name


def driver() -> ctypes.CDLL:
    """Return libcuda, initialised. Raises `UserError` when there is no driver or no GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UserError(
            f"Recording real kernels needs an NVIDIA driver, and libcuda.so.1 cannot be loaded ({error}). "
            "Without a GPU, record with `tileprof record --recorder model`."
        ) from None
    result = library.cuInit(0)
    if result != 0:
        why = _WHY.get(result, "`nvidia-smi` says more")
        raise UserError(
            f"The NVIDIA driver does not start (cuInit: error {result}): "
            f"{why}{_visible() if result == _NO_DEVICE else ''}. Without a GPU, record with `tileprof record "
            "--recorder model`."
        )
    return library


def gpus() -> list[Gpu]:
    """Return every GPU that the driver shows, in its order: the first one is what a program uses that does not
    choose.

    Raises `UserError` where it shows none.
    """
    library = driver()
    count, version = ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    library.cuDriverGetVersion(ctypes.byref(version))
    text = f"{version.value // 1000}.{version.value % 1000 // 10}"
    devices = [_gpu(library, ordinal, text) for ordinal in range(count.value)]
    if not devices:
        raise UserError(f"The NVIDIA driver shows no GPU{_visible()}. See `nvidia-smi`.")
    return devices


def _gpu(library: ctypes.CDLL, ordinal: int, version: str) -> Gpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name, number = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    library.cuDeviceGet(ctypes.byref(device), ordinal)
    library.cuDeviceGetName(name, len(name), device)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        return value.value if library.cuDeviceGetAttribute(ctypes.byref(value), which, device) == 0 else 0

    if library.cuDeviceTotalMem_v2(ctypes.byref(memory), device) != 0:
        memory.value = 0
    text = name.value.decode(errors="replace")
    has_uuid = library.cuDeviceGetUuid_v2(ctypes.byref(number), device) == 0
    kind = "MIG" if _SLICE in text else "GPU"
    return Gpu(
        text, f"sm_{attribute(_MAJOR)}{attribute(_MINOR)}", version, sms=attribute(_SMS), memory_bytes=memory.value,
        l2_bytes=attribute(_L2_BYTES), mps=attribute(_MPS) != 0,
        id=f"{kind}-{uuid.UUID(bytes=bytes(number))}" if has_uuid else "",
    )  # fmt: skip


def _visible() -> str:
    visible = os.environ.get(_VISIBLE)
    return "" if visible is None else f", and {_VISIBLE} is {visible!r}"


def described(devices: list[Gpu]) -> str:
    """Return the GPUs as a sentence: which one is checked and described, which others there are, and who chose them."""
    first, others = devices[0], devices[1:]
    text = f"{_one(first)}; driver for CUDA {first.driver}"
    if others:
        text += f"; the first of {len(devices)} ({', '.join(_one(g) for g in others)} as well: {_VISIBLE} chooses)"
    visible = os.environ.get(_VISIBLE)
    return text + ("" if visible is None else f"; {_VISIBLE}={visible}")


def _one(gpu: Gpu) -> str:
    sms = f", {gpu.sms} SMs" if gpu.sms else ""
    return f"{gpu.name} ({gpu.architecture}{sms}{', ' + gpu.id if gpu.id else ''})"


def shared(gpu: Gpu) -> str:
    """Return what it means for a recording that others use this GPU at the same time, or that it is a part of one; ""
    if neither.
    """
    sentences = []
    if gpu.mps:
        sentences.append(
            "contexts on this GPU are clients of an MPS server: kernels of other clients may run between and beside "
            "the recorded ones, which block times do not show, and a fault ends all clients. Stop it (echo quit | "
            "nvidia-cuda-mps-control) for times that mean something"
        )
    if gpu.sliced:
        sentences.append(
            f"{gpu.name} is a slice of a GPU (MIG): rates, cache and memory in the trace are its share; slices of the "
            "same GPU instance share bandwidth"
        )
    return "; ".join(sentences)


def device(gpu: Gpu) -> Device:
    """Return what tileprof knows of this GPU, with the SMs, and for a slice the memory and rates, that the driver says
    it has.

    A client of an MPS server with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE has fewer SMs, and its blocks run on these alone
    (25: on 32 of an H200's 132, driver 580).

    Raises `UserError` for a GPU that tileprof does not know.
    """
    whole = _device_of_name(gpu.name.partition(_SLICE)[0])
    if not gpu.sms or (gpu.sms == whole.sms and not gpu.sliced):
        return whole
    share = gpu.sms / whole.sms
    memory = min(1.0, gpu.memory_bytes / whole.dram_bytes) if gpu.sliced and gpu.memory_bytes else 1.0
    out = replace(
        whole,
        name=gpu.name.removeprefix("NVIDIA ") if gpu.sliced else whole.name,
        sms=gpu.sms,
        peak_flops={rate: value * share for rate, value in whole.peak_flops.items()},
        sustained={
            key: value * (share if key in whole.peak_flops else memory) for key, value in whole.sustained.items()
        },
        sources={**whole.sources, "sms": "the driver", "peak_flops": f"{gpu.sms} of {whole.sms} SMs of {whole.name}"},
    )
    if not gpu.sliced or not gpu.memory_bytes:
        return out
    return replace(
        out,
        l2_bytes=gpu.l2_bytes or max(1, round(whole.l2_bytes * memory)),
        dram_bytes=gpu.memory_bytes,
        dram_bytes_per_s=whole.dram_bytes_per_s * memory,
        sources={
            **out.sources, "dram_bytes": "the driver", "l2_bytes": "the driver",
            "dram_bytes_per_s": f"as large a share of {whole.name}'s as of its memory: assumed",
        },
    )  # fmt: skip


def _device_of_name(name: str) -> Device:
    try:
        return get(name)
    except UserError:
        for word in name.replace("NVIDIA", "").split():
            try:
                return get(word)
            except UserError:
                continue
        raise


def supported(gpu: Gpu) -> None:
    """Raise `UserError` for a GPU whose code Compute Sanitizer cannot patch."""
    if int(gpu.architecture.removeprefix("sm_")[:-1]) < _OLDEST_MAJOR or gpu.architecture in {"sm_70", "sm_72"}:
        raise UserError(
            f"{gpu.name} ({gpu.architecture}) is too old for Compute Sanitizer, which needs sm_75. "
            "Kernels whose source is at hand can be recorded with tileprof.record.source."
        )
