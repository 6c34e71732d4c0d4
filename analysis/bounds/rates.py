"""The peak rate at which the arithmetic of a launch could run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tileprof.devices import Device

if TYPE_CHECKING:
    from tileprof.trace import Recording

_UNITS = {
    "float64": ("fp64",),
    "float32": ("tf32", "fp32"),
    "float16": ("fp16",),
    "bfloat16": ("bf16",),
    "float8_e4m3fn": ("fp8",),
    "float8_e5m2": ("fp8",),
    "int8": ("int8",),
    "uint8": ("int8",),
}
"""Units that could take a type; a bound uses the fastest."""


def compute_ns(trace: Recording, device: Device, *, sustained: bool = False) -> NDArray[np.float64]:
    """Return ``[launches]`` FLOPs over the peak (or the sustained rate) of the fastest unit that takes any of the
    operands' types, ns.

    Where no operand has a type with units of its own, the device's fastest rate of all is taken. Workspaces have no
    type: the model recorder calls their bytes uint8, whatever a kernel keeps in them, and that is no product of int8.
    """
    rates = {unit: device.sustained_flops(unit) if sustained else peak for unit, peak in device.peak_flops.items()}
    fastest = max(rates.values())
    by_dtype = {dtype: max((rates.get(u, 0.0) for u in units), default=0.0) for dtype, units in _UNITS.items()}
    dtypes = trace.buffers["dtype"].astype(str).str.removeprefix("torch.")
    typed = dtypes.where(trace.buffers["kind"].astype(str) != "workspace")
    of_buffer = typed.map(by_dtype).fillna(0.0).to_numpy(np.float64)
    launches = trace.launches
    rate = np.zeros(len(launches))
    operands = trace.operands
    np.maximum.at(rate, operands["launch"].to_numpy(np.int64), of_buffer[operands["buffer"].to_numpy(np.int64)])
    seconds = launches["flops"].to_numpy(np.float64) / np.where(rate > 0, rate, fastest)
    return np.asarray(seconds * 1e9)
