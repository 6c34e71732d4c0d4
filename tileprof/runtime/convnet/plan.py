"""Assigns tiles to blocks in an order, with the waits and posts of each tile.

Tiles of a layer that write the same rows of the same images post one semaphore, of which there is one per *band*: a row
of tiles. A tile waits until all tiles of the bands that it reads have posted, and, before it overwrites
what an earlier layer left in the same memory, all that used it (see `memory`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, product
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.runtime.convnet.bands import Bands, Read, Rows
from tileprof.runtime.convnet.memory import Memory, layer_bytes, replaces_residual, rows_in, spans
from tileprof.runtime.convnet.network import INPUT, Average, Convolution, Flat, Layer, Maximum, Network, windowed
from tileprof.runtime.convnet.tiling import (
    MOST_SLOT_BYTES,
    SLOT_BYTES,
    Tiling,
    k_blocks,
    load_bytes,
    microseconds,
    tiled,
    tiles,
)

I32 = NDArray[np.int32]

TASK_WORDS: Final = 12

_GAP_US: Final = 2.0
"""Microseconds from the last store of a layer to the first product of the next, for dealing out tiles."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile, or a part of it: its layer, its first pixel, its column of tiles, its part of k.

    ``place`` counts a layer's tiles.
    """

    layer: int
    image: int
    y: int
    x: int
    column: int
    part: int = 0
    place: int = 0


@dataclass(frozen=True)
class Plan:
    """The tables of a launch, as the kernel reads them, in order of blocks.

    ``tasks`` [n, `TASK_WORDS`]: layer, image, y, x, column, waits from, to, semaphore posted, part of k, semaphore of
    the tile's parts, place of the tile in its layer, 0. ``heads`` [blocks, 2]. ``waits`` [m, 2]: semaphore, posts.
    ``counters``: of each layer, the first of its tiles' semaphores of parts. ``offsets``: of each layer but the last,
    the byte of the launch's ``memory_bytes`` where its results begin.
    """

    network: Network
    tilings: tuple[Tiling, ...]
    bands: tuple[Bands, ...]
    heads: I32
    tasks: I32
    waits: I32
    counters: tuple[int, ...]
    offsets: tuple[int, ...]
    memory_bytes: int

    @property
    def semaphores(self) -> int:
        """Semaphores of all layers, and of tiles that are cut into parts."""
        layer, tiling = self.network.layers[-1], self.tilings[-1]
        return self.counters[-1] + (tiles(layer, tiling) if tiling.parts > 1 else 0)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of activations, which holds the largest load: one of two sizes, so that few kernels are
        compiled.
        """
        loads = zip(self.network.layers, self.tilings, strict=True)
        largest = max(load_bytes(self.network, layer, tiling) for layer, tiling in loads)
        return SLOT_BYTES if largest <= SLOT_BYTES else MOST_SLOT_BYTES

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return len(self.heads)


def reads(network: Network, tiling: Tiling, tile: Tile) -> Iterator[Read]:
    """Yield what a tile reads of other layers: the source, then the residual."""
    layer = network.layers[tile.layer]
    images, out_rows, _, _ = layer.shape
    last_image, last_row = min(images, tile.image + tiling.images), min(out_rows, tile.y + tiling.rows)
    if layer.source != INPUT:
        source = network.layers[layer.source]
        extents = source.shape
        match layer:
            case Convolution() if windowed(network, layer):
                low = tile.y * layer.pool * layer.stride
                high = low + layer.stride + 2 * k_blocks(network, layer)
                yield Read(layer.source, (tile.image, last_image), (low, min(extents[1], high)))
            case Convolution() | Maximum() if layer.reads == source.shape:
                size, pool = (layer.size, 1) if isinstance(layer, Maximum) else (layer.size[0], layer.pool)
                low = tile.y * pool * layer.stride - layer.padding
                high = (last_row * pool - 1) * layer.stride - layer.padding + size
                yield Read(layer.source, (tile.image, last_image), (max(0, low), min(extents[1], high)))
            case Average() | Flat():
                yield Read(layer.source, (tile.image, tile.image + 1), (0, extents[1]))
            case _:
                yield Read(layer.source, (0, extents[0]), (0, extents[1]))
    if isinstance(layer, Convolution) and layer.residual is not None:
        yield Read(layer.residual, (tile.image, last_image), (tile.y, last_row))


def tiles_of(layer: Layer, number: int, tiling: Tiling) -> Iterator[Tile]:
    """Yield a layer's tiles, those of a band behind each other, parts of a tile behind each other."""
    images, rows, columns, channels = layer.shape
    starts = product(
        range(0, images, tiling.images), range(0, rows, tiling.rows), range(0, columns, tiling.columns),
        range(ceil(channels / tiling.width)),
    )  # fmt: skip
    for place, start in enumerate(starts):
        yield from (Tile(number, *start, part, place) for part in range(tiling.parts))


def bands_of(layer: Layer, tiling: Tiling, first: int) -> Bands:
    """Return the semaphores of a layer, from number ``first`` on."""
    images, rows, columns, channels = layer.shape
    down = ceil(rows / tiling.rows)
    posts = ceil(columns / tiling.columns) * ceil(channels / tiling.width) * tiling.parts
    return Bands(first, tiling.images, tiling.rows, down, ceil(images / tiling.images) * down, posts)


def plan_network(
    network: Network, blocks: int, tilings: tuple[Tiling, ...] | None = None, *, reuse: bool = True
) -> Plan:
    """Return a network's plan for ``blocks`` blocks, tiled by the model unless ``tilings`` are given.

    Layers use memory again, unless ``reuse`` says that every layer has its own.

    Raises `UserError` where a layer does not fit the kernel.
    """
    if tilings is None:
        tilings = tuple(tiled(network, layer, blocks) for layer in network.layers)
    bands: list[Bands] = []
    for layer, tiling in zip(network.layers, tilings, strict=True):
        bands.append(bands_of(layer, tiling, bands[-1].first + bands[-1].count if bands else 0))
    memory = Memory(network, reuse=reuse)
    tasks_by_block: list[list[tuple[Tile, tuple[int, ...]]]] = [[] for _ in range(blocks)]
    free = [(0.0, block) for block in range(blocks)]
    ends: list[float] = []
    for number, (layer, tiling) in enumerate(zip(network.layers, tilings, strict=True)):
        residual = layer.residual if isinstance(layer, Convolution) else None
        sources = [source for source in (layer.source, residual) if source is not None and source != INPUT]
        ready = max((ends[source] + _GAP_US for source in sources), default=0.0)
        duration, end = microseconds(network, layer, tiling), ready
        awaited_by_row = {
            start: tuple(sorted(semaphores))
            for start, semaphores in memory.add(
                number, bands[number], list(_rows_of(network, number, tilings, bands))
            ).items()
        }
        for tile in tiles_of(layer, number, tiling):
            at, block = heapq.heappop(free)
            at = max(at, ready) + duration
            heapq.heappush(free, (at, block))
            end = max(end, at)
            tasks_by_block[block].append((tile, awaited_by_row[tile.image, tile.y]))
        ends.append(end)
    cut = [
        tiles(layer, tiling) if tiling.parts > 1 else 0 for layer, tiling in zip(network.layers, tilings, strict=True)
    ]
    counters = tuple(accumulate(cut[:-1], initial=bands[-1].first + bands[-1].count))
    tables = _tables(bands, counters, tasks_by_block)
    return Plan(network, tilings, tuple(bands), *tables, counters, tuple(memory.offsets), memory.size)


def _rows_of(network: Network, number: int, tilings: tuple[Tiling, ...], bands: list[Bands]) -> Iterator[Rows]:
    """Yield the rows of tiles of a layer: what all tiles of one read, and the semaphores of that."""
    layer, tiling = network.layers[number], tilings[number]
    images, rows, *_ = layer.shape
    for image, y in product(range(0, images, tiling.images), range(0, rows, tiling.rows)):
        theirs = tuple(reads(network, tiling, Tile(number, image, y, 0, 0)))
        semaphores = frozenset(
            bands[read.layer].of(one, row)
            for read in theirs
            for one in range(*read.images)
            for row in range(*read.rows)
        )
        yield Rows(image, min(images, image + tiling.images), y, min(rows, y + tiling.rows), theirs, semaphores)


def _tables(
    bands: list[Bands], counters: tuple[int, ...], tasks_by_block: list[list[tuple[Tile, tuple[int, ...]]]]
) -> tuple[I32, I32, I32]:
    posts = np.concatenate([np.full(band.count, band.posts) for band in bands])
    heads: list[tuple[int, int]] = []
    tasks: list[tuple[int, ...]] = []
    waits: list[tuple[int, int]] = []
    for own in tasks_by_block:
        heads.append((len(tasks), len(tasks) + len(own)))
        for tile, semaphores in own:
            post = bands[tile.layer].of(tile.image, tile.y)
            counter = counters[tile.layer] + tile.place
            tasks.append((
                tile.layer, tile.image, tile.y, tile.x, tile.column, len(waits), len(waits) + len(semaphores), post,
                tile.part, counter, tile.place, 0,
            ))  # fmt: skip
            waits.extend((semaphore, int(posts[semaphore])) for semaphore in semaphores)
    return (
        np.array(heads, np.int32),
        np.array(tasks, np.int32).reshape(-1, TASK_WORDS),
        np.array(waits or [(0, 0)], np.int32).reshape(-1, 2),
    )


def verify(plan: Plan) -> None:
    """Check a plan by what its tiles touch, element by element, without the bands it was made with.

    Raises `UserError` that names the tile and what is missing.

    Every element of every layer is written once, by all parts of its tile, which share a semaphore and memory of their
    own; every row that a tile reads was written by tiles all of which post semaphores that it awaits in full; every
    semaphore is posted as often as waits expect; each block's tasks are in order of layers and wait for earlier layers
    alone, so that no block waits for itself or in a circle; and what a tile overwrites is done with (`_verify_memory`).
    """
    layers = plan.network.layers
    post_counts = np.bincount(plan.tasks[:, 7], minlength=plan.semaphores)
    write_counts = [np.zeros(layer.shape, np.int8) for layer in layers]
    posters: list[dict[tuple[int, int], set[int]]] = [{} for _ in layers]
    _verify_parts(plan)
    for number, image, y, x, column, _, _, post, part, *_ in plan.tasks.tolist():
        tiling = plan.tilings[number]
        write_counts[number][
            image : image + tiling.images, y : y + tiling.rows, x : x + tiling.columns,
            column * tiling.width : (column + 1) * tiling.width,
        ] += part == 0  # fmt: skip
        for one in range(image, min(layers[number].shape[0], image + tiling.images)):
            for row in range(y, min(layers[number].shape[1], y + tiling.rows)):
                posters[number].setdefault((one, row), set()).add(post)
    for number, counts in enumerate(write_counts):
        if (counts != 1).any():
            raise UserError(
                f"{plan.network.name(number)}: an element is written {counts.min()} to {counts.max()} times"
            )
    for head, end in plan.heads.tolist():
        if (np.diff(plan.tasks[head:end, 0]) < 0).any():
            raise UserError("a block has tasks that are not in order of layers")
    for number, image, y, x, column, begin, end, *_ in plan.tasks.tolist():
        wait_values = dict(plan.waits[begin:end].tolist())
        if any(post_counts[semaphore] != value for semaphore, value in wait_values.items()):
            raise UserError(
                f"{plan.network.name(number)}: a tile waits for a count that a semaphore does not reach, or passes"
            )
        if any(semaphore >= plan.bands[number].first for semaphore in wait_values):
            raise UserError(f"{plan.network.name(number)}: a tile waits for its own layer, or a later one")
        for read in reads(plan.network, plan.tilings[number], Tile(number, image, y, x, column)):
            if read.layer >= number:
                raise UserError(f"{plan.network.name(number)} reads a layer that comes later")
            for one in range(*read.images):
                for row in range(*read.rows):
                    if not posters[read.layer][one, row] <= wait_values.keys():
                        raise UserError(
                            f"{plan.network.name(number)}: the tile at image {image}, row {y}, column {x} reads row "
                            f"{row} of "
                            f"{plan.network.name(read.layer)} and does not wait for all of it"
                        )
    _verify_memory(plan)


def _verify_memory(plan: Plan) -> None:
    """Raises `UserError` unless a tile that overwrites bytes of an earlier layer awaits, itself or by way of others,
    every tile that wrote or read the rows which they belong to. A layer may overwrite its own residual.
    """
    network, layers = plan.network, plan.network.layers
    starts = plan.offsets[:-1]
    if any(at + layer_bytes(layer) > plan.memory_bytes for at, layer in zip(starts, layers, strict=False)):
        raise UserError("a layer leaves the launch's memory")
    ended_tasks: dict[int, int] = {}  # per semaphore, as bits: those that have all their posts before its last one
    users: dict[tuple[int, int], int] = {}  # per layer and row of all images, as bits: what its users post
    before: dict[tuple[int, int, int], int] = {}  # per layer, image and row of tiles: what all of these await
    for number, image, y, _, _, begin, end, post, *_ in sorted(plan.tasks.tolist(), key=lambda task: task[0]):
        bits = 0
        for semaphore in plan.waits[begin:end, 0].tolist():
            bits |= 1 << semaphore | ended_tasks[semaphore]
        ended_tasks[post] = ended_tasks.get(post, 0) | bits
        place = number, image, y
        before[place] = before.get(place, bits) & bits
        for read in (written_rows(plan, *place), *reads(network, plan.tilings[number], Tile(*place, 0, 0))):
            for row in read.numbered(layers[read.layer]):
                users[read.layer, row] = users.get((read.layer, row), 0) | 1 << post
    for (number, image, y), bits in before.items():
        for other, row, exempt in overwritten(plan, number, image, y):
            late = users[other, row] & ~bits
            if exempt is not None:
                band = plan.bands[exempt]
                late &= ~((1 << band.count) - 1 << band.first)
            if late:
                user = max(n for n, band in enumerate(plan.bands) if late >> band.first)
                raise UserError(
                    f"{network.name(number)}: the tile at image {image}, row {y} overwrites {network.name(other)} "
                    f"before {network.name(user)} is done with it"
                )


def written_rows(plan: Plan, number: int, image: int, y: int) -> Read:
    """Return the rows that tiles of a layer write which begin at an image and a row."""
    (images, rows, *_), tiling = plan.network.layers[number].shape, plan.tilings[number]
    return Read(number, (image, min(images, image + tiling.images)), (y, min(rows, y + tiling.rows)))


def overwritten(plan: Plan, number: int, image: int, y: int) -> Iterator[tuple[int, int, int | None]]:
    """Yield what tiles of a layer overwrite, of all layers before it: layer, row (numbered through all images), and the
    layer whose own reading of it is not a conflict, if any: that of a residual in whose place the sum is written.
    """
    layers = plan.network.layers
    if number == len(layers) - 1:  # its memory is the caller's
        return
    layer, at, own = layers[number], plan.offsets[number], written_rows(plan, number, image, y)
    parts = list(spans(layer, at, own.rows, own.images))
    for other in range(number):
        there, their = layers[other], plan.offsets[other]
        in_place = replaces_residual(layer, other) and (at, layer.shape) == (their, there.shape)
        for low, high in parts:
            for row in rows_in(there, their, low, high):
                yield other, row, number if in_place else None


def _verify_parts(plan: Plan) -> None:
    """Raises `UserError` unless each tile's parts are all there, with a semaphore and memory of their own."""
    tiles_seen: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
    for number, *start, _, _, _, part, counter, place, _ in plan.tasks.tolist():
        tiles_seen.setdefault((number, *start), []).append((part, counter, place))
    counters, places = set[int](), set[tuple[int, int]]()
    post_counts = {semaphore for band in plan.bands for semaphore in range(band.first, band.first + band.count)}
    for (number, *_), parts in tiles_seen.items():
        if sorted(part for part, _, _ in parts) != list(range(plan.tilings[number].parts)):
            raise UserError(f"{plan.network.name(number)}: parts of k of a tile are missing, or are there twice")
        if len(parts) == 1:
            continue
        (_, counter, place), *others = parts
        if any(other[1:] != (counter, place) for other in others):
            raise UserError(f"{plan.network.name(number)}: parts of a tile do not meet in one semaphore and place")
        count = tiles(plan.network.layers[number], plan.tilings[number])
        if counter in counters | post_counts or (number, place) in places or not 0 <= place < count:
            raise UserError(f"{plan.network.name(number)}: tiles share a semaphore or memory of their parts")
        counters.add(counter)
        places.add((number, place))
