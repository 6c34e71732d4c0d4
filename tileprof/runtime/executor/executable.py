"""A policy as an executor runs it: what each tile posts, and which waits each post ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tileprof.arrays import I64
from tileprof.arrays.ragged import owners
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import lower


@dataclass(frozen=True, slots=True)
class Program:
    """Tile ``t`` of stage ``s`` is node ``base[s] + t``; semaphore ``m`` of array ``a`` is ``first[a] + m``.

    Node ``n`` posts ``posts[posts_of[n]:posts_of[n+1]]``. Waits are sorted by semaphore and value: wait ``w`` of
    semaphore ``m`` lies in ``waits_of[m]:waits_of[m+1]``, belongs to node ``waiter[w]`` and ends when the semaphore
    reaches ``value[w]``. ``dispatch`` lists the nodes in the order in which blocks take them.
    """

    policy: Policy
    base: I64
    first: I64
    posts_of: I64
    posts: I64
    waits_of: I64
    waiter: I64
    value: I64
    dispatch: I64

    @classmethod
    def of(cls, policy: Policy) -> Program:
        """Raises `PolicyError` where an expression of the policy leaves its grid."""
        base = _starts([stage.tiles for stage in policy.stages])
        first = _starts([array.count for array in policy.semaphores])
        lowered = lower(policy)
        waiter, semaphore, value = [], [], []
        posted: dict[int, I64] = {}
        for waits in lowered:
            array = waits.edge.semaphores
            posted[array] = waits.of
            tiles = np.arange(len(waits.indptr) - 1, dtype=np.int64)
            waiter.append(base[waits.edge.consumer] + np.repeat(tiles, np.diff(waits.indptr)))
            semaphore.append(first[array] + waits.semaphore)
            value.append(waits.value)
        nodes = [base[policy.semaphores[a].producer] + np.arange(len(of)) for a, of in posted.items()]
        names = [first[a] + of for a, of in posted.items()]
        posts_of, posts = _csr(_joined(nodes), _joined(names), int(base[-1]))
        columns = _joined(waiter), _joined(semaphore), _joined(value)
        order = np.lexsort((columns[2], columns[1]))
        waits_of = np.searchsorted(columns[1][order], np.arange(int(first[-1]) + 1))
        return cls(
            policy,
            base,
            first,
            posts_of,
            posts,
            waits_of,
            columns[0][order],
            columns[2][order],
            _dispatch(policy, base),
        )

    @property
    def nodes(self) -> int:
        return int(self.base[-1])

    def place(self, node: int) -> tuple[int, int]:
        """Return stage and tile of a node."""
        stage = int(np.searchsorted(self.base, node, "right")) - 1
        return stage, node - int(self.base[stage])

    def stage_of(self) -> I64:
        """Return the stage of every node."""
        return owners(self.base)


def _dispatch(policy: Policy, base: I64) -> I64:
    parts = [
        start + (np.arange(stage.tiles, dtype=np.int64) if stage.order is None else np.array(stage.order, np.int64))
        for stage, start in zip(policy.stages, base, strict=False)
    ]
    return np.concatenate(parts)


def _joined(parts: list[I64]) -> I64:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _starts(counts: list[int]) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))]).astype(np.int64)


def _csr(row: I64, value: I64, rows: int) -> tuple[I64, I64]:
    order = np.lexsort((value, row))
    return np.searchsorted(row[order], np.arange(rows + 1)), value[order]
