"""Chooses tiles and the number of blocks per tile for a chain of products, convolutions or attention under the
persistent scheduler, by the model of `cost`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from tileprof.errors import UserError
from tileprof.runtime.chain import Chain
from tileprof.runtime.persistent.cost import chain_us, stage_us
from tileprof.runtime.persistent.plan import (
    K_BLOCK,
    LEAST_ABREAST,
    MOST_COLUMNS,
    SPLITS,
    Box,
    StagePlan,
    Tiled,
    gated,
    may_stand_abreast,
    with_cuts,
)
from tileprof.runtime.persistent.supported import MOST_ROWS, attends, attention_plan, k_blocks, weight_rows
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm

_WORTH: Final = 1.03
"""Gain that doubling the blocks per cluster must promise: the model is no more precise, and barriers cost time."""

_NEAR: Final = 1.25
"""Tilings of a stage that are looked at in the chain: those which alone are at most so much slower than the best."""

_MOST_TILES: Final = 4_000
"""Tiles of a chain that is modelled tile by tile; with more of them the last, partial round does not matter."""

_NARROWEST: Final = 32
"""Columns of a convolution's tiles: narrower ones have not been measured."""


def preferred(us: float, split: int) -> float:
    """Return the cost of a split for choosing among splits."""
    return us * _WORTH ** (split.bit_length() - 1)


def tiled(chain: Chain, clusters: Callable[[int], int]) -> tuple[Chain, int]:
    """Return the chain with the tiles that the model likes best, and the blocks of a cluster.

    Raises `UserError` where a stage is neither product nor convolution nor attention.
    """
    _, split, tiled_chain = min(tilings(chain, clusters), key=lambda f: f[:2])
    return tiled_chain, split


def tilings(chain: Chain, clusters: Callable[[int], int]) -> list[tuple[float, int, Chain]]:
    """Return the best tiles for each number of blocks of a cluster and each height: modelled cost, blocks, and the
    chain in these tiles.

    Raises `UserError` for stages that are no product, convolution or attention.
    """
    operators: list[Tiled] = []
    for name, operator in zip(chain.names, chain.operators, strict=True):
        if not isinstance(operator, Gemm | Conv2d | Attention):
            raise UserError(
                f"stage {name} is {operator.NAME}; there are tiles for products, convolutions and attention"
            )
        operators.append(operator)
    most = 1 if attends(operators) else min(k_blocks(o) for o in operators if not isinstance(o, Attention))
    priced: list[tuple[float, int, Chain]] = []
    for split, height in product(SPLITS, (64, MOST_ROWS, 2 * MOST_ROWS)):
        if split <= most and _worth_a_look(operators, split, height):
            us, stages = _best(operators, height, split, clusters(split))
            tiled_chain = Chain(chain.names, tuple(stage.operator for stage in stages))
            priced.append((preferred(us, split), split, tiled_chain))
    return priced


def _worth_a_look(operators: Sequence[Tiled], split: int, height: int) -> bool:
    """Return whether tiles of up to ``height`` rows are another choice than lower ones.

    Higher than a block multiplies are those of pairs, for products.
    """
    highest = max(_rows(o) for o in operators)
    if height > MOST_ROWS:
        return split == 2 and highest > MOST_ROWS and all(isinstance(o, Gemm) for o in operators)
    return height == 64 or highest > 64


def _best(operators: Sequence[Tiled], height: int, split: int, clusters: int) -> tuple[float, list[StagePlan]]:
    """Modelled time and stages: looked for among those that are near the best alone, all changed at once, then one
    after the other.
    """

    def alone(stage: StagePlan) -> tuple[float, int]:
        return stage_us(stage, split, clusters), stage.operator.tiles

    def together(choice: Sequence[StagePlan]) -> float:
        stages = with_cuts(choice, clusters)
        if sum(stage.operator.tiles for stage in stages) > _MOST_TILES:
            return sum(stage_us(stage, split, clusters) for stage in stages)
        return chain_us(stages, split, clusters)

    may = split >= LEAST_ABREAST and height <= MOST_ROWS and all(may_stand_abreast(o, height) for o in operators)
    near = []
    for operator in operators:
        tilings = sorted(
            (with_cuts([t], clusters)[0] for n in ((1, split) if may else (1,)) for t in _tilings(operator, height, n)),
            key=alone,
        )
        limit = _NEAR * alone(tilings[0])[0]
        near.append([stage for stage in tilings if alone(stage)[0] <= limit])
    stages = min((list(each) for each in zip(*near, strict=False)), key=together)
    for number, tilings in enumerate(near):
        stages[number] = min(tilings, key=lambda stage: together([*stages[:number], stage, *stages[number + 1 :]]))
    return together(stages), stages


def _tilings(operator: Tiled, height: int, abreast: int) -> Iterator[StagePlan]:
    """Yield the operator in tiles of up to ``height`` rows that the kernel supports, with ``abreast`` blocks."""
    if isinstance(operator, Attention):
        for rows in (K_BLOCK, 2 * K_BLOCK):
            if rows <= height:
                yield attention_plan(replace(operator, rows=rows), min(height, MOST_ROWS))
        return
    sides = 2 if gated(operator) else 1
    heights = list(_heights(operator, height))
    widest = min(MOST_COLUMNS // sides, -(-operator.out.shape[-1] // 16) * 16)
    narrowest = min(widest, _NARROWEST) if isinstance(operator, Conv2d) else 1
    for width in range(widest, narrowest - 1, -16 // sides):
        for rows in heights:
            tiled_operator = replace(operator, tile=(rows, width * abreast), rows_along="y")
            stage = StagePlan(
                tiled_operator,
                min(height, MOST_ROWS),
                weight_rows(tiled_operator) // abreast,
                k_blocks(tiled_operator),
                abreast=abreast,
            )
            if abreast == 1 or stage.is_supported:
                yield stage


def _heights(operator: Gemm | Conv2d, height: int) -> Iterator[int]:
    if isinstance(operator, Gemm):
        yield height if height > MOST_ROWS else min(height, operator.out.shape[0])
        return
    for pixels in range(min(height, _rows(operator)), 0, -1):
        if Box.of(replace(operator, tile=(pixels, 16))) is not None:
            yield pixels


def _rows(operator: Tiled) -> int:
    """Return rows of the result as a matrix."""
    total = 1
    for size in operator.out.shape[:-1]:
        total *= size
    return total
