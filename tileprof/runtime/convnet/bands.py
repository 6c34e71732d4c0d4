"""Rows of pixels that a tile reads or writes, and the bands of rows that have a semaphore each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tileprof.runtime.convnet.network import Layer


@dataclass(frozen=True, slots=True)
class Bands:
    """The semaphores of a layer: of band ``(image group) * per_image + (row of tiles)`` from ``first`` on.

    Each is posted ``posts`` times per run.
    """

    first: int
    images: int
    """Images per image group."""
    rows: int
    """Rows of pixels per row of tiles."""
    per_image: int
    count: int
    posts: int

    def of(self, image: int, row: int) -> int:
        """Return the semaphore that tiles post which hold a row of an image."""
        return self.first + image // self.images * self.per_image + row // self.rows


@dataclass(frozen=True, slots=True)
class Read:
    """Rows of images of a layer that a tile reads, or writes; ends are exclusive."""

    layer: int
    images: tuple[int, int]
    rows: tuple[int, int]

    def numbered(self, layer: Layer) -> Iterator[int]:
        """Yield the rows of the layer, numbered through all images."""
        height = layer.shape[1]
        for image in range(*self.images):
            yield from range(image * height + self.rows[0], image * height + self.rows[1])


@dataclass(frozen=True, slots=True)
class Rows:
    """The semaphores that tiles of rows ``row`` to ``row_end`` of images ``image`` to ``image_end`` await for what they
    read.
    """

    image: int
    image_end: int
    row: int
    row_end: int
    reads: tuple[Read, ...]
    awaited: frozenset[int]
