"""The waits of one edge of a policy as sets of producer tiles over the tiles of a trace."""

from __future__ import annotations

import numpy as np

from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.analysis.dependencies.grouping import equal_lists
from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.policy.format.lowering import Waits


def wait_block(waits: Waits, producer: I64, consumer: I64) -> EdgeBlock | None:
    """Return what an edge of a policy waits for, as parent sets over trace tiles; None where it waits for nothing.

    ``producer`` and ``consumer`` give the policy's number of each trace tile. A wait below the full count is taken as a
    wait for all tiles that post: a prediction, not a guarantee.
    """
    group, representative = equal_lists(waits.indptr, (waits.semaphore,))
    sizes = np.diff(waits.indptr)[representative]
    owner, place = ragged(sizes)
    semaphore = waits.semaphore[waits.indptr[representative[owner]] + place]
    tiles = np.argsort(waits.of[producer], kind="stable")
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(waits.posts)])
    pick, member = ragged(waits.posts[semaphore])
    parent = tiles[starts[semaphore[pick]] + member]
    if len(parent) == 0:
        return None
    owner = owner[pick]
    order = np.lexsort((parent, owner))
    indptr = np.searchsorted(owner[order], np.arange(len(representative) + 1)).astype(np.int64)
    filled = np.diff(indptr) > 0
    renumber = np.where(filled, np.cumsum(filled) - 1, -1).astype(np.int32)
    set_of = renumber[group[consumer]]
    unknown = np.full(len(parent), np.nan, np.float32)
    begins = np.concatenate([indptr[:-1][filled], indptr[-1:]])
    return EdgeBlock(set_of, begins, parent[order].astype(np.int32), np.zeros(len(parent), np.int64), unknown, unknown)
