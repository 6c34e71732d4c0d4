"""The sizes of a decoder that the kernel is compiled for, and what they ask of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tileprof.runtime.persistent.model_kernel import DEFAULT_OPTIONS, LaunchOptions, ModelShape, refuse_beyond
from tileprof.runtime.persistent.source import SHARED_BYTES

GROUP: Final = 8
"""Rows of weights that are dealt to blocks: GROUP of common.cuh."""

IN_FLIGHT: Final = 4
"""Slots of the ring that are being filled at a time. Measured: see docs/decoding.md."""

_ROW_BYTES, _WARPS, _TILES, _STEP = 2 * 1024 + 64, 8, 8, 32  # of common.cuh
_MOST_SLOTS, _FEWEST_SLOTS = 13, 6
_BARRIER_BYTES = 1024  # barriers, sums of squares, alignment
_MOST_HIDDEN: Final = 4096  # normalised activations stay in registers
_MOST_PARAMETER_BYTES: Final = 32_000  # a kernel takes 32,764


@dataclass(frozen=True, slots=True)
class DecoderShape(ModelShape):
    """A decoder that takes one token per sequence, without biases but those of queries, keys and values.

    ``cache``: positions that the static cache holds. ``masked``: what is added to the score of a position where a mask
    is false; without it there is no mask, and the positions up to the last are attended.
    """

    cache: int
    biased: bool = False
    head_norms: bool = False
    masked: float | None = None

    @property
    def sharers(self) -> int:
        """Heads of queries per head of keys."""
        return self.heads // self.kv_heads

    def most_chunks(self, blocks: int) -> int:
        """Return into how many chunks the context of a sequence and head of keys is cut at most."""
        return max(1, blocks // (self.batch * self.kv_heads))

    def handed_words(self, blocks: int) -> dict[str, int]:
        """Return 32-bit words that each stage of a layer hands to later ones, in the order of memory: QKV_AT and so on
        of common.cuh.
        """
        parts = self.batch * self.kv_heads * self.most_chunks(blocks) * self.sharers * (self.head_dim + 2)
        halves = {
            "qkv": self.qkv,
            "attended": self.query,
            "middle": self.hidden,
            "activated": self.intermediate,
            "out": self.hidden,
        }
        return {name: self.batch * width // 2 for name, width in halves.items()} | {"parts": parts}

    def set_words(self, blocks: int) -> int:
        """Return words of one of the two sets of memory between stages: SET_WORDS of common.cuh."""
        return -(-sum(self.handed_words(blocks).values()) // 32) * 32 * self.layers

    @property
    def slots(self) -> int:
        """Slots of the ring: as many as fit beside the sums of the warps."""
        products, tokens = 4 * _WARPS * _TILES * 16 * self.batch, self.batch * (2 * self.hidden + 64)
        heads, rotated = 4 * _WARPS * self.sharers * (self.head_dim + 2), 4 * (self.sharers + 2) * self.head_dim
        free_bytes = SHARED_BYTES - max(products, tokens, heads) - rotated - _BARRIER_BYTES
        return min(_MOST_SLOTS, free_bytes // (GROUP * _ROW_BYTES))

    def check(self) -> None:
        """Raises `UserError` where the kernel does not do this decoder."""
        limits = {
            f"{self.batch} sequences, and at most 8 are decoded at a time": self.batch <= 8,
            f"heads of {self.head_dim} columns, and 64 or 128 are taken": self.head_dim in {64, 128},
            f"{self.heads} heads on {self.kv_heads}, and at most 8 may share keys": self.heads % self.kv_heads == 0
            and self.sharers <= 8,
            f"a hidden size of {self.hidden}, and multiples of {_STEP} up to {_MOST_HIDDEN} are taken": self.hidden
            % _STEP
            == 0
            and self.hidden <= _MOST_HIDDEN,
            f"an intermediate size of {self.intermediate}, which {_STEP} does not divide": self.intermediate % _STEP
            == 0,
            f"a vocabulary of {self.vocabulary}, which {GROUP} does not divide": self.vocabulary % GROUP == 0,
            f"{self.layers} layers, whose addresses do not fit a kernel's parameters": 8 * (17 * self.layers + 14)
            <= _MOST_PARAMETER_BYTES,
            "too little shared memory for the sums of its heads": self.slots >= _FEWEST_SLOTS,
        }
        refuse_beyond(limits, "the decoder")

    def header(self, blocks: int, options: LaunchOptions = DEFAULT_OPTIONS) -> str:
        """Return what kernel.cu includes as config.h, for a launch of ``blocks``."""
        sizes = {
            "BATCH": self.batch,
            "HEAD_DIM": self.head_dim,
            "CACHE": self.cache,
            "SLOTS": self.slots,
            "IN_FLIGHT": min(options.in_flight or IN_FLIGHT, self.slots),
        }
        flags = {"QKV_BIAS": self.biased, "HEAD_NORMS": self.head_norms, "WITH_MASK": self.masked is not None}
        lines = self.config(blocks, options, sizes, flags)
        return "\n".join([*lines, f"constexpr float MASKED = {_c_float(self.masked or 0.0)};"]) + "\n"


def _c_float(value: float) -> str:
    return "-INFINITY" if value == float("-inf") else f"{value!r}f"
