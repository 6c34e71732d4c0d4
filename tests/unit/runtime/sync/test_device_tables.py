"""The integer tables that kernels read agree with the policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.support.runtime.chains import CHAINS
from tests.support.runtime.random_policies import policies
from tileprof.errors import UserError
from tileprof.policy.format import from_dict
from tileprof.policy.format.lowering import lower
from tileprof.runtime.sync.tables import Tables


@settings(max_examples=100, deadline=None)
@given(policies())
def test_tables_hold_every_post_and_every_wait_that_is_not_already_over(policy) -> None:
    tables = Tables.of(policy)
    edge_waits = lower(policy)
    first, total = {}, 0
    for array in sorted({edge.semaphores for edge in policy.edges}):
        first[array], total = total, total + policy.semaphores[array].count
    assert tables.semaphores == total
    for number, stage in enumerate(tables.stages):
        for tile in range(policy.stages[number].tiles):
            expected = sorted(
                (first[w.edge.semaphores] + int(w.semaphore[k]), int(w.value[k]), int(w.posts[w.semaphore[k]]))
                for w in edge_waits
                if w.edge.consumer == number
                for k in range(w.indptr[tile], w.indptr[tile + 1])
                if w.value[k] > 0
            )
            assert sorted(map(tuple, stage.waits[tile][stage.waits[tile][:, 0] >= 0].tolist())) == expected
            posts = {first[w.edge.semaphores] + int(w.of[tile]) for w in edge_waits if w.edge.producer == number}
            assert set(stage.posts[tile].tolist()) == posts
        assert stage.width == 0 or stage.width & (stage.width - 1) == 0


def test_a_stage_without_waits_or_posts_has_empty_tables() -> None:
    tables = Tables.of(CHAINS["mlp"].policy())
    up, down = tables.stages
    assert up.width == 0
    assert down.posts.shape[1] == 0
    assert np.array_equal(np.unique(down.waits[:, :, 0]), np.arange(tables.semaphores))


def test_more_waits_than_a_block_polls_are_refused() -> None:
    policy = from_dict(
        {
            "tileprof_policy": 1,
            "stages": [{"name": "up", "grid": [600, 1, 1]}, {"name": "down", "grid": [1, 1, 1]}],
            "semaphores": [{"producer": 0, "grid": [600, 1, 1], "of": ["x", "0", "0"]}],
            "edges": [
                {
                    "producer": 0,
                    "consumer": 1,
                    "hazards": ["RAW"],
                    "kind": "interval",
                    "semaphores": 0,
                    "waits": ["0..599", "0", "0"],
                    "value": "1",
                }
            ],
        }
    )
    with pytest.raises(UserError, match="a tile of down awaits 600 semaphores; a block polls at most 512"):
        Tables.of(policy)
