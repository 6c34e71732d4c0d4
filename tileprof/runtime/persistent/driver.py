"""The part of the CUDA driver that the persistent kernel uses and PyTorch does not offer: modules, tensor maps,
clusters. libcuda is looked up at first use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from tileprof.errors import UserError

_SHARED_BYTES: Final = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_COOPERATIVE: Final = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
_CLUSTER_DIMENSION: Final = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_PROGRAMMATIC: Final = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_DTYPES: Final = {"float16": 6, "bfloat16": 9}  # CUtensorMapDataType
_SWIZZLES: Final = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle by the bytes that are swizzled."""
_PROMOTE_256: Final = 3

MAP_WORDS: Final = 16
"""64-bit words of a tensor map."""


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UserError(
            f"the persistent kernel needs an NVIDIA driver, and libcuda.so.1 cannot be loaded ({error})"
        ) from None


def _call(name: str, *arguments: Any) -> None:
    """Raises `UserError` with the driver's name of what went wrong."""
    library = _library()
    try:
        function = getattr(library, name)
    except AttributeError:
        raise UserError(
            f"libcuda.so.1 has no {name}: the driver is too old for sm_90 features; CUDA 12 or newer has it"
        ) from None
    result = function(*arguments)
    if result != 0:
        error_name = ctypes.c_char_p()
        library.cuGetErrorName(result, ctypes.byref(error_name))
        raise UserError(f"{name}: {(error_name.value or b'unknown').decode()} (CUDA error {result})")


class Function:
    """A kernel of a cubin in the current context, allowed ``shared_bytes`` of dynamic shared memory."""

    def __init__(self, cubin: bytes, name: str, shared_bytes: int) -> None:
        self._module, self._handle = ctypes.c_void_p(), ctypes.c_void_p()
        self._cubin, self._shared_bytes = cubin, shared_bytes
        _call("cuModuleLoadData", ctypes.byref(self._module), cubin)
        _call("cuModuleGetFunction", ctypes.byref(self._handle), self._module, name.encode())
        _call("cuFuncSetAttribute", self._handle, _SHARED_BYTES, shared_bytes)

    def launch(
        self, blocks: int, threads: int, stream: int, arguments: Arguments, *, programmatic: bool, cooperative: bool
    ) -> None:
        """Launch once with one parameter, a struct, which is copied before the call returns.

        ``programmatic``: blocks may start before the kernel in front has ended, if it too allows that. ``cooperative``:
        none starts before there is room for all.
        """
        kinds = [kind for kind, enabled in ((_PROGRAMMATIC, programmatic), (_COOPERATIVE, cooperative)) if enabled]
        attributes = (_Attribute * 2)(*(_Attribute(kind, 0, (ctypes.c_uint * 16)(1)) for kind in kinds))
        sizes = (ctypes.c_uint * 7)(blocks, 1, 1, threads, 1, 1, self._shared_bytes)
        config = _Config(sizes, stream, ctypes.addressof(attributes), len(kinds))
        _call("cuLaunchKernelEx", ctypes.byref(config), self._handle, arguments.pointers, None)

    def clusters(self, blocks: int, threads: int) -> int:
        """Return clusters of ``blocks`` blocks that the device holds at a time."""
        attribute = _Attribute(_CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(blocks, 1, 1))
        config = _Config(
            (ctypes.c_uint * 7)(blocks, 1, 1, threads, 1, 1, self._shared_bytes), None, ctypes.addressof(attribute), 1
        )
        count = ctypes.c_int()
        _call("cuOccupancyMaxActiveClusters", ctypes.byref(count), self._handle, ctypes.byref(config))
        return count.value


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class Arguments:
    """A kernel's parameter of ``words`` 64-bit words, where 64 bytes divide, as tensor maps want."""

    def __init__(self, words: int) -> None:
        self._memory = ctypes.create_string_buffer(8 * words + 64)
        at = -(-ctypes.addressof(self._memory) // 64) * 64
        self.words = (ctypes.c_uint64 * words).from_address(at)
        self.pointers = (ctypes.c_void_p * 1)(at)

    def put_map(
        self,
        word: int,
        address: int,
        dtype: str,
        sizes: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        steps: Sequence[int],
        *,
        swizzle: int = 128,
    ) -> None:
        """A tensor map from ``word`` on: boxes of a tensor, rows of ``swizzle`` bytes swizzled (0: none), zeros beyond
        its edges.

        Dimensions innermost first, in elements; ``strides`` of all but the innermost, in bytes; ``steps``: every so
        many elements are taken.
        """
        rank = len(sizes)
        _call(
            "cuTensorMapEncodeTiled",
            ctypes.byref(self.words, 8 * word),
            _DTYPES[dtype],
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*sizes),
            (ctypes.c_uint64 * (rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*steps),
            0,
            _SWIZZLES[swizzle],
            _PROMOTE_256,
            0,
        )


def capture_id(stream: int) -> int:
    """Return the number of the capture that a stream is in; 0 if it is in none."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    _call(
        "cuStreamGetCaptureInfo_v2",
        ctypes.c_void_p(stream),
        ctypes.byref(status),
        ctypes.byref(number),
        None,
        None,
        None,
    )
    return number.value if status.value == 1 else 0  # CU_STREAM_CAPTURE_STATUS_ACTIVE


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Let this thread wait for work outside of a capture while one is under way."""
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))  # takes the mode before, and puts it back
