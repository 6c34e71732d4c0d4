"""What the driver says about the GPUs here, through libcuda alone and without a context on any of them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tileprof.errors import UserError

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_OLDEST_MAJOR = 7


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its name, its architecture ("sm_90"), and the CUDA version of the driver ("13.0")."""

    name: str
    architecture: str
    driver: str


def driver() -> ctypes.CDLL:
    """libcuda, initialised. Raises `UserError` when there is no driver or no GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UserError(
            f"Recording real kernels needs an NVIDIA driver, and libcuda.so.1 cannot be loaded ({error}). "
            "Without a GPU, record with `tileprof record --recorder model`."
        ) from None
    result = library.cuInit(0)
    if result != 0:
        raise UserError(
            f"The NVIDIA driver does not start (cuInit: error {result}). `nvidia-smi` says more. "
            "Without a GPU, record with `tileprof record --recorder model`."
        )
    return library


def gpus() -> list[Gpu]:
    """Every GPU that the driver shows, in its order."""
    library = driver()
    count, version = ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    library.cuDriverGetVersion(ctypes.byref(version))
    text = f"{version.value // 1000}.{version.value % 1000 // 10}"
    found = []
    for ordinal in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(256)
        library.cuDeviceGet(ctypes.byref(device), ordinal)
        library.cuDeviceGetName(name, len(name), device)
        library.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        library.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        found.append(Gpu(name.value.decode(), f"sm_{major.value}{minor.value}", text))
    if not found:
        raise UserError("The NVIDIA driver shows no GPU. See `nvidia-smi` and CUDA_VISIBLE_DEVICES.")
    return found


def supported(gpu: Gpu) -> None:
    """Raise `UserError` for a GPU whose code Compute Sanitizer cannot patch."""
    if int(gpu.architecture.removeprefix("sm_")[:-1]) < _OLDEST_MAJOR or gpu.architecture in {"sm_70", "sm_72"}:
        raise UserError(
            f"{gpu.name} ({gpu.architecture}) is too old for Compute Sanitizer, which needs sm_75. "
            "Kernels whose source is at hand can be recorded with tileprof.record.source."
        )
