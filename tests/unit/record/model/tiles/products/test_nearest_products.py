"""The nearest entries of the table of products, compared with the distance to each entry."""

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.record.model import tables
from tileprof.record.model.tiles.products import neighbours
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.problem import Problem


@pytest.mark.parametrize("count", [1, 50, 384, 10**7])
@pytest.mark.parametrize(
    "problem",
    [
        Problem(problems.MATRIX, problems.BF16, 0, 1, 1, 1111, 4160, 4160),
        Problem(problems.BATCHES_AND_MATRIX, problems.TF32, 0, 0, 96, 77, 63, 77),
        Problem(problems.BATCHES_AND_MATRIX, problems.BF16, 1, 0, 3, 1 << 20, 1, 3),
    ],
)
def test_a_lower_bound_leaves_the_nearest_entries_as_they_are(problem, count):
    table = tables.table("products", get("H200"))
    rows = np.flatnonzero((table.keys[:, :4] == problem.key[:4]).all(axis=1))
    without = rows[::7]
    rows = np.setdiff1d(rows, without)
    unit = {problems.BF16: 8, problems.TF32: 4}[problem.dtype]
    keys = np.array([problem.key], np.int64)
    apart = np.abs(neighbours._features(table.keys[rows]) - neighbours._features(keys)).sum(axis=1)
    other = neighbours.alignment(table.keys[rows, 5:], unit) != neighbours.alignment(keys[:, 5:], unit)
    apart += neighbours._OTHER_ALIGNMENT * other.sum(axis=1)
    entries, distances = neighbours.nearest(problem, table, count, without=without)
    assert len(entries) == min(count, len(rows))
    assert distances == pytest.approx(np.sort(apart)[: len(entries)], abs=1e-3)
    assert apart[np.searchsorted(rows, entries)] == pytest.approx(distances, abs=1e-3)
    assert not np.isin(entries, without).any()
