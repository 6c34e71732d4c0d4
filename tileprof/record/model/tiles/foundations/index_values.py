"""Values that decide where a kernel reads and writes: indices and masks of real runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.record.model.tile_model import Call, Operand


def recorded_values(call: Call, operand: Operand) -> NDArray[Any] | None:
    """Return the operand's values as an array of its shape; None where the program runs on fake tensors."""
    tensor = call.value(operand)
    if tensor is None:
        return None
    narrow = tensor.is_floating_point() and tensor.element_size() == 2  # NumPy has no bfloat16
    return np.asarray((tensor.float() if narrow else tensor).detach().cpu().numpy())


def without_values(what: str) -> dict[str, Any]:
    """Return fields of a `Kernel` whose accesses are a superset because the indices have no values."""
    return {"coverage": "conservative", "note": f"indices without values: {what}"}


def positions(operand: Operand) -> I64:
    """Return ``[elements]``: the distance of each element from the first, in elements, in row-major order."""
    at = np.zeros((), np.int64)
    for size, stride in zip(operand.shape, operand.strides, strict=True):
        at = at[..., None] + np.arange(size, dtype=np.int64) * stride
    return at.ravel()


def wrapped(index: NDArray[Any], size: int) -> I64:
    """Return indices with negative ones counted from the end."""
    index = index.astype(np.int64)
    return np.where(index < 0, index + size, index)
