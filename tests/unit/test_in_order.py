"""Two lists are matched in order, with the largest worth."""

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.support.in_order import matched_in_order


def best_worth(worth):
    """Return the largest worth of all possible matches, by trying each."""
    rows, columns = worth.shape
    return max(
        int(worth[list(i), list(j)].sum())
        for n in range(min(rows, columns) + 1)
        for i in combinations(range(rows), n)
        for j in combinations(range(columns), n)
    )


@given(
    st.tuples(st.integers(0, 5), st.integers(0, 5)).flatmap(lambda s: arrays(np.int64, s, elements=st.integers(0, 4)))
)
def test_no_other_match_in_order_is_worth_more(worth) -> None:
    pairs = matched_in_order(worth)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    assert sum(int(worth[pair]) for pair in pairs) == best_worth(worth)
    assert all(worth[pair] for pair in pairs), "what cannot be matched is not"
