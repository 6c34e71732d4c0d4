"""Which engine cuDNN chooses for a convolution, asked of cuDNN itself, without a GPU.

Where the user has the version of the table (``pip install 'nvidia-cudnn-cu13==9.19.*'``; proprietary, never part of
tileprof), its heuristics are asked for a device that is described in text, as NVIDIA documents for compilation without
a device (cuDNN 9.8 and later). PyTorch runs the first engine that the heuristics name and that its settings allow
(`aten/src/ATen/native/cudnn/Conv_v8.cpp`). An engine is a number with settings ("knobs"); which kernels it launches is
in the table. Heuristics do not name cuBLAS without a device, which cuDNN asks for windows of one tap.

Numbers below are those of ``cudnn_graph.h``.
"""

from __future__ import annotations

import ctypes
import json
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tileprof.record.model.tiles.convolutions.convolution_key import Dtype, Layout, Pass
from tileprof.record.model.tiles.convolutions.problem import operand_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONVOLUTION, _ENGINE, _CONFIGURATION, _HEURISTICS, _KNOB, _GRAPH, _TENSOR, _DEVICE = 1, 2, 3, 4, 7, 15, 17, 38
"""Kinds of descriptors."""
_BOOLEAN, _INT64, _FLOAT, _DESCRIPTOR, _CHAR = 2, 3, 4, 15, 24
_DATA_TYPE, _MODE, _HEURISTIC_MODE, _KNOB_TYPE, _NOTE = 1, 7, 8, 9, 11
"""Types of attributes."""
_TYPES: Final = {Dtype.TF32: 0, Dtype.FP32: 0, Dtype.FP16: 2, Dtype.BF16: 9}
_SUMS: Final = 0
"""Sums are in float32."""
_CROSS_CORRELATION: Final = 1
_OPERATIONS: Final = {
    Pass.FORWARD: (10, {"convolution": 702, "alpha": 700, "beta": 701, "x": 704, "w": 703, "y": 705}),
    Pass.INPUT_GRADIENT: (12, {"convolution": 708, "alpha": 706, "beta": 707, "x": 710, "w": 709, "y": 711}),
    Pass.WEIGHT_GRADIENT: (11, {"convolution": 714, "alpha": 712, "beta": 713, "x": 716, "w": 715, "y": 717}),
}
"""Descriptor and attributes of what is computed."""
_MODES: Final = (0, 2)
"""``CUDNN_HEUR_MODE_INSTANT``, and ``FALLBACK`` where that names none."""
_TENSOR_CORES, _LESS_PRECISE = 0, 1
"""Notes of engines that PyTorch leaves out: both for float32 without TF32, the second for float32 with it, too."""
_ALIGNMENT: Final = 32
"""The largest alignment in bytes that PyTorch reports."""
_KNOBS, _MOST = 16, 64
"""More knobs than an engine has, and as many engines as are asked for where the first may not do."""


def engine(key: tuple[int, ...], about: Mapping[str, Any]) -> str:
    """Return the engine of a call, e.g. ``62:2=5,13=1,18=0,25=1,27=2,28=2``; "" where it is not known.

    ``about`` is that of the table: ``cudnn`` its version, ``device`` how cuDNN describes the GPU.
    """
    library = _cudnn(int(about["cudnn"]) // 100, str(about["device"])) if "device" in about else None
    if library is None:
        return ""
    try:
        return library.engine(key)
    except _RefusedError:
        return ""


class _RefusedError(RuntimeError):
    """cuDNN does not take a description."""


class _Descriptor:
    """A descriptor, which frees itself, with those that it refers to."""

    def __init__(self, library: ctypes.CDLL, kind: int) -> None:
        self.library = library
        self.pointer = ctypes.c_void_p()
        self.referenced: list[_Descriptor] = []
        _check(library.cudnnBackendCreateDescriptor(kind, ctypes.byref(self.pointer)))

    def __del__(self) -> None:
        self.library.cudnnBackendDestroyDescriptor(self.pointer)

    def put(self, attribute: int, kind: int, values: Sequence[Any], element: Any) -> _Descriptor:
        array = (element * len(values))(*values)
        count = ctypes.c_int64(len(values))
        _check(self.library.cudnnBackendSetAttribute(self.pointer, attribute, kind, count, array))
        return self

    def integers(self, attribute: int, *values: int) -> _Descriptor:
        return self.put(attribute, _INT64, values, ctypes.c_int64)

    def number(self, attribute: int, kind: int, value: int) -> _Descriptor:
        return self.put(attribute, kind, (value,), ctypes.c_int)

    def refer(self, attribute: int, other: _Descriptor) -> _Descriptor:
        self.referenced.append(other)
        return self.put(attribute, _DESCRIPTOR, (other.pointer.value,), ctypes.c_void_p)

    def finish(self) -> _Descriptor:
        _check(self.library.cudnnBackendFinalize(self.pointer))
        return self

    def read(self, attribute: int, kind: int, array: Any) -> int:
        """Fill an array; return how many elements there are."""
        count = ctypes.c_int64()
        capacity = ctypes.c_int64(len(array))
        _check(
            self.library.cudnnBackendGetAttribute(self.pointer, attribute, kind, capacity, ctypes.byref(count), array)
        )
        return min(count.value, len(array))

    def several(self, attribute: int, kind: int, most: int) -> list[_Descriptor]:
        """Return descriptors of a kind, at most ``most``."""
        some = [_Descriptor(self.library, kind) for _ in range(most)]
        return some[: self.read(attribute, _DESCRIPTOR, (ctypes.c_void_p * most)(*[one.pointer.value for one in some]))]


def _check(status: int) -> None:
    if status:
        raise _RefusedError(str(status))


class _Cudnn:
    """cuDNN's heuristics for one device."""

    def __init__(self, library: ctypes.CDLL, device: str) -> None:
        self._library = library
        text = device.encode() + b"\0"
        self._device = self._new(_DEVICE).put(2702, _CHAR, list(text), ctypes.c_uint8).finish()

    def engine(self, key: tuple[int, ...]) -> str:
        """Return the first engine that PyTorch's settings allow; "" where there is none."""
        graph = self._graph(key)
        count = _MOST if key[1] == Dtype.FP32 else 1
        for mode in _MODES:
            heuristics = self._new(_HEURISTICS).refer(201, graph).number(200, _HEURISTIC_MODE, mode)
            heuristics.refer(204, self._device).finish()
            for configuration in heuristics.several(202, _CONFIGURATION, count):
                words, notes = self._read(configuration)
                if key[1] != Dtype.FP32 or not notes & {_TENSOR_CORES, _LESS_PRECISE}:
                    return words
        return ""

    def _read(self, configuration: _Descriptor) -> tuple[str, set[int]]:
        """Return number and knobs of an engine, and its notes."""
        (one,) = configuration.several(300, _ENGINE, 1)
        number, notes = (ctypes.c_int64 * 1)(), (ctypes.c_int * 16)()
        one.read(1301, _INT64, number)
        noted = set(notes[: one.read(1303, _NOTE, notes)])
        values = []
        for knob in configuration.several(302, _KNOB, _KNOBS):
            kind, value = (ctypes.c_int * 1)(), (ctypes.c_int64 * 1)()
            knob.read(600, _KNOB_TYPE, kind)
            knob.read(601, _INT64, value)
            values.append(f"{kind[0]}={value[0]}")
        return f"{number[0]}:{','.join(values)}", noted

    def _graph(self, key: tuple[int, ...]) -> _Descriptor:
        """Return the call as a graph of one operation; a transposed convolution is another one's gradient."""
        rank, turned = key[3], bool(key[4])
        first, second, out = operand_sizes(key)
        what = Pass(key[0])
        large, weight, small = {
            Pass.FORWARD: (first, second, out), Pass.INPUT_GRADIENT: (out, second, first),
            Pass.WEIGHT_GRADIENT: (second, out, first),
        }[what]  # fmt: skip
        if turned and what != Pass.WEIGHT_GRADIENT:
            what = Pass.INPUT_GRADIENT if what == Pass.FORWARD else Pass.FORWARD
            large, small = small, large
        stride, padding, dilation = (key[i + 3 - rank : i + 3] for i in (15, 18, 21))
        convolution = self._new(_CONVOLUTION).number(100, _DATA_TYPE, _SUMS).number(101, _MODE, _CROSS_CORRELATION)
        convolution.integers(106, rank).integers(103, *stride).integers(102, *dilation)
        convolution.integers(104, *padding).integers(105, *padding).finish()
        kind, attributes = _OPERATIONS[what]
        operation = self._new(kind).refer(attributes["convolution"], convolution)
        operation.put(attributes["alpha"], _FLOAT, (1.0,), ctypes.c_float)
        operation.put(attributes["beta"], _FLOAT, (0.0,), ctypes.c_float)
        for name, sizes in zip("xwy", (large, weight, small), strict=True):
            tensor = self._tensor((*sizes[:2], *sizes[5 - rank :]), ord(name), key)
            operation.refer(attributes[name], tensor)
        return self._new(_GRAPH).refer(801, operation.finish()).finish()

    def _tensor(self, sizes: tuple[int, ...], number: int, key: tuple[int, ...]) -> _Descriptor:
        dims = range(len(sizes))
        order = (0, *dims[2:], 1) if key[2] == Layout.CHANNELS_LAST else dims
        strides, run = [0] * len(sizes), 1
        for dim in reversed(order):
            strides[dim], run = run, run * sizes[dim]
        tensor = self._new(_TENSOR).number(901, _DATA_TYPE, _TYPES[Dtype(key[1])])
        tensor.integers(902, *sizes).integers(903, *strides).integers(906, number).integers(900, _ALIGNMENT)
        return tensor.put(907, _BOOLEAN, (False,), ctypes.c_bool).finish()

    def _new(self, kind: int) -> _Descriptor:
        return _Descriptor(self._library, kind)


@cache
def _cudnn(version: int, device: str) -> _Cudnn | None:
    """Return cuDNN's heuristics for a device; None where that version is not installed, or does not work."""
    library = _library()
    if library is None or library.cudnnGetVersion() // 100 != version:
        return None
    try:
        return _Cudnn(library, device)
    except _RefusedError as error:
        sys.stderr.write(f"tileprof: cuDNN does not take the device of its table ({error}); it is left out\n")
        return None


@cache
def _library() -> ctypes.CDLL | None:
    """Return cuDNN as ``nvidia-cudnn-cu*`` installs it. It ends the process where it does not find cuBLAS, so that is
    loaded first.
    """
    spec = find_spec("nvidia")
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        products, library = (
            sorted(folder.glob("*/lib/libcublasLt.so.*")),
            sorted(folder.glob("cudnn/lib/libcudnn.so.9")),
        )
        if products and library:
            try:
                ctypes.CDLL(str(products[-1]), mode=ctypes.RTLD_GLOBAL)
                cudnn = ctypes.CDLL(str(library[-1]))
            except OSError:
                continue
            cudnn.cudnnGetVersion.restype = ctypes.c_size_t
            return cudnn
    return None


def described(device: Mapping[str, Any]) -> str:
    """Return a device as cuDNN reads it."""
    return json.dumps(device, sort_keys=True)


__all__ = ["described", "engine"]
