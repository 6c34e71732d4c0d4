"""Into which tiles products are cut: two widths for a program, and for each product one of them and its parts of k."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tileprof.errors import UserError
from tileprof.runtime.encoder.program import Product, Program

ROWS: Final = 32
"""Rows of a product's tile."""
K_CHUNK: Final = 64
MOST_SPLITS: Final = 4

WIDTHS: Final = tuple(range(32, 193, 16))
"""Columns of a product's tile that the kernel can be compiled for; multiples of 32 where weights are not K-major."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Chooses tiles for ``clusters`` clusters of ``cluster`` blocks. ``asked``: parts of k wanted where k may be cut; None for the best."""

    program: Program
    clusters: int
    cluster: int
    asked: int | None

    def widths(self) -> tuple[int, int]:
        """Two widths, the larger one first, such that all products are soonest done, each in tiles of one of them."""
        products = self.program.products()
        if any(product.columns % 32 for product in products if not product.k_major):
            raise UserError(f"{self.program.name}: weights that are not K-major have columns that 32 does not divide")
        fitting = [w for w in WIDTHS if w % 32 == 0 or all(product.k_major for product in products)]
        beside = self._beside()
        costs = {w: [self._cost(product, w, beside[_rows_of(product)]) for product in products] for w in fitting}
        pairs = [(wide, narrow) for wide in fitting for narrow in fitting if narrow <= wide]
        return min(pairs, key=lambda pair: sum(map(min, costs[pair[0]], costs[pair[1]])))

    def width(self, product: Product, widths: tuple[int, int]) -> int:
        beside = self._beside()[_rows_of(product)]
        return min(widths, key=lambda width: self._cost(product, width, beside))

    def splits(self, product: Product, width: int) -> int:
        """Parts of k; one for products whose sums are not ended row by row."""
        if product.residual is None:
            return 1
        fitting = [s for s in range(1, MOST_SPLITS + 1) if product.depth % (s * K_CHUNK) == 0]
        if self.asked is not None:
            return max(s for s in fitting if s <= self.asked)
        return min(fitting, key=lambda s: self._time(product, width, s, 1))

    def _beside(self) -> Counter[tuple[str, int, int]]:
        """How many products multiply the same rows: queries, keys and values, which are one round together."""
        return Counter(_rows_of(product) for product in self.program.products())

    def _cost(self, product: Product, width: int, beside: int) -> float:
        return self._time(product, width, self.splits(product, width), beside)

    def _time(self, product: Product, width: int, splits: int, beside: int) -> float:
        """Microseconds, roughly as measured: a round's loads and multiplications, and what each part adds behind."""
        tiles = -(-product.rows // (ROWS * self.cluster)) * -(-product.columns // width) * splits * beside
        passes = product.depth / splits / 768
        rounds = -(-tiles // self.clusters)
        return rounds * (1.6 + 0.002 * width + passes * (0.3 + 0.01 * width)) / beside + 0.1 * splits


def _rows_of(product: Product) -> tuple[str, int, int]:
    return product.activations.tensor, product.activations.column, product.columns


def cluster_for(program: Program) -> int:
    """Blocks that share weights: two, unless the second has no rows."""
    return 1 if max(product.rows for product in program.products()) <= ROWS else 2
