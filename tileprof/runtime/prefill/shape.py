"""The sizes of a decoder's prefill that the kernel is compiled for, and what they ask of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tileprof.runtime.persistent.model_kernel import DEFAULT_OPTIONS, LaunchOptions, ModelShape, refuse_beyond
from tileprof.runtime.persistent.source import multiply

TILE_ROWS: Final = 64
"""Rows of activations of a product: TILE_ROWS of common.cuh."""

K_CHUNK: Final = 64
BOX: Final = 32
"""Columns of k in a slot of a ring, and rows of weights in a copy: K_CHUNK and BOX of common.cuh."""

IN_FLIGHT: Final = 3
"""Slots of weights that are being filled at a time. Measured: see `docs/development/runtime-experiments.md`."""

HEAD_DIM: Final = 64
_TILE: Final = 128
_QUERIES: Final = 32
_SLOTS, _ACTIVATION_SLOTS = 9, 7
_MOST_SPLITS: Final = 8
_MOST_QKV_SPLITS: Final = 4  # a thread holds the parts of eight columns of a query, a key and a value
_MOST_HIDDEN: Final = 4096  # a thread holds the parts of its columns of a row
_MOST_LAYERS: Final = 120  # their addresses fit a kernel's parameters


@dataclass(frozen=True, slots=True)
class PrefillShape(ModelShape):
    """A decoder over ``batch`` sequences of ``length`` tokens, without tokens before them.

    ``cache``: rows per sequence and head of the caller's keys and values; 0 where it wants none.
    """

    length: int
    cache: int = 0

    @property
    def rows(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.length

    def splits(self, blocks: int) -> dict[str, int]:
        """Return into how many parts the k of each product is cut: as many as there are blocks for."""
        products = {
            "QKV": (self.qkv, self.hidden, _MOST_QKV_SPLITS),
            "OUTPUT": (self.hidden, self.query, _MOST_SPLITS),
            "DOWN": (self.hidden, self.intermediate, _MOST_SPLITS if self.hidden <= 2048 else _MOST_SPLITS // 2),
        }
        splits = {
            name: max(1, min(most, blocks // (columns // _TILE), depth // (2 * K_CHUNK)))
            for name, (columns, depth, most) in products.items()
        }
        return splits | dict.fromkeys(("OUTPUT", "DOWN"), min(splits["OUTPUT"], splits["DOWN"]))

    def part_vectors(self, blocks: int) -> dict[str, int]:
        """Return vectors of four floats of the parts of each product, in the order of memory.

        QKV_PARTS and so on of common.cuh.
        """
        splits = self.splits(blocks)
        qkv, rows = splits["QKV"] * self.rows * self.qkv // 4, splits["DOWN"] * self.rows * self.hidden // 4
        return {"queries, keys and values": 2 * qkv, "the output product": rows, "the down product": rows}

    def flags(self) -> dict[str, int]:
        """Return how many flags there are of each kind, in the order of memory: NORMED_FLAGS and so on of
        common.cuh.
        """
        return {
            "row that enters the layer": self.rows,
            "row in the middle of the layer": self.rows,
            "head": self.heads * -(-self.rows // _QUERIES),
            "columns of the gate": self.intermediate * 2 // _TILE,
        }

    def matrices(self) -> dict[str, int]:
        """Return columns of the matrices of halves between products, in the order of memory, behind the parts.

        RESIDUAL_AT and so on of common.cuh.
        """
        return {
            "residual": self.hidden,
            "normed": self.hidden,
            "middle": self.hidden,
            "attended": self.query,
            "activated": self.intermediate,
        }

    def check(self) -> None:
        """Raises `UserError` where the kernel does not do this prefill."""
        limits = {
            f"{self.rows} rows of tokens, and at most {TILE_ROWS} are taken": self.rows <= TILE_ROWS,
            f"heads of {self.head_dim} columns, and {HEAD_DIM} are taken": self.head_dim == HEAD_DIM,
            f"{self.heads} heads on {self.kv_heads}": self.heads % self.kv_heads == 0,
            f"{self.qkv} columns of queries, keys and values, which {_TILE} does not divide": self.qkv % _TILE == 0,
            f"a hidden size of {self.hidden}, and multiples of {_TILE} up to {_MOST_HIDDEN} are taken": self.hidden
            % _TILE
            == 0
            and self.hidden <= _MOST_HIDDEN,
            f"an intermediate size of {self.intermediate}, which {_TILE} does not divide": self.intermediate % _TILE
            == 0,
            f"{self.heads} heads, an odd number": self.heads % 2 == 0,
            f"a vocabulary of {self.vocabulary}, which 8 does not divide": self.vocabulary % 8 == 0,
            f"{self.layers} layers, and at most {_MOST_LAYERS} are taken": self.layers <= _MOST_LAYERS,
        }
        refuse_beyond(limits, "the prefill")

    def header(self, blocks: int, options: LaunchOptions = DEFAULT_OPTIONS) -> str:
        """Return what kernel.cu includes as config.h, for a launch of ``blocks``."""
        sizes = {
            "ROWS": self.rows,
            "LENGTH": self.length,
            "CACHE": self.cache,
            "SLOTS": _SLOTS,
            "ACTIVATION_SLOTS": _ACTIVATION_SLOTS,
            "IN_FLIGHT": min(options.in_flight or IN_FLIGHT, _SLOTS),
        } | {f"{name}_SPLITS": splits for name, splits in self.splits(blocks).items()}
        lines = self.config(blocks, options, sizes, {})
        return "\n".join([*lines, "template <int> struct Multiply;", multiply(TILE_ROWS, self.dtype)]) + "\n"
