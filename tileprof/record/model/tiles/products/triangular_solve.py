"""Systems of equations with triangular matrices: ``aten::linalg_solve_triangular``.

The right sides are copied into the result, which is solved in place. Batches go to cuBLAS with pointers to all
matrices, which two launches write; a block then solves 8 right sides of 4 systems (recorded on an H200, PyTorch 2.11:
128 systems of 64 equations with 128 right sides are 16 x 32 blocks of 64 x 4 threads). What cuBLAS launches for up to
8 systems of 64 equations and more, one after the other, and for more than 64 equations, is not known: one launch in
which every block may touch everything of its systems.

Source: ``triangular_solve_kernel`` of PyTorch 2.11.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, range_kernel
from tileprof.record.model.tiles.foundations.regions import expand, permute
from tileprof.record.model.tiles.foundations.sketch import (
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    is_contiguous,
    rate_of,
    scratch,
)

if TYPE_CHECKING:
    from tileprof.devices import Device

_SIDES, _SYSTEMS, _THREADS = 8, 4, (64, 4, 1)
"""Right sides and systems of a block."""
_MOST_EQUATIONS: Final = 64
"""Equations of the systems that one launch is known to solve."""
_LOOPED: Final = 8
"""Systems up to which larger ones are solved one after the other."""
_STEP_NS: Final = 470.0
"""An equation waits for the one before it: 30 us for 64 of them on an H200."""
_MATRICES, _POINTERS = 0, 1
"""Scratch slots of a copy of the matrices, and of pointers to matrices and to right sides."""


@models("aten::linalg_solve_triangular")
def solve_triangular(call: Call, _device: Device) -> list[Kernel]:
    """A copy of the right sides, pointers, and the solution of all systems."""
    out = _batched(call.outputs[0])
    if out.numel == 0:
        return []
    launched = elementwise("copy_", [call["B"]], [call.outputs[0]], flops_each=0)
    matrices = expand(call["self"], (*out.shape[:-2], *call["self"].shape[-2:]))
    if not _is_dense(call["self"]):
        copy = replace(scratch(_MATRICES, *matrices.shape, itemsize=matrices.itemsize), dtype=matrices.dtype)
        launched += elementwise("contiguous", [matrices], [copy], flops_each=0)
        matrices = copy
    batch_dims = tuple(range(len(out.shape) - 2))
    systems, equations = int(np.prod(out.shape[:-2])), matrices.shape[-1]
    side_dim = len(out.shape) - (1 if call["left"] else 2)
    fields: dict[str, Any] = {"flops": out.numel * equations, "rate": rate_of(out), "chain_ns": _STEP_NS * equations}
    if equations > _MOST_EQUATIONS or (systems <= _LOOPED and equations >= _MOST_EQUATIONS):
        at_once = Sketch(systems)
        own = Span(batch_dims, np.arange(systems), np.arange(systems) + 1)
        for operand, mode in ((matrices, READ), (out, READ), (out, WRITE)):
            at_once.span(operand, mode, np.arange(systems), own)
        note = "how cuBLAS divides large systems is not known"
        return [
            *launched,
            at_once.kernel("solve_triangular", threads=256, coverage="conservative", note=note, **fields),
        ]
    pointers = [scratch(_POINTERS + n, systems, itemsize=8) for n in range(2)]
    launched += [range_kernel("arange", one) for one in pointers]
    sides = out.shape[side_dim]
    sketch = Sketch(blocks(sides, _SIDES), 1, blocks(systems, _SYSTEMS))
    tile = np.arange(sketch.tiles)
    first_side, first = tile % sketch.grid[0] * _SIDES, tile // sketch.grid[0] * _SYSTEMS
    own = Span(batch_dims, first, np.minimum(first + _SYSTEMS, systems))
    own_sides = Span((side_dim,), first_side, np.minimum(first_side + _SIDES, sides))
    for one in pointers:
        sketch.span(one, READ, tile, Span((0,), own.lo, own.hi))
    sketch.span(matrices, READ, tile, own)
    for mode in (READ, WRITE):
        sketch.span(out, mode, tile, own, own_sides)
    return [*launched, sketch.kernel("solve_triangular_batched", threads=_THREADS, **fields)]


def _batched(operand: Operand) -> Operand:
    """Return matrices with a batch dimension."""
    if len(operand.shape) > 2:
        return operand
    return replace(operand, shape=(1, *operand.shape), strides=(0, *operand.strides))


def _is_dense(matrices: Operand) -> bool:
    """Return whether matrices lie by rows or by columns, one behind the other."""
    dims = (*range(len(matrices.shape) - 2), len(matrices.shape) - 1, len(matrices.shape) - 2)
    return is_contiguous(matrices) or is_contiguous(permute(matrices, dims))
