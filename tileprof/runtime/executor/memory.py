"""Memory as the executor sees it: which accesses must have happened before a tile may touch a byte.

Bytes that no box tells apart are one *cell*; only buffers that some stage writes have cells, since nothing else can
race. All accesses of one kind by one stage to one cell are a *slot*, which is complete when each of its tiles has run.
In stage order

* a read needs the atomic updates of the cell since its last write, or that write where there are none;
* an atomic update needs the last write and the reads since it; updates commute;
* a write needs the updates since the last write, or that write where there are none, and the reads since it.

A tile that reads and writes a cell is represented by its write. Memory of a stage that no tile has written yet is
poison: a tile that finds a slot it needs incomplete has read poison (RAW), or destroyed what another tile still needs
(WAR) or will overwrite again (WAW). Every violation is found when it happens, whatever the values are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.runtime.executor.cells import Cells
from tileprof.runtime.executor.touches import ATOMIC, READ, WRITE, Touches

_NONE: Final = -1
_HAZARD: Final = {
    (READ, WRITE): "RAW",
    (WRITE, WRITE): "WAW",
    (ATOMIC, WRITE): "RAW",
    (WRITE, READ): "WAR",
    (ATOMIC, READ): "WAR",
}


@dataclass(frozen=True, slots=True)
class Race:
    """A tile touched bytes before a tile that it depends on had.

    ``buffer`` as the touches number them; ``begin`` and ``end`` are the first run of bytes in it, ``bytes`` counts all
    of them.
    """

    hazard: str
    producer: int
    producer_tile: int
    consumer: int
    consumer_tile: int
    buffer: int
    begin: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Slots and what each needs; immutable, so that many executions share it.

    Tile ``t`` of stage ``s`` is node ``base[s] + t``. ``slots[indptr[n]:indptr[n+1]]`` are the slots of node ``n``, and
    ``nodes[of[s]:of[s+1]]`` the nodes of slot ``s``. A slot ``s`` needs the chains that start at ``after[0, s]``, of
    writes or updates, and ``after[1, s]``, of reads: ``h``, ``chain[h]``, and so on to -1; ``chain[-1]`` is -1.
    """

    base: I64
    indptr: I64
    slots: I64
    of: I64
    nodes: I64
    kind: I64
    cell: I64
    after: I64
    chain: I64
    cells: Cells

    @classmethod
    def build(cls, tiles: Sequence[int], stages: Sequence[Touches]) -> Memory:
        """Return memory for stages in order, with ``tiles`` tiles each."""
        base = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(tiles, np.int64))])
        cells = Cells.of(stages)
        builder = _Builder(len(cells.low))
        for number, touches in enumerate(stages):
            builder.add(*cells.entries(touches), int(base[number]))
        return builder.build(base, cells)

    def start(self) -> I64:
        """Return how many tiles of each slot have yet to run, and 0 for the slot -1 that ends a chain."""
        return np.append(np.diff(self.of), 0)

    def touch(self, node: int, left: I64) -> NDArray[np.int64]:
        """Run a tile, and count it in ``left``. Return rows ``(slot, slot needed and incomplete)`` of what it broke,
        ``[n, 2]``.
        """
        slots = self.slots[self.indptr[node] : self.indptr[node + 1]]
        broken, heads = [], self.after[:, slots]
        while heads.max(initial=_NONE) != _NONE:
            incomplete = left[heads] > 0
            if incomplete.any():
                broken.append(np.stack([slots[np.nonzero(incomplete)[1]], heads[incomplete]], axis=1))
            heads = self.chain[heads]
        left[slots] -= 1
        return np.concatenate(broken) if broken else np.empty((0, 2), np.int64)

    def races(self, node: int, broken: NDArray[np.int64], has_run: NDArray[np.bool_]) -> list[Race]:
        """Return what `touch` found, one race per tile that had not run and per hazard."""
        heads = broken[:, 1]
        owner, place = ragged(np.diff(self.of)[heads])
        late = self.nodes[self.of[heads[owner]] + place]
        waiting = ~has_run[late] & (late != node)
        owner, late = owner[waiting], late[waiting]
        kinds = np.stack([self.kind[broken[owner, 0]], np.where(self.kind[heads[owner]] == READ, READ, WRITE)], axis=1)
        keys, which = np.unique(np.column_stack([late, kinds]), axis=0, return_inverse=True)
        order = np.argsort(which.reshape(-1), kind="stable")
        groups = np.split(self.cell[broken[owner[order], 0]], np.flatnonzero(np.diff(which.reshape(-1)[order])) + 1)
        consumer, races = self.place(node), []
        for (other, kind, before), cells in zip(keys.tolist(), groups, strict=False):
            buffer, begin, end, size = self._span(np.unique(cells))
            hazard = _HAZARD[kind, before]
            races.append(Race(hazard, *self.place(other), *consumer, buffer, begin, end, size))
        return races

    def _span(self, cells: I64) -> tuple[int, int, int, int]:
        """Return buffer and first run of bytes of the first of some cells, and the bytes of all."""
        first, cell_table = cells[0], self.cells
        low = int(cell_table.low[first])
        return int(cell_table.buffer[first]), low, low + int(cell_table.run[first]), int(cell_table.bytes[cells].sum())

    def place(self, node: int) -> tuple[int, int]:
        """Return stage and tile of a node."""
        stage = int(np.searchsorted(self.base, node, "right")) - 1
        return stage, node - int(self.base[stage])

    def needs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return every dependency as ``(producer nodes, consumer nodes)``, each pair once: what a sound policy
        guarantees.
        """
        producers, consumers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        every = np.arange(len(self.kind), dtype=np.int64)
        for head in self.after:
            slot, heads = every, head
            while len(slot):
                some = heads != _NONE
                slot, heads = slot[some], heads[some]
                pairs = np.unique(
                    np.concatenate(list(self._pairs(heads, slot)) or [np.empty((0, 2), np.int64)]), axis=0
                )
                producers.append(pairs[:, 0])
                consumers.append(pairs[:, 1])
                heads = self.chain[heads]
        pairs = np.unique(np.stack([np.concatenate(producers), np.concatenate(consumers)], axis=1), axis=0)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        return pairs[:, 0], pairs[:, 1]

    def _pairs(self, heads: I64, slot: I64) -> list[NDArray[np.int64]]:
        """Return nodes of one slot times nodes of the other, in pieces of bounded size."""
        sizes = np.diff(self.of)
        product = sizes[heads] * sizes[slot]
        pieces, begin = [], 0
        ends = np.cumsum(product)
        while begin < len(slot):
            stop = max(begin + 1, int(np.searchsorted(ends, (ends[begin - 1] if begin else 0) + 5_000_000, "right")))
            part = slice(begin, stop)
            owner, place = ragged(product[part])
            a, b = heads[part][owner], slot[part][owner]
            pair = np.stack(
                [self.nodes[self.of[a] + place // sizes[b]], self.nodes[self.of[b] + place % sizes[b]]], axis=1
            )
            pieces.append(np.unique(pair, axis=0))
            begin = stop
        return pieces


class _Builder:
    """Slots stage by stage; per cell the heads of the chains that the next stage needs."""

    def __init__(self, cells: int) -> None:
        self._write, self._update, self._read = (np.full(cells, _NONE, np.int64) for _ in range(3))
        self._parts: list[tuple[I64, ...]] = []
        self._members: list[tuple[I64, I64]] = []
        self._slots = 0

    def add(self, tile: I64, mode: I64, cell: I64, base: int) -> None:
        tiles = int(tile.max(initial=0)) + 1
        own = np.isin(cell * tiles + tile, (cell * tiles + tile)[mode == WRITE])
        live = np.where(self._update == _NONE, self._write, self._update)
        before_write, before_read = self._write.copy(), self._read.copy()
        for kind, some in ((WRITE, mode == WRITE), (ATOMIC, mode == ATOMIC), (READ, (mode == READ) & ~own)):
            cells, which = np.unique(cell[some], return_inverse=True)
            slot = self._slots + np.arange(len(cells), dtype=np.int64)
            self._slots += len(cells)
            self._members.append((slot[which.reshape(-1)], tile[some] + base))
            needs_write = before_write[cells] if kind == ATOMIC else live[cells]
            needs_read = np.full(len(cells), _NONE, np.int64) if kind == READ else before_read[cells]
            if kind == WRITE:
                chain = np.full(len(cells), _NONE, np.int64)
                self._write[cells], self._update[cells], self._read[cells] = slot, _NONE, _NONE
            else:
                heads = self._update if kind == ATOMIC else self._read
                chain = heads[cells]
                heads[cells] = slot
            self._parts.append((np.full(len(cells), kind, np.int64), cells, needs_write, needs_read, chain))

    def build(self, base: I64, cells: Cells) -> Memory:
        kind, cell, after_write, after_read, chain = (np.concatenate(c) for c in zip(*self._parts, strict=True))
        slot, node = (np.concatenate(c) for c in zip(*self._members, strict=True))
        by_slot, by_node = np.lexsort((node, slot)), np.lexsort((slot, node))
        of = np.searchsorted(slot[by_slot], np.arange(self._slots + 1))
        indptr = np.searchsorted(node[by_node], np.arange(int(base[-1]) + 1))
        return Memory(
            base, indptr, slot[by_node], of, node[by_slot], kind, cell, np.stack([after_write, after_read]),
            np.append(chain, _NONE), cells,
        )  # fmt: skip
