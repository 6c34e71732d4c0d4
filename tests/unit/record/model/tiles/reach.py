"""What each tile reaches, checked against PyTorch itself: run the operator on positions instead of values.

`positions` replaces every element by its place in memory. Whatever only moves data can then be run by PyTorch on
positions, and tells for every output element which input element it came from; broadcasting and reductions follow
from masks over these tensors. Nothing here shares code with the models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import is_same, slot_of
from tileprof.devices import get
from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.trace.footprint import READ, WRITE

H200 = get("H200")


def positions(operand: Operand | torch.Tensor) -> torch.Tensor:
    """Return for each element its distance from the first one in memory, in elements."""
    strides = operand.strides if isinstance(operand, Operand) else operand.stride()
    extent = 1 + sum(s * (n - 1) for s, n in zip(strides, operand.shape, strict=True) if n)
    return torch.as_strided(torch.arange(max(extent, 1)), tuple(operand.shape), tuple(strides))


def elements(kernel: Kernel, operand: Operand, tile: int, mode: int = READ) -> list[int]:
    """Return the positions of the elements that ``tile`` touches, with repetition; only whole elements may be
    touched.
    """
    return [e for _, row_elements in _rows(kernel, operand, mode, tile) for e in row_elements]


def by_tile(kernel: Kernel, operand: Operand, mode: int = READ) -> list[list[int]]:
    """Return the `elements` of all tiles; none for an operand that the kernel does not have."""
    actual: list[list[int]] = [[] for _ in range(kernel.footprint.tiles)]
    for tile, row_elements in _rows(kernel, operand, mode):
        actual[tile] += row_elements
    return actual


def _rows(kernel: Kernel, operand: Operand, mode: int, tile: int | None = None) -> Iterator[tuple[int, range]]:
    if not _is_touched(kernel, operand):
        return
    b, size = kernel.footprint.boxes, operand.itemsize
    of_operand = (b.operand == slot_of(kernel, operand)) & (b.mode == mode)
    rows = np.flatnonzero(of_operand if tile is None else of_operand & (b.tile == tile))
    assert not (b.offset[rows] % size).any()
    assert not (b.length[rows] % size).any()
    columns = (b.tile, b.offset, b.length, b.count_0, b.stride_0, b.count_1, b.stride_1)
    for owner, offset, length, n0, s0, n1, s1 in zip(*(c[rows].tolist() for c in columns), strict=True):
        for j in range(n1):
            for i in range(n0):
                first = (offset + i * s0 + j * s1) // size
                yield owner, range(first, first + length // size)


def assert_writes(kernel: Kernel, out: Operand, mode: int = WRITE) -> None:
    """Check that all tiles together write every element of ``out`` once."""
    written = [e for tile in by_tile(kernel, out, mode) for e in tile]
    assert sorted(written) == sorted(positions(out).flatten().tolist())


def assert_reads(
    kernel: Kernel,
    out: Operand,
    source: Operand,
    needs: torch.Tensor | Callable[[torch.Tensor], torch.Tensor],
    mode: int = WRITE,
) -> None:
    """Check that each tile reads exactly the elements of ``source`` that the elements it writes to ``out`` need.

    ``needs`` has ``out``'s shape and holds positions in ``source`` (-1: nothing), or maps a mask of ``out`` to
    positions.
    """
    at = positions(out)
    owner = torch.full((int(at.max()) + 1,), -1)
    for tile, written in enumerate(by_tile(kernel, out, mode)):
        owner[written] = tile
    for tile, read in enumerate(by_tile(kernel, source)):
        mine = owner[at] == tile
        expected = needs(mine) if callable(needs) else needs[mine]
        assert set(read) == set(expected.flatten().tolist()) - {-1}, f"tile {tile}"


def _is_touched(kernel: Kernel, operand: Operand) -> bool:
    return any(is_same(o, operand) for o in kernel.operands)


@st.composite
def tensors(draw, shape, *, broadcast=False, dtype=torch.float32):
    """Draw a tensor of ``shape`` with its dimensions in any order in memory, perhaps with gaps, perhaps broadcast."""
    order = draw(st.permutations(range(len(shape))))
    gaps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
    is_repeated = [broadcast and draw(st.integers(0, 3)) == 0 for _ in shape]
    stored = [1 if is_repeated[d] else shape[d] * gaps[d] for d in order]
    base = torch.zeros(stored, dtype=dtype)
    back = [order.index(d) for d in range(len(shape))]
    view = base.permute(back)
    for d, gap in enumerate(gaps):
        view = view if is_repeated[d] or gap == 1 else view[(slice(None),) * d + (slice(None, None, gap),)]
    return view.expand(shape)


def shapes(*, max_elements: int, max_rank: int = 4, largest: int = 40):
    """Draw shapes of at most ``max_elements`` elements."""
    sizes = st.one_of(st.integers(1, 5), st.integers(1, largest))
    return st.lists(sizes, min_size=1, max_size=max_rank).map(tuple).filter(lambda s: math.prod(s) <= max_elements)


def tile_count(kernel: Kernel) -> int:
    """Return the tiles, which must be those of the grid."""
    assert kernel.footprint.tiles == int(np.prod(kernel.grid))
    return kernel.footprint.tiles
