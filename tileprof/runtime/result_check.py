"""Does a kernel compute what its operator says? Asked of every pipeline once, because compilers err.

Seen on an H200 (Triton 3.6, ptxas 12.8 and 13.0 alike): a 3 x 3 convolution whose PTX is right, and whose machine code
leaves out the zero padding of some rows once ``griddepcontrol.launch_dependents`` stands in front of it; without ptxas'
optimisations it is right. Nothing about such a kernel looks wrong but its numbers, so that the numbers of the first run
are compared with plain PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from tileprof.runtime.chain import Chain

TOLERANCE: Final = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 2e-3}
"""Tolerance, relative to an element plus the tensor's root mean square. Sums in another order, and operands of another
rounding, stay ten times below; a lost operand does not. Elements that are small beside the whole escape it: beside
-65504 for what is masked, beside a token a thousand times the others.
"""

_PIECE: Final = 2**24
"""Elements that are compared at a time."""


def first_wrong_stage(chain: Chain, computed: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    """Return a sentence about the first stage whose result differs by more than `TOLERANCE` from ``expected``, or None.

    Both hold tensors by name, shaped as the stages' operators write them; what a later stage overwrites is left out.
    """
    last = {operator.out.tensor: number for number, operator in enumerate(chain.operators)}
    for number, (name, operator) in enumerate(zip(chain.names, chain.operators, strict=True)):
        if last[operator.out.tensor] != number:
            continue
        off = _off(computed[operator.out.tensor], expected[operator.out.tensor], TOLERANCE[operator.out.dtype])
        if off:
            return (
                f"stage {number} ({name}) computes {off:,} of its {expected[operator.out.tensor].numel():,} elements "
                "wrong, by a kernel "
                "that this GPU's compiler made"
            )
    return None


def varies(tensor: Any) -> bool:
    """Return whether a tensor holds different finite numbers, or has but one element: from zeros or NaN alone nearly
    every kernel computes what PyTorch does.
    """
    if tensor.numel() == 1:
        return True
    finite, far = tensor.isfinite(), float("inf")
    return bool(tensor.where(finite, far).min() < tensor.where(finite, -far).max())


def _off(value: Any, expected: Any, share: float) -> int:
    """Return how many elements differ too much; what is not a number on one side only does.

    Piece by piece: what is compared may fill half of the memory.
    """
    pieces = [tensor.reshape(-1).split(_PIECE) for tensor in (value, expected)]
    squares = sum(_finite(w).double().square().sum() for w in pieces[1])
    size = (squares / expected.numel()).sqrt()
    return int(sum(_differing(s.float(), w.float(), share, size) for s, w in zip(*pieces, strict=True)))


def _differing(value: Any, expected: Any, share: float, size: Any) -> Any:
    limit = share * (_finite(expected).abs() + size)
    same = (value == expected) | (value.isnan() & expected.isnan()) | ((value - expected).abs() <= limit)
    return (~same).sum()


def _finite(tensor: Any) -> Any:
    """Return the tensor with zeros for NaN and infinities."""
    return torch.nan_to_num(tensor, 0.0, 0.0, 0.0)
