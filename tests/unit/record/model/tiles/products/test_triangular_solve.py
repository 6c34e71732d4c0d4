"""Triangular systems: what a block reads decides what it writes, for any number of systems and right sides."""

import numpy as np
import pytest
import torch

from tests.unit.record.model.tiles.oracle import (
    all_bytes,
    bytes_of,
    call_of,
    element_bytes,
    is_same,
    run_model,
    slot_of,
)
from tests.unit.record.model.tiles.reach import H200
from tileprof.trace.footprint import READ, WRITE


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize(("systems", "equations", "sides"), [((9,), 3, 11), ((2, 3), 4, 3), ((), 3, 17)])
def test_a_block_reads_the_systems_and_right_sides_that_it_solves(systems, equations, sides, left):
    matrices = torch.eye(equations).expand(*systems, equations, equations).contiguous()
    shape = (*systems, equations, sides) if left else (*systems, sides, equations)
    call = call_of("aten::linalg_solve_triangular", matrices, torch.zeros(shape), upper=False, left=left)
    copy, *_, solve = run_model(call, H200)
    (out,) = call.outputs
    assert copy.name.startswith(("elementwise", "memcpy"))
    assert set().union(
        *(bytes_of(copy.footprint, t, slot_of(copy, out), WRITE) for t in range(copy.footprint.tiles))
    ) == (all_bytes(out))
    slots = [slot_of(solve, o) for o in (call["self"], out)]
    writers = {}
    for tile in range(solve.footprint.tiles):
        written = bytes_of(solve.footprint, tile, slots[1], WRITE)
        assert written <= bytes_of(solve.footprint, tile, slots[1], READ), "solved in place"
        read = bytes_of(solve.footprint, tile, slots[0])
        for at in np.ndindex(*shape):
            if element_bytes(out, [at]) <= written:
                writers.setdefault(at, []).append(tile)
                own = [(*at[:-2], i, j) for i in range(equations) for j in range(equations)]
                assert element_bytes(call["self"], own) <= read
                side = [(*at[:-2], i, at[-1]) if left else (*at[:-1], i) for i in range(equations)]
                assert element_bytes(out, side) <= written, "an equation depends on those before it"
    assert sorted(writers) == sorted(np.ndindex(*shape))
    assert all(len(tiles) == 1 for tiles in writers.values())


def test_batches_are_solved_in_blocks_as_recorded():
    matrices, right = torch.zeros(128, 64, 64), torch.zeros(128, 64, 128)
    *_, solve = run_model(call_of("aten::linalg_solve_triangular", matrices, right, upper=False), H200)
    assert (solve.grid, solve.block, solve.coverage) == ((16, 1, 32), (64, 4, 1), "exact")
    assert solve.chain_ns == pytest.approx(30_000, rel=0.02)


def test_matrices_that_do_not_lie_together_are_copied():
    matrices = torch.zeros(3, 5, 8)[..., :5]
    right = torch.zeros(3, 5, 2)
    _, copy, *_, solve = run_model(call_of("aten::linalg_solve_triangular", matrices, right, upper=False), H200)
    assert copy.name == "elementwise<contiguous>"
    assert not any(is_same(o, call_of("aten::relu", matrices).tensors[0]) for o in solve.operands)


@pytest.mark.parametrize(("systems", "equations"), [(3, 70), (8, 64), (200, 65)])
def test_systems_whose_launches_are_not_known_are_conservative(systems, equations):
    matrices, right = torch.zeros(systems, equations, equations), torch.zeros(systems, equations, 2)
    call = call_of("aten::linalg_solve_triangular", matrices, right, upper=False)
    *_, solve = run_model(call, H200)
    assert (solve.grid, solve.coverage) == ((systems, 1, 1), "conservative")
    own = [(1, i, j) for i in range(equations) for j in range(equations)]
    assert bytes_of(solve.footprint, 1, slot_of(solve, call["self"])) == element_bytes(call["self"], own)
