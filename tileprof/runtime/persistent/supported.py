"""Checks that the persistent kernel can compute a stage: layouts that TMA reads, tiles that a warpgroup multiplies.
Everything else is refused in a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tileprof.errors import UserError
from tileprof.runtime.chain import Chain
from tileprof.runtime.persistent.plan import K_BLOCK, MOST_COLUMNS, SPLITS, Box, StagePlan, Tiled, gated
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import NORM_ROLES, Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.operator import Operator
from tileprof.runtime.stages.view import View

MOST_STAGES: Final = 8
"""Every stage is compiled into the one kernel, and its tensor maps are parameters."""

MOST_ROWS: Final = 128
"""Rows that a block multiplies."""

HEADS: Final = (64, 128)
"""Columns of a head of attention: more take more registers than a thread has."""

_EARLY: Final = {"b", "weight", "bias", *NORM_ROLES}
"""Roles of operands that the kernel loads without waiting for anything."""

_BOX: Final = 256
"""Elements along a side of a box of TMA."""

_STEP: Final = 8
"""The widest stride of a convolution: TMA takes one element per step of a box."""

_ITEMS: Final = 8
"""Halves in 16 bytes, of which TMA's strides and the kernel's stores are multiples."""


def stage_plans(chain: Chain) -> tuple[StagePlan, ...]:
    """Return what is compiled in for every stage; raises `UserError` with what the kernel cannot take."""
    if len(chain.operators) > MOST_STAGES:
        raise UserError(
            f"the persistent kernel takes at most {MOST_STAGES} stages; the policy has {len(chain.operators)}"
        )
    dtypes = {view.dtype for operator in chain.operators for view in operator.views().values()}
    if dtypes not in ({"float16"}, {"bfloat16"}):
        raise UserError(f"the persistent kernel takes float16 or bfloat16 throughout, not {', '.join(sorted(dtypes))}")
    results = {operator.out.tensor for operator in chain.operators}
    operators: list[Tiled] = []
    for name, operator in zip(chain.names, chain.operators, strict=True):
        early = sorted(results & {v.tensor for role, v in operator.views().items() if role in _EARLY})
        if early:
            raise UserError(
                f"the persistent kernel does not take stage {name}: it loads {early[0]} ahead of every wait, and "
                "another stage computes that"
            )
        if not isinstance(operator, Gemm | Conv2d | Attention):
            raise UserError(
                f"the persistent kernel does not take stage {name}: it is {operator.NAME}; products, convolutions and "
                "attention are what it computes"
            )
        for reason in _refusals(operator):
            raise UserError(f"the persistent kernel does not take stage {name}: {reason}")
        operators.append(operator)
    if attends(operators):
        _check_beside_attention(operators)
    heights = {operator.tile[0] for operator in operators}
    if max(heights) > MOST_ROWS and (heights != {2 * MOST_ROWS} or not all(isinstance(o, Gemm) for o in operators)):
        raise UserError(
            f"the persistent kernel does not take tiles of {', '.join(map(str, sorted(heights)))} rows; it takes up "
            f"to {MOST_ROWS}, or, in products alone, {2 * MOST_ROWS} "
            "in all stages"
        )
    rows = 64 if max(heights) <= 64 else MOST_ROWS
    plans = tuple(_plan(o, rows) for o in operators)
    for name, plan in zip(chain.names, plans, strict=True):
        if not plan.is_supported and not isinstance(plan.operator, Attention):
            raise UserError(
                f"the persistent kernel does not take stage {name}: a tile multiplies {weight_rows(plan.operator)} "
                f"weight rows; in tiles of {plan.operator.tile[0]} rows it takes multiples "
                f"of {plan.least_columns} up to {MOST_COLUMNS}, or {SPLITS[-1]} times that where blocks stand abreast"
            )
    return plans


def attends(operators: Iterable[Operator]) -> bool:
    """Return whether one of the operators is attention."""
    return any(isinstance(operator, Attention) for operator in operators)


def _check_beside_attention(operators: Sequence[Tiled]) -> None:
    """Raises `UserError` where stages beside attention need sums of several warps, or there are none."""
    products = [operator for operator in operators if not isinstance(operator, Attention)]
    if not products:
        raise UserError("the persistent kernel takes attention beside products; this chain has none")
    if max(operator.tile[0] for operator in operators) <= K_BLOCK and any(map(gated, products)):
        raise UserError(
            f"the persistent kernel takes a gate beside attention in tiles of more than {K_BLOCK} rows alone"
        )


def _plan(operator: Tiled, rows: int) -> StagePlan:
    """Return a stage whose tiles as few blocks as can take."""
    if isinstance(operator, Attention):
        return attention_plan(operator, rows)
    columns, k = weight_rows(operator), k_blocks(operator)
    plans = [StagePlan(operator, rows, columns // n, k, abreast=n) for n in SPLITS]
    return next((plan for plan in plans if plan.is_supported), plans[0])


def attention_plan(operator: Attention, rows: int) -> StagePlan:
    """Return the plan of attention, where a block multiplies ``rows`` rows in other stages."""
    plan = StagePlan(operator, rows, 0, 0)
    return replace(plan, k_blocks=plan.query_slots + plan.block_slots * plan.key_blocks(operator.grid[1] - 1))


def weight_rows(operator: Tiled) -> int:
    """Return rows of the weight that a tile multiplies: two for each column of the result with a gate."""
    return operator.tile[1] * (2 if gated(operator) else 1)


def k_blocks(operator: Gemm | Conv2d) -> int:
    """Return blocks of `K_BLOCK` along k."""
    if isinstance(operator, Gemm):
        return -(-operator.a.shape[-1] // K_BLOCK)
    _, r, s, c = operator.weight.shape
    return r * s * (c // K_BLOCK)


def _refusals(operator: Tiled) -> Iterator[str]:
    if isinstance(operator, Attention):
        yield from _attention(operator)
        return
    yield from _gemm(operator) if isinstance(operator, Gemm) else _conv(operator)
    width = operator.tile[1]
    if width % _ITEMS:
        yield f"its tiles have {width} columns; it takes multiples of {_ITEMS}"
    if operator.out.shape[-1] % _ITEMS:
        yield f"its result has {operator.out.shape[-1]} columns; a multiple of {_ITEMS} is stored"
    for role in ("bias", *NORM_ROLES):
        view = operator.views().get(role)
        if view is not None and (view.strides != (1,) or view.offset % _ITEMS):
            yield f"{view.tensor} is not contiguous, or begins where 16 bytes do not"


def _gemm(operator: Gemm) -> Iterator[str]:
    a, b = operator.a, operator.b
    if len(a.shape) != 2 or operator.split_k > 1:
        yield "it has a batch, or split_k; the kernel splits k itself"
    elif b.strides[0] != 1:
        yield (
            f"weight {b.tensor} has strides {b.strides}; the kernel takes [k, n] with k innermost, as nn.Linear keeps "
            "it"
        )
    else:
        yield from _alignment_faults((a, operator.out, operator.residual), b, b.strides[1:])


def _conv(operator: Conv2d) -> Iterator[str]:
    x, weight = operator.x, operator.weight
    _, p, q, _ = operator.out.shape
    if (
        weight.strides != View.contiguous(weight.tensor, weight.shape, weight.dtype).strides
        or weight.shape[3] % K_BLOCK
    ):
        yield (
            f"weight {weight.tensor} is {weight.shape} with strides {weight.strides}; it takes contiguous ones of a "
            f"multiple of {K_BLOCK} channels"
        )
    elif (box := Box.of(operator)) is None:
        yield (
            f"a tile has {operator.tile[0]} pixels; with rows of {q} and images of {p} rows, tiles are parts of a "
            "row, whole rows or whole images"
        )
    elif operator.stride > _STEP or (max(box.columns, box.rows) - 1) * operator.stride >= _BOX:
        yield (
            f"its tiles of {box.rows} x {box.columns} pixels are read at stride {operator.stride}; TMA takes strides "
            f"up to {_STEP} and {_BOX} pixels from the first on"
        )
    for view in (operator.out, operator.residual):
        if view is not None and (view.strides[1] != q * view.strides[2] or view.strides[0] != p * view.strides[1]):
            yield f"there are gaps between the pixels of {view.tensor}, which has strides {view.strides}"
    yield from _alignment_faults((x, operator.out, operator.residual), weight, weight.strides[:3])


def _attention(operator: Attention) -> Iterator[str]:
    _, rows, columns = operator.q.shape
    if columns not in HEADS:
        yield f"its heads have {columns} columns; it takes {' or '.join(map(str, HEADS))}"
    elif operator.rows not in (K_BLOCK, 2 * K_BLOCK) and operator.rows < rows:
        # Keys come in blocks of 64, and of those behind a tile's own rows nothing says that they have been computed.
        yield f"its tiles have {operator.rows} rows; it takes {K_BLOCK} or {2 * K_BLOCK}, or one tile for all rows"
    elif operator.factor <= 0:
        yield f"it multiplies scores by {operator.factor}; it takes positive factors"
    yield from _alignment_faults((operator.q, operator.k, operator.v, operator.out))


def _alignment_faults(
    views: Sequence[View | None], weight: View | None = None, strides: Sequence[int] = ()
) -> Iterator[str]:
    rows: list[tuple[View, Sequence[int]]] = [(v, v.strides[:-1]) for v in views if v is not None]
    for view, outer in [*rows, *([] if weight is None else [(weight, strides)])]:
        if view is not weight and view.strides[-1] != 1:
            yield f"{view.tensor} has strides {view.strides}; rows are of unit stride"
        elif not all(outer):
            yield f"{view.tensor} has strides {view.strides}; TMA takes no stride of 0"
        elif any(stride % _ITEMS for stride in (*outer, view.offset)):
            yield (
                f"{view.tensor} has strides {view.strides} and offset {view.offset}; TMA takes multiples of {_ITEMS} "
                "elements"
            )
