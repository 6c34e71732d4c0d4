"""Places the results of layers in one piece of memory, which layers use again, with the waits that reuse needs.

A layer may take memory that no later layer reads. Its tiles overwrite rows there that tiles of earlier layers wrote and
read; most of these are over because of what the tiles await anyway, and a wait is added for each of the others. A layer
takes memory where it makes the piece grow least, then where its tiles have the fewest waits to add. A residual addition
may write where the residual lies: a tile reads what it then overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

from tileprof.runtime.convnet.bands import Bands, Rows
from tileprof.runtime.convnet.network import Convolution, Layer, Network

ELEMENT_BYTES: Final = 2

ALIGNMENT: Final = 256
"""Bytes that divide the place of every layer."""


def layer_bytes(layer: Layer) -> int:
    """Return bytes of a layer's results."""
    return prod(layer.shape) * ELEMENT_BYTES


def row_bytes(layer: Layer) -> int:
    """Return bytes of a row of pixels of one image."""
    return prod(layer.shape[2:]) * ELEMENT_BYTES


def scattered(layer: Layer) -> bool:
    """Return whether a row of pixels is spread over its image: channels lie in front of pixels."""
    return isinstance(layer, Convolution) and layer.flat


def spans(layer: Layer, offset: int, rows: tuple[int, int], images: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the bytes, from and to, that hold rows of images of a layer which lies at ``offset``."""
    height, size = layer.shape[1], row_bytes(layer)
    first, last = (0, height) if scattered(layer) else rows
    for image in range(*images):
        yield offset + (image * height + first) * size, offset + (image * height + last) * size


def rows_in(layer: Layer, offset: int, begin: int, end: int) -> range:
    """Return the rows (numbered through all images) of a layer at ``offset`` that have bytes from ``begin`` to
    ``end``.
    """
    begin, end, size = max(begin, offset), min(end, offset + layer_bytes(layer)), row_bytes(layer)
    if begin >= end:
        return range(0)
    first, last = (begin - offset) // size, -(-(end - offset) // size)
    if scattered(layer):
        height = layer.shape[1]
        return range(first // height * height, -(-last // height) * height)
    return range(first, last)


def replaces_residual(layer: Layer, residual: int) -> bool:
    """Return whether a layer's tiles read a layer's results only where they write themselves, given room of the same
    shape.
    """
    return isinstance(layer, Convolution) and layer.residual == residual != layer.source and not layer.flat


class Memory:
    """Places layers one after the other, in their order, and adds waits. The last layer has memory of its caller's."""

    def __init__(self, network: Network, *, reuse: bool) -> None:
        self._layers, self._reuse = network.layers, reuse
        self.offsets: list[int] = []
        self.size = 0
        """Bytes in all."""
        self._last_reader = [0] * len(network.layers)
        for number, layer in enumerate(network.layers):
            for source in (layer.source, getattr(layer, "residual", None)):
                if source is not None and source >= 0:
                    self._last_reader[source] = number
        self._owners: list[tuple[int, int, int]] = []  # bytes from and to, and the layer that was last placed there
        # Sets of semaphores as bits of an integer.
        self._users: list[list[int]] = []  # per layer and row: what those post that write it or read it
        self._earlier: dict[int, int] = {}  # per semaphore: those that have all their posts when it has

    def add(self, number: int, bands: Bands, tiles: Sequence[Rows]) -> dict[tuple[int, int], frozenset[int]]:
        """Place the next layer; say what its tiles await, by their first image and row."""
        layer = self._layers[number]
        last = number == len(self._layers) - 1
        implied = {n: self._implied(rows.awaited) for n, rows in enumerate(tiles)}
        offset = 0 if last else self._place(number, tiles, implied)
        self.offsets.append(offset)
        self._users.append([0] * (layer.shape[0] * layer.shape[1]))
        semaphores: dict[tuple[int, int], frozenset[int]] = {}
        for n, rows in enumerate(tiles):
            more = set() if last else self._missing(layer, offset, rows, implied[n])
            semaphores[rows.image, rows.row] = rows.awaited | more
            self._earlier[bands.of(rows.image, rows.row)] = implied[n] | self._implied(more)
        for rows in tiles:
            own = 1 << bands.of(rows.image, rows.row)
            self._use(number, (rows.image, rows.image_end), (rows.row, rows.row_end), own)
            for read in rows.reads:
                self._use(read.layer, read.images, read.rows, own)
        if not last:
            self._own(offset, offset + layer_bytes(layer), number)
        return semaphores

    def _use(self, number: int, images: tuple[int, int], rows: tuple[int, int], own: int) -> None:
        users, height = self._users[number], self._layers[number].shape[1]
        for image in range(*images):
            for row in range(image * height + rows[0], image * height + rows[1]):
                users[row] |= own

    def _implied(self, semaphores: frozenset[int] | set[int]) -> int:
        bits = 0
        for semaphore in semaphores:
            bits |= 1 << semaphore | self._earlier[semaphore]
        return bits

    def _place(self, number: int, tiles: Sequence[Rows], implied: Mapping[int, int]) -> int:
        layer = self._layers[number]
        size = layer_bytes(layer)
        if not self._reuse:
            return self._grown(self.size, size)
        busy = [
            (self.offsets[other], self.offsets[other] + layer_bytes(self._layers[other]))
            for other in range(number)
            if self._last_reader[other] >= number and not self._replaces(number, other)
        ]
        residual = getattr(layer, "residual", None)
        at = {0, *(-(-end // ALIGNMENT) * ALIGNMENT for _, end, _ in self._owners), *(b for b, _, _ in self._owners)}
        if residual is not None and self._replaces(number, residual):
            own = self.offsets[residual]
            at = {o for o in at if o + size <= own or own + layer_bytes(self._layers[residual]) <= o} | {own}
        free = [o for o in at if o % ALIGNMENT == 0 and all(o + size <= b or e <= o for b, e in busy)]
        some = {0, len(tiles) // 2, len(tiles) - 1}

        def cost(offset: int) -> tuple[int, int, int]:
            added = sum(len(self._missing(layer, offset, tiles[n], implied[n])) for n in some)
            return max(0, offset + size - self.size), added, offset

        return self._grown(min(free, key=cost), size)

    def _grown(self, offset: int, size: int) -> int:
        self.size = max(self.size, -(-(offset + size) // ALIGNMENT) * ALIGNMENT)
        return offset

    def _replaces(self, number: int, other: int) -> bool:
        layer = self._layers[number]
        return (
            self._last_reader[other] == number
            and layer.shape == self._layers[other].shape
            and not scattered(self._layers[other])
            and replaces_residual(layer, other)
        )

    def _missing(self, layer: Layer, offset: int, rows: Rows, implied: int) -> set[int]:
        """Return the semaphores to await in addition before rows are written at an offset: none implies another."""
        users = 0
        for begin, end in spans(layer, offset, (rows.row, rows.row_end), (rows.image, rows.image_end)):
            for first, last, owner in self._owners:
                if first < end and begin < last:
                    theirs = self._users[owner]
                    for row in rows_in(self._layers[owner], self.offsets[owner], max(begin, first), min(end, last)):
                        users |= theirs[row]
        users &= ~implied
        missing = set[int]()
        while users:
            latest = users.bit_length() - 1
            missing.add(latest)
            users &= ~(1 << latest | self._earlier[latest])
        return missing

    def _own(self, begin: int, end: int, number: int) -> None:
        parts: list[tuple[int, int, int]] = [(begin, end, number)]
        for first, last, owner in self._owners:
            if first < begin:
                parts.append((first, min(last, begin), owner))
            if last > end:
                parts.append((max(first, end), last, owner))
        self._owners = sorted(part for part in parts if part[0] < part[1])
