"""The plans of whole-model kernels as policies, and the tile graphs that these have to satisfy.

One stage per stage of a kernel, layer by layer; the tiles are the kernel's own. What a tile *needs* follows from the
elements that it reads and that earlier tiles write; what it
*awaits* from the words that the kernel polls (decoders), the elements that it loads until they are there (transformer
blocks), or the waits in its table (convolutional networks). `tileprof.policy.verification` then says whether the one
covers the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.arrays import I64
from tileprof.policy.format import Edge, Policy, Range, Semaphores, Stage, WaitTable
from tileprof.policy.format.expression import parse
from tileprof.policy.verification.relation_graph import graph_of_edges
from tileprof.policy.verification.verifier import Verification, verify
from tileprof.runtime.decode.handover import KINDS, Handover

if TYPE_CHECKING:
    from tileprof.runtime.convnet.plan import Plan as NetworkPlan
    from tileprof.runtime.encoder.memory import Memory
    from tileprof.runtime.encoder.plan import Plan as BlocksPlan
    from tileprof.runtime.encoder.plan import TaskBoxes

Pairs = dict[tuple[int, int], tuple[I64, I64]]
"""Needed tiles or awaited semaphores, and the tile that needs or awaits each, per producer and consumer stage; each
pair once.
"""

_STRIDE: Final = 1 << 32
"""Above every tile number: a tile of all stages is ``stage * _STRIDE + tile``."""


@dataclass(frozen=True)
class WholePlan:
    """A kernel's stages. ``posts[s]``: the semaphore that each tile of stage s posts; a wait is for all its posts."""

    names: tuple[str, ...]
    posts: tuple[I64, ...]
    needed: Pairs
    awaited: Pairs
    reused: frozenset[tuple[int, int]] = frozenset()
    """Pairs of stages of which the second uses memory of what the first reads or writes again."""

    @property
    def tiles(self) -> tuple[int, ...]:
        """The number of tiles of each stage."""
        return tuple(map(len, self.posts))

    def graph(self) -> Any:
        """Return what must be waited for, as the verifier takes it (a `TileGraph`)."""
        return graph_of_edges([(n, 1, 1) for n in self.tiles], dict(sorted(self.needed.items())))

    def policy(self) -> Policy:
        """Return what is waited for; an edge whose tiles all await the same semaphores in a row is a range."""
        producers = sorted({producer for producer, _ in self.awaited})
        number = {producer: n for n, producer in enumerate(producers)}
        arrays = tuple(_semaphores(producer, self.posts[producer]) for producer in producers)
        stages = tuple(Stage(name, (n, 1, 1)) for name, n in zip(self.names, self.tiles, strict=True))
        edges = [
            _edge(
                key,
                ("RAW", "WAR") if key in self.reused else ("RAW",),
                number[key[0]],
                semaphore,
                child,
                self.tiles[key[1]],
                np.bincount(self.posts[key[0]]),
            )
            for key, (semaphore, child) in sorted(self.awaited.items(), key=lambda item: item[0][::-1])
        ]
        return Policy(stages, arrays, tuple(edges))

    def verified(self) -> Verification:
        """Return the verdict of the verifier on the kernel's plan."""
        return verify(self.policy(), self.graph(), range(len(self.names)), excess=False)


def _semaphores(producer: int, of: I64) -> Semaphores:
    grid = (int(of.max()) + 1, 1, 1)
    if np.array_equal(of, np.arange(len(of))):
        return Semaphores(producer, grid, (parse("x", ("x", "y", "z")), *_ZEROS))
    return Semaphores(producer, grid, tuple(of.tolist()))


_ZEROS: Final = (parse("0", ("x", "y", "z")), parse("0", ("x", "y", "z")))


def _edge(
    key: tuple[int, int],
    hazards: tuple[str, ...],
    array: int,
    semaphore: I64,
    child: I64,
    tiles: int,
    posts: I64,
) -> Edge:
    order = np.lexsort((semaphore, child))
    semaphore, child = semaphore[order], child[order]
    indptr = np.searchsorted(child, np.arange(tiles + 1))
    first = semaphore[: indptr[1]]
    alike = len(first) * tiles == len(semaphore) and (semaphore.reshape(tiles, -1) == first).all()
    if alike and len(first) == first[-1] - first[0] + 1 and (posts[first] == posts[first[0]]).all():
        waits = Range.parse(f"{first[0]}..{first[-1]}"), Range.parse("0"), Range.parse("0")
        value = parse(str(posts[first[0]]), ("x", "y", "z", "u", "v", "w"))
        return Edge(*key, hazards, "table", array, waits, value)
    table = WaitTable(tuple(indptr.tolist()), tuple(semaphore.tolist()))
    return Edge(*key, hazards, "table", array, table, tuple(posts[semaphore].tolist()))


def _by_pair(rows: Iterable[tuple[int, int, I64]]) -> Pairs:
    """Return pairs from (consumer stage, consumer tile, tiles of all stages that it depends on, each once)."""
    of_consumer: dict[int, list[tuple[int, I64]]] = {}
    for stage, tile, owners in rows:
        of_consumer.setdefault(stage, []).append((tile, owners))
    pairs: Pairs = {}
    for consumer, each in of_consumer.items():
        child = np.repeat([tile for tile, _ in each], [len(owners) for _, owners in each])
        owners = np.concatenate([owners for _, owners in each])
        for producer in np.unique(owners // _STRIDE).tolist():
            of_producer = owners // _STRIDE == producer
            pairs[producer, consumer] = owners[of_producer] % _STRIDE, child[of_producer]
    return pairs


def of_decoder(handover: Handover, layers: int | None = None) -> WholePlan:
    """Yield the stages of a decoder's layers (all, unless fewer are asked for), without its head."""
    layers = handover.shape.layers if layers is None else layers
    names = [(layer, kind) for layer in range(layers) for kind in KINDS]
    writes = {
        (stage, tile): handover.writes(layer, kind, tile)
        for stage, (layer, kind) in enumerate(names)
        for tile in range(handover.tiles(kind))
    }
    owner = np.full(1 + max(int(words.max()) for words in writes.values()), -1, np.int64)
    for (stage, tile), words in writes.items():
        owner[words] = stage * _STRIDE + tile

    def pairs(words_of: str) -> Iterator[tuple[int, int, I64]]:
        for stage, (layer, kind) in enumerate(names):
            for tile in range(handover.tiles(kind)):
                yield stage, tile, _owners(owner[getattr(handover, words_of)(layer, kind, tile)])

    posts = tuple(np.arange(handover.tiles(kind)) for _, kind in names)
    return WholePlan(
        tuple(f"{kind} {layer}" for layer, kind in names), posts, _by_pair(pairs("reads")), _by_pair(pairs("polled"))
    )


def _owners(codes: I64) -> I64:
    """Return each once; neighbouring words mostly have the same owner."""
    flat = codes.ravel()
    return np.unique(flat[np.flatnonzero(np.diff(flat, prepend=-2))]) if len(flat) else flat


def of_blocks(plan: BlocksPlan, memory: Memory | None = None) -> WholePlan:
    """Return the stages of a stack of transformer blocks.

    A task loads each element until it is there: it awaits the tasks that write what it reads. Before it uses memory
    again, it awaits the generations that `memory.FENCE` says.
    """
    from tileprof.runtime.encoder.memory import FENCE, memory_of  # noqa: PLC0415 - decoders do without it
    from tileprof.runtime.encoder.plan import touches  # noqa: PLC0415

    memory = memory or memory_of(plan)
    counts = np.zeros(len(plan.stages), np.int64)
    owner = {name: np.full((rows, columns), -1, np.int64) for name, (rows, columns, _) in plan.sizes.items()}
    tasks = []
    for task in plan.tasks:
        task_touches, tile = touches(plan.stages[task.stage], task), int(counts[task.stage])
        counts[task.stage] += 1
        tasks.append((task.stage, tile, task_touches))
        for name, row, row_end, column, column_end in task_touches.writes:
            if name in owner:
                owner[name][row:row_end, column:column_end] = task.stage * _STRIDE + tile
    before = _Before(memory, owner, tasks)
    needs: list[tuple[int, int, I64]] = []
    wait_pairs: list[tuple[int, int, I64]] = []
    reused: set[tuple[int, int]] = set()
    generations = np.array(memory.generations)
    for stage, tile, task_touches in tasks:
        read = [_cut(owner, box) for box in task_touches.reads if box[0] in owner]
        again = np.unique(np.concatenate([_NO_TILES, *before.of_writes(task_touches), *before.of_reads(task_touches)]))
        fenced_pairs = again[generations[again // _STRIDE] <= memory.generations[stage] - FENCE]
        reused |= {(int(producer), stage) for producer in np.unique(again // _STRIDE)}
        for rows, more in ((needs, again), (wait_pairs, fenced_pairs)):
            if read or len(more):
                rows.append((stage, tile, np.unique(np.concatenate([*read, more]))))
    names = tuple(
        f"{n} {type(stage).__name__.lower()} {getattr(stage, 'name', '')}" for n, stage in enumerate(plan.stages)
    )
    posts = tuple(np.arange(n) for n in counts.tolist())
    return WholePlan(names, posts, _by_pair(needs), _by_pair(wait_pairs), frozenset(reused))


_NO_TILES: Final[I64] = np.empty(0, np.int64)


class _Before:
    """Tiles that must be done before others use memory again, in one run."""

    def __init__(self, memory: Memory, owner: Mapping[str, I64], tasks: Iterable[tuple[int, int, TaskBoxes]]) -> None:
        self._owner = owner
        self._ring = {name: (ring, number) for ring in memory.rings for number, name in enumerate(ring.names)}
        readers: dict[str, list[tuple[int, ...]]] = {}
        for stage, tile, task_touches in tasks:
            for name, *sides in task_touches.reads:
                if name in owner:
                    readers.setdefault(name, []).append((stage * _STRIDE + tile, *sides))
        self._readers = {name: np.array(rows, np.int64) for name, rows in readers.items()}

    def of_writes(self, task_touches: TaskBoxes) -> Iterator[I64]:
        """Waits before a tile writes and makes absent: for those who read and wrote there, and who made absent where it
        writes.
        """
        for name, *box in task_touches.writes:
            if name not in self._ring:
                continue
            ring, number = self._ring[name]
            wiped = number + ring.ahead - ring.slots
            if wiped >= 0:
                yield self._reading(ring.names[wiped], box)
                yield _cut(self._owner, (ring.names[wiped], *box))
            yield from self._wiping(name, box)

    def of_reads(self, task_touches: TaskBoxes) -> Iterator[I64]:
        """Waits before a tile reads: for those who made absent what lay there before."""
        for name, *box in task_touches.reads:
            if name in self._ring:
                yield from self._wiping(name, box)

    def _wiping(self, name: str, box: Sequence[int]) -> Iterator[I64]:
        ring, number = self._ring[name]
        if ring.ahead and number >= ring.slots:
            yield _cut(self._owner, (ring.names[number - ring.ahead], *box))
        elif not ring.ahead and number >= ring.slots:
            yield self._reading(ring.names[number - ring.slots], box)

    def _reading(self, name: str, box: Sequence[int]) -> I64:
        rows = self._readers.get(name)
        if rows is None:
            return _NO_TILES
        row, row_end, column, column_end = box
        tile, a, a_end, b, b_end = rows.T
        return np.asarray(tile[(a < row_end) & (row < a_end) & (b < column_end) & (column < b_end)], np.int64)


def _cut(owner: Mapping[str, I64], box: Sequence[Any]) -> I64:
    name, row, row_end, column, column_end = box
    return _owners(owner[name][row:row_end, column:column_end])


def of_network(plan: NetworkPlan) -> WholePlan:
    """Return the layers of a convolutional network.

    A tile needs all that write rows which it reads, and all that used rows which it overwrites; it awaits the bands of
    its table.
    """
    from tileprof.runtime.convnet.plan import Tile, overwritten, reads, written_rows  # noqa: PLC0415

    layers, tilings = plan.network.layers, plan.tilings
    counts = np.zeros(len(layers), np.int64)
    posts: list[list[int]] = [[] for _ in layers]
    writers: dict[tuple[int, int], list[int]] = {}  # per layer and row of all images
    readers: dict[tuple[int, int], list[int]] = {}
    tiles = []
    for layer, image, y, _, _, begin, end, post, *_ in plan.tasks.tolist():  # parts of a tile are all needed
        place, tile = (layer, image, y), int(counts[layer])
        counts[layer] += 1
        posts[layer].append(post - plan.bands[layer].first)
        tiles.append((place, tile, plan.waits[begin:end, 0].astype(np.int64)))
        for row in written_rows(plan, *place).numbered(layers[layer]):
            writers.setdefault((layer, row), []).append(layer * _STRIDE + tile)
        for read in reads(plan.network, tilings[layer], Tile(*place, 0, 0)):
            for row in read.numbered(layers[read.layer]):
                readers.setdefault((read.layer, row), []).append(layer * _STRIDE + tile)
    firsts = np.array([band.first for band in plan.bands])
    reused: set[tuple[int, int]] = set()

    @cache
    def needed(layer: int, image: int, y: int) -> I64:
        parts = [
            writers[read.layer, row]
            for read in reads(plan.network, tilings[layer], Tile(layer, image, y, 0, 0))
            for row in read.numbered(layers[read.layer])
        ]
        for other, row, exempt in overwritten(plan, layer, image, y):
            users = *writers[other, row], *readers.get((other, row), ())
            before = [tile for tile in users if tile // _STRIDE != exempt]
            reused.update((tile // _STRIDE, layer) for tile in before)
            parts.append(before)
        return np.unique(np.concatenate([np.empty(0, np.int64), *parts])).astype(np.int64)

    def awaited(semaphores: I64) -> I64:
        layer = np.searchsorted(firsts, semaphores, side="right") - 1
        return np.asarray(layer * _STRIDE + semaphores - firsts[layer], np.int64)

    return WholePlan(
        tuple(plan.network.name(n) for n in range(len(layers))),
        tuple(np.array(each, np.int64) for each in posts),
        _by_pair((place[0], number, needed(*place)) for place, number, _ in tiles),
        _by_pair((place[0], number, awaited(waits)) for place, number, waits in tiles),
        frozenset(reused),
    )
