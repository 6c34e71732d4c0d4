"""The decoder's stages as tiles: what each reads and writes, and which words of earlier stages it waits for.

The kernel has no semaphores: a word that a stage hands on is absent until it is written, and who reads it polls it. As
a policy, a tile that hands words on posts one semaphore, and a tile awaits those of the tiles that write the words it
polls. `touches` comes from what the mathematics needs, `policy` from the addresses that the kernel polls, so that
`tileprof.runtime.executor` and the verifier can hold one against the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.policy.format import Policy, from_dict
from tileprof.runtime.decode.shape import GROUP, DecoderShape
from tileprof.runtime.executor import Touches

KINDS: Final = ("qkv", "attention", "combination", "output", "gate", "down")
"""Stages of a layer. The combination of chunks is the end of the kernel's attention stage."""

_WRITES: Final = dict(zip(KINDS, ("qkv", "parts", "attended", "middle", "activated", "out"), strict=True))
_READ, _WRITE = 0, 1
_SMALLEST_CHUNK, _CHUNK_STEP = 32, 16  # of common.cuh


@dataclass(frozen=True, slots=True)
class Handover:
    """Layers of a decoder on ``blocks`` blocks, with ``cached`` positions attended besides the new one. Words are
    counted from the first of a set.
    """

    shape: DecoderShape
    blocks: int
    cached: int

    @property
    def chunks(self) -> int:
        """Chunks of a sequence and head of keys, as the kernel cuts them."""
        most, cached = self.shape.most_chunks(self.blocks), max(self.cached, 1)
        share = -(-cached // most)
        chunk = _SMALLEST_CHUNK if share < _SMALLEST_CHUNK else -(-share // _CHUNK_STEP) * _CHUNK_STEP
        return -(-cached // chunk)

    def tiles(self, kind: str) -> int:
        """Return tiles of a stage: groups of rows that are handed on together, chunks, or heads of a sequence."""
        shape = self.shape
        rows = {"qkv": shape.qkv, "output": shape.hidden, "gate": shape.intermediate, "down": shape.hidden}
        if kind in rows:
            return rows[kind] // GROUP
        return shape.batch * shape.kv_heads * (self.chunks if kind == "attention" else shape.sharers)

    def writes(self, layer: int, kind: str, tile: int) -> NDArray[np.int64]:
        """Return words that a tile hands on."""
        shape = self.shape
        if kind == "attention":
            pair, chunk = divmod(tile, self.chunks)
            return self._parts(layer, pair, chunk, range(shape.sharers))
        if kind == "combination":
            pair, sharer = divmod(tile, shape.sharers)
            sequence, head = divmod(pair, shape.kv_heads)
            first = (head * shape.sharers + sharer) * shape.head_dim
            return self._rows(layer, "attended", (sequence,), first, shape.head_dim)
        return self._rows(layer, _WRITES[kind], range(shape.batch), tile * GROUP, GROUP)

    def reads(self, layer: int, kind: str, tile: int) -> NDArray[np.int64]:
        """Return words of earlier tiles that a tile's result depends on."""
        shape, everyone = self.shape, range(self.shape.batch)
        entering = [] if layer == 0 else [self._rows(layer - 1, "out", everyone, 0, shape.hidden)]
        own = tile * GROUP
        if kind == "qkv":
            words = entering
        elif kind == "attention":
            words = list(self._heads(layer, *divmod(tile // self.chunks, shape.kv_heads), newest=self._appends(tile)))
        elif kind == "combination":
            pair, sharer = divmod(tile, shape.sharers)
            words = [self._parts(layer, pair, chunk, (sharer,)) for chunk in range(self.chunks)]
        elif kind == "output":
            residual = [] if layer == 0 else [self._rows(layer - 1, "out", everyone, own, GROUP)]
            words = [self._rows(layer, "attended", everyone, 0, shape.query), *residual]
        elif kind == "gate":
            words = [self._rows(layer, "middle", everyone, 0, shape.hidden)]
        else:
            words = [
                self._rows(layer, "activated", everyone, 0, shape.intermediate),
                self._rows(layer, "middle", everyone, own, GROUP),
            ]
        return np.concatenate([np.empty(0, np.int64), *words])

    def touches(self, layers: int) -> list[Touches]:
        """Return bytes that the tiles of each stage read and write, of layers one after the other."""
        touches = []
        for layer in range(layers):
            for kind in KINDS:
                rows: list[tuple[int, ...]] = []
                for tile in range(self.tiles(kind)):
                    for mode, words in (
                        (_READ, self.reads(layer, kind, tile)),
                        (_WRITE, self.writes(layer, kind, tile)),
                    ):
                        rows += [
                            (tile, 0, mode, 4 * begin, 4 * (end - begin), 1, 0, 1, 0) for begin, end in _runs(words)
                        ]
                touches.append(Touches.of(rows))
        return touches

    def polled(self, layer: int, kind: str, tile: int) -> NDArray[np.int64]:
        """Return words that a tile's warps poll, from the addresses in product.cuh and attention.cuh: vectors of eight
        halves, words, pairs of floats.
        """
        shape, batch = self.shape, np.arange(self.shape.batch)[:, None]
        at, before = self._offsets(layer), self._offsets(layer - 1)

        def vectors(first: int, width: int) -> NDArray[np.int64]:
            columns = 8 * np.arange(width // 8)[None, :]
            return (first + ((batch * width + columns) // 2)[..., None] + np.arange(4)).ravel()

        def residual(first: int) -> NDArray[np.int64]:
            return (first + (batch * shape.hidden + tile * GROUP + 2 * np.arange(4)[None, :]) // 2).ravel()

        no_words = np.empty(0, np.int64)
        match kind:
            case "qkv":
                return vectors(before["out"], shape.hidden) if layer else no_words
            case "attention":
                sequence, head = divmod(tile // self.chunks, shape.kv_heads)
                froms = [(head * shape.sharers + sharer) * shape.head_dim for sharer in range(shape.sharers)]
                if self._appends(tile):
                    froms += [
                        shape.query + kind_at * shape.kv_heads * shape.head_dim + head * shape.head_dim
                        for kind_at in (0, 1)
                    ]
                words = np.arange(shape.head_dim // 2)[None, :]
                return (at["qkv"] + (sequence * shape.qkv + np.array(froms)[:, None]) // 2 + words).ravel()
            case "combination":
                pair, sharer = divmod(tile, shape.sharers)
                chunk = np.arange(self.chunks)[:, None]
                part = ((pair * shape.most_chunks(self.blocks) + chunk) * shape.sharers + sharer) * (shape.head_dim + 2)
                return (at["parts"] + part + np.arange(shape.head_dim + 2)[None, :]).ravel()
            case "output":
                return np.concatenate(
                    [vectors(at["attended"], shape.query), residual(before["out"]) if layer else no_words]
                )
            case "gate":
                return vectors(at["middle"], shape.hidden)
            case _:
                return np.concatenate([vectors(at["activated"], shape.intermediate), residual(at["middle"])])

    def policy(self, layers: int) -> Policy:
        """Return a semaphore for each tile that hands words on; a tile awaits those of the words that it polls."""
        names = [(layer, kind) for layer in range(layers) for kind in KINDS]
        writer = np.full((layers * self._layer_words, 2), -1, np.int64)
        for stage, (layer, kind) in enumerate(names):
            for tile in range(self.tiles(kind)):
                writer[self.writes(layer, kind, tile)] = stage, tile
        stages = [{"name": f"{kind} {layer}", "grid": [self.tiles(kind), 1, 1]} for layer, kind in names]
        arrays = [
            {"producer": n, "grid": [s["grid"][0], 1, 1], "of": ["x", "0", "0"]} for n, s in enumerate(stages)
        ]  # fmt: skip
        edges = []
        for consumer, (layer, kind) in enumerate(names):
            owners = [np.unique(writer[self.polled(layer, kind, tile)], axis=0) for tile in range(self.tiles(kind))]
            for producer in sorted({int(stage) for pairs in owners for stage in pairs[:, 0]}):
                consumers = [pairs[pairs[:, 0] == producer, 1].tolist() for pairs in owners]
                edges.append(_edge(producer, consumer, consumers))
        return from_dict({"tileprof_policy": 1, "stages": stages, "semaphores": arrays, "edges": edges})

    @property
    def _layer_words(self) -> int:
        return self.shape.set_words(self.blocks) // self.shape.layers

    def _offsets(self, layer: int) -> dict[str, int]:
        at, offsets = layer * self._layer_words, {}
        for name, words in self.shape.handed_words(self.blocks).items():
            offsets[name] = at
            at += words
        return offsets

    def _appends(self, tile: int) -> bool:
        return tile % self.chunks == self.chunks - 1

    def _rows(self, layer: int, name: str, sequences: Any, first: int, count: int) -> NDArray[np.int64]:
        width = {"qkv": self.shape.qkv, "attended": self.shape.query, "activated": self.shape.intermediate}.get(
            name, self.shape.hidden
        )
        at = self._offsets(layer)[name]
        return np.concatenate([at + np.arange(s * width + first, s * width + first + count, 2) // 2 for s in sequences])

    def _parts(self, layer: int, pair: int, chunk: int, sharers: Any) -> NDArray[np.int64]:
        words = self.shape.head_dim + 2
        first = (
            self._offsets(layer)["parts"]
            + (pair * self.shape.most_chunks(self.blocks) + chunk) * self.shape.sharers * words
        )
        return np.concatenate([first + sharer * words + np.arange(words) for sharer in sharers])

    def _heads(self, layer: int, sequence: int, head: int, *, newest: bool) -> Iterator[NDArray[np.int64]]:
        shape = self.shape
        width = shape.sharers * shape.head_dim
        yield self._rows(layer, "qkv", (sequence,), head * width, width)
        if newest:
            for part in range(2):
                first = shape.query + (part * shape.kv_heads + head) * shape.head_dim
                yield self._rows(layer, "qkv", (sequence,), first, shape.head_dim)


def _runs(words: I64) -> Iterator[tuple[int, int]]:
    """Yield ranges of neighbouring words."""
    if len(words):
        ordered = np.unique(words)
        ends = np.flatnonzero(np.diff(ordered) != 1)
        for first, last in zip(ordered[np.r_[0, ends + 1]], ordered[np.r_[ends, -1]], strict=True):
            yield int(first), int(last) + 1


def _edge(producer: int, consumer: int, awaited: list[list[int]]) -> dict[str, Any]:
    flat = [semaphore for tile in awaited for semaphore in tile]
    indptr = np.cumsum([0, *map(len, awaited)]).tolist()
    return {
        "producer": producer, "consumer": consumer, "hazards": ["RAW"], "kind": "table", "semaphores": producer,
        "waits": {"indptr": indptr, "semaphore": flat}, "value": [1] * len(flat),
    }  # fmt: skip
