"""Writes the header that kernel.cu includes: the constants of every stage, the layout of shared memory, and the widths
of wgmma.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, e, log2, prod
from typing import Final

import numpy as np

from tileprof.errors import UserError
from tileprof.runtime.persistent.dealing import Dealer, constants
from tileprof.runtime.persistent.plan import K_BLOCK, Box, Plan, StagePlan, gated, taps_of
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm

SHARED_BYTES: Final = 227 * 1024
"""Most that a block of sm_90 gets."""

_ROW_BYTES: Final = 2 * K_BLOCK
_RESERVED_BYTES: Final = 2048
"""Bytes kept for barriers, and for beginning where 1024 divides."""

_MOST_SLOTS: Final = 16
_CHUNK_BYTES: Final = 32 * 16
"""A warp's sums that another block finishes: sixteen rows of eight columns."""

_MOST_BIAS_BYTES: Final = 4 * 1024
"""Biases in shared memory, so that the end of a tile does not wait for L2: a wait for a semaphore empties L1."""

_ALONE_BYTES: Final = 8 * 16 * 2 * 64
"""Buffers where no sums are exchanged: one per warp, of sixteen rows of 64 halves."""

_HANDED_BUFFERS: Final = 4
_HANDED_BYTES: Final = 64 * 2 * 64
"""Buffers in the blocks of a pair: two per warpgroup, of 64 rows of 64 halves."""

_EPILOGUES: Final = ("none", "relu", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True, slots=True)
class Options:
    """The use of a block's shared memory, and the requests of tests.

    Sums go to other blocks through ``buffers`` buffers of at most ``buffer_bytes`` each, or one where all of them fit,
    as many columns at a time as fit. ``a_slots``: activation slots, 0 for what keeps most under way; the other memory
    holds weights. ``under_way_bytes``: of weights that all blocks together ask memory for at a time, 0 for no limit;
    ``ahead_bytes``: while they are ahead of their activations. ``lag``: products under way behind the newest.
    ``programmatic``: blocks may start where those of the kernel in front have ended, and wait there. ``dealer``: who
    says which cluster takes which task. ``claims``: clusters tell the co-pilot which command they have taken.
    ``delay_ns``: tasks sleep up to so long; ``timeout_ns``: a wait that lasts longer gives up.
    """

    buffers: int = 2
    buffer_bytes: int = 32 * 1024
    a_slots: int = 0
    lag: int = 1
    under_way_bytes: int = 9_000_000
    ahead_bytes: int = 4_000_000
    programmatic: bool = True
    dealer: Dealer = Dealer.LISTS
    claims: bool = False
    delay_ns: int = 0
    timeout_ns: int = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """Shared memory of a block, beside what is reserved: slots of the two rings and buffers for sums."""

    a_slots: int
    a_bytes: int
    b_slots: int
    b_bytes: int
    buffers: int
    buffer_bytes: int

    @classmethod
    def of(cls, plan: Plan, options: Options) -> Layout:
        """Raises `UserError` where two slots of each ring do not fit."""
        stages = products_of(plan)
        widths = [stage.columns for stage in stages]
        a_bytes = -(-max(_box_rows(stage, plan) for stage in plan.stages) * _ROW_BYTES // 1024) * 1024
        b_bytes = max(widths) * _ROW_BYTES
        passes = [_passes(stage, plan, options) for stage in stages]
        buffers = 1 if alone(plan) or all(p.count == 1 for p in passes) else options.buffers
        buffer_bytes = max(p.buffer_bytes for p in passes)
        if paired(plan):
            buffers, buffer_bytes = _HANDED_BUFFERS, _HANDED_BYTES
        free_bytes = SHARED_BYTES - _RESERVED_BYTES - buffers * buffer_bytes - _bias_bytes(plan)
        # wgmma reads whole blocks of rows, of which those beyond a slot's are garbage that is not stored: behind the
        # last slot lies the other ring.
        spare = max(0, max(_reach(stage, plan) for stage in stages) * _ROW_BYTES - a_bytes - 2 * b_bytes)
        taps = min(_slot_taps(stage, plan) for stage in stages)
        # a halo for all taps takes long to multiply while the next one is loaded
        whole = taps > max(stage.share(plan.split) for stage in stages)
        best: tuple[tuple[int, int], int, int] | None = None
        # Blocks of keys and values are multiplied, one or two at a time, while the next comes.
        least = max([2, *(_attention_slots(stage) for stage in plan.stages if isinstance(stage.operator, Attention))])
        for a_slots in range(least, _MOST_SLOTS + 1):
            b_slots = min(_MOST_SLOTS, (free_bytes - spare - a_slots * a_bytes) // b_bytes)
            if b_slots < 2 or options.a_slots not in {0, a_slots}:
                continue
            # What is under way, in columns of weights: a block of activations is needed for each of weights, however
            # narrow, and takes as long to come.
            ahead = min(min(taps * (a_slots - whole), b_slots * (max(widths) // width)) * width for width in widths)
            best = max(best or ((0, 0), 0, 0), ((ahead, b_slots), a_slots, b_slots))
        if best is None:
            raise UserError(
                f"tiles of {plan.stages[0].rows} rows that multiply {max(widths)} weight rows leave no memory for "
                "rings; take narrower tiles"
            )
        return cls(best[1], a_bytes, best[2], b_bytes, buffers, buffer_bytes)


def k_blocks_under_way(stages: Sequence[StagePlan], split: int, options: Options) -> list[int]:
    """Return K-blocks per stage that the rings hold in a launch of these stages. Raises `UserError` where they do not
    fit.
    """
    none = np.zeros(1, np.int32)
    layout = Layout.of(Plan(split, 1, tuple(stages), none, none, none, none, none, none, 0, none), options)
    return [
        min(layout.a_slots, layout.b_slots * (layout.b_bytes // (s.columns * _ROW_BYTES)))
        if s.columns
        else layout.a_slots
        for s in stages
    ]


@dataclass(frozen=True, slots=True)
class _Passes:
    """A tile's end: ``segments`` runs of columns. ``columns`` of a run at a time go through a buffer to the block
    that finishes them: each finishes ``own`` groups of eight, and ``warps`` have rows of a tile.
    """

    segments: int
    segment: int
    columns: int
    own: int
    warps: int
    buffer_bytes: int

    @property
    def count(self) -> int:
        return -(-8 * self.own // self.columns)


def _passes(stage: StagePlan, plan: Plan, options: Options) -> _Passes:
    segments = 4 if stage.interleaved else 2 if gated(stage.operator) or stage.rows == 64 else 1
    segment, parts, chunks = stage.columns // segments, parts_of(plan), _chunks_per_warp(stage, segments)
    warps = -(-_height(stage, plan) // 16) * (2 if stage.rows == 64 else 1)
    if alone(plan) or stage.abreast > 1:  # no sums go through a buffer
        return _Passes(segments, segment, segment, segment // 8, warps, _ALONE_BYTES if alone(plan) else 0)
    own, fitting = -(-segment // 8 // parts), []
    for groups in range(1, own + 1):
        bytes_ = max(1, parts - 1) * groups * chunks * warps * _CHUNK_BYTES
        if bytes_ <= options.buffer_bytes or groups == 1:
            fitting.append(_Passes(segments, segment, 8 * groups, own, warps, bytes_))
    fewest = min(p.count for p in fitting)
    return next(p for p in fitting if p.count == fewest)


def _chunks_per_warp(stage: StagePlan, segments: int) -> int:
    """Return segments of which a warpgroup has sums."""
    return 2 if segments == 4 or (segments == 2 and stage.rows == 128) else 1


def _box_rows(stage: StagePlan, plan: Plan) -> int:
    """Return rows that TMA writes into a slot of activations."""
    operator = stage.operator
    if isinstance(operator, Attention):
        return stage.rows
    if isinstance(operator, Gemm):
        return min(stage.rows, operator.tile[0])
    halo, box = stage.halo(plan.split), Box.of(operator)
    assert box is not None
    return halo.pixels if halo else box.columns * box.rows * box.images


def _attention_slots(stage: StagePlan) -> int:
    """Return slots of activations that attention takes at least; see attention.cuh."""
    return stage.block_slots * (3 if stage.operator.tile[0] <= K_BLOCK else 2)


def _height(stage: StagePlan, plan: Plan) -> int:
    """Return rows of a block's product that may hold something."""
    halo = stage.halo(plan.split)
    return halo.height if halo else min(stage.rows, tile_of(stage)[0])


def _slot_taps(stage: StagePlan, plan: Plan) -> int:
    """Return blocks of k that a slot of activations is for."""
    halo = stage.halo(plan.split)
    return halo.taps if halo else 1


def _group(stage: StagePlan, plan: Plan, layout: Layout) -> int:
    """Return blocks of k that are multiplied together."""
    share = stage.share(plan.split)
    return share if layout.b_slots > 2 * share else 1  # two groups hold slots, and one more has to come


def _reach(stage: StagePlan, plan: Plan) -> int:
    """Return rows from the first of a slot of activations to the last that a product may read."""
    halo = stage.halo(plan.split)
    if halo is None:
        return stage.rows
    last = halo.pixels // halo.images * (halo.images - 1)  # where the last image begins
    return (
        last + stage.rows // halo.images + (halo.rows - halo.out_rows) * halo.columns + halo.columns - halo.out_columns
    )


def paired(plan: Plan) -> bool:
    """Return whether pairs of blocks take half of a tile's rows each, and share its weights.

    Raises `UserError` for tiles of other heights, or of unequal ones.
    """
    heights = {tile_of(stage)[0] for stage in plan.stages}
    if max(heights) <= plan.stages[0].rows:
        return False
    if plan.split != 2 or heights != {2 * plan.stages[0].rows}:
        raise UserError(
            f"tiles of {max(heights)} rows take clusters of pairs of blocks, and all stages alike; these are "
            f"{sorted(heights)} rows, {plan.split} blocks"
        )
    return True


def products_of(plan: Plan) -> list[StagePlan]:
    """Return the stages that multiply by weights."""
    return [stage for stage in plan.stages if not isinstance(stage.operator, Attention)]


def parts_of(plan: Plan) -> int:
    """Return blocks that share k of a tile, but where they stand abreast."""
    return plan.split // 2 if paired(plan) else plan.split


def alone(plan: Plan) -> bool:
    """Return whether every warp finishes what it has multiplied: nothing of a sum, and not the other half of a gate, is
    another's.
    """
    return parts_of(plan) == 1 and all(
        stage.rows == 128 or tile_of(stage)[1] == stage.columns for stage in products_of(plan)
    )


def tile_of(stage: StagePlan) -> tuple[int, int]:
    """Return rows and columns of a stage's tiles."""
    return stage.operator.tile


def header(plan: Plan, options: Options) -> str:
    """Return the text of stages.h."""
    layout = Layout.of(plan, options)
    dtype = plan.stages[0].operator.out.dtype
    values = {
        "SPLIT": plan.split,
        "ROWS": plan.stages[0].rows,
        "STAGES": len(plan.stages),
        "SHARED_BYTES": SHARED_BYTES,
        "A_SLOTS": layout.a_slots,
        "A_BYTES": layout.a_bytes,
        "B_SLOTS": layout.b_slots,
        "B_BYTES": layout.b_bytes,
        "PAIRED": int(paired(plan)),
        "ALONE": int(alone(plan)),
        "BUFFERS": layout.buffers,
        "BUFFER_BYTES": layout.buffer_bytes,
        "DELAY_NS": options.delay_ns,
        "LAG": options.lag,
        "BIAS_BYTES": _bias_bytes(plan),
        "MOST_K_BLOCKS": max(stage.k_blocks for stage in plan.stages),
    } | constants(plan, options.dealer, claims=options.claims)
    lines = [
        f"#define BFLOAT16 {int(dtype == 'bfloat16')}",
        *(f"constexpr int {name} = {value};" for name, value in values.items()),
        f"constexpr unsigned long long TIMEOUT_NS = {options.timeout_ns};",
        f"enum {{ {', '.join(name.upper() for name in _EPILOGUES)} }};",
        "template <int> struct Stage;",
        "template <int> struct Multiply;",
        *(_stage(number, stage, plan, options, layout) for number, stage in enumerate(plan.stages)),
        *(multiply(width, dtype) for width in sorted({_width(stage) for stage in products_of(plan)})),
    ]
    return "\n".join(lines) + "\n"


def _bias_of(stage: StagePlan) -> int:
    """Return bytes of a stage's bias."""
    bias = stage.operator.views().get("bias")
    return 0 if bias is None else 2 * bias.shape[0]


def _bias_bytes(plan: Plan) -> int:
    """Return bytes of the biases of all stages in shared memory: all or none."""
    total = sum(_bias_of(stage) for stage in plan.stages)
    return total if total <= _MOST_BIAS_BYTES and not paired(plan) else 0


def _under_way(stage: StagePlan, plan: Plan, options: Options, slot_bytes: int) -> tuple[int, int]:
    """Return slots that the blocks of a stage may have under way, and those of them that are ahead of their
    activations; 0: as many as there are.

    Limited where memory is the limit: for products that stream their weights once, by so few rows that activations are
    no load beside them.
    """
    streams = not paired(plan) and all(
        isinstance(s.operator, Gemm) and s.operator.out.shape[0] <= min(s.operator.tile[0], 64) for s in plan.stages
    )
    if not streams or not options.under_way_bytes:
        return 0, 0
    slots = min(plan.clusters, stage.operator.tiles) * plan.split * slot_bytes
    return ceil(options.under_way_bytes / slots), max(1, round(options.ahead_bytes / slots))


def _width(stage: StagePlan) -> int:
    """Return columns of a warpgroup: with 64 rows the two share the columns, with 128 the rows."""
    return stage.columns // (2 if stage.rows == 64 else 1)


def _stage(number: int, stage: StagePlan, plan: Plan, options: Options, layout: Layout) -> str:
    operator = stage.operator
    if isinstance(operator, Attention):
        return _attention_stage(number, stage, operator)
    *outer, n = operator.out.shape
    m = prod(outer)
    values: dict[str, object] = {
        "INDEX": number,
        "M": m,
        "N": n,
        "K_BLOCKS": stage.k_blocks,
        "CUT": stage.cut,
        "TILES": operator.tiles,
        "TAPS": 1,
        "ROW_STEP": 0,
        "GROUP_STEP": 64,
        "IMAGES": 1,
        "ONE_ROW": int(m <= operator.tile[0]),
        "CONVOLUTION": int(isinstance(operator, Conv2d)),
        "ATTENTION": 0,
    }
    values |= _tile_values(stage, plan, options, layout)
    values |= _store_values(stage, operator, plan, options)
    values |= _epilogue_values(number, operator, plan)
    if isinstance(operator, Conv2d):
        values |= _window_values(stage, operator, plan)
    members = _members(values)
    if isinstance(operator, Conv2d) and operator.mean is not None:
        members += f"    static constexpr float EPSILON = {operator.epsilon:.9e}f;\n"
    return f"template <> struct Stage<{number}> {{\n{members}}};"


def _members(values: Mapping[str, object]) -> str:
    return "".join(f"    static constexpr int {name} = {value};\n" for name, value in values.items())


def _attention_stage(number: int, stage: StagePlan, operator: Attention) -> str:
    _, m, columns = operator.q.shape
    values = {
        "INDEX": number,
        "M": m,
        "N": columns,
        "K_BLOCKS": stage.k_blocks,
        "CUT": 0,
        "CONVOLUTION": 0,
        "ATTENTION": 1,
        "ABREAST": 1,
        "SHARE": 1,
        "SLOT_TAPS": 1,
        "TILE_ROWS": operator.rows,
        "TILE_COLUMNS": columns,
        "BLOCK_ROWS": operator.rows,
        "BIAS": 0,
        "BIAS_AT": 0,
        "GATED": 0,
        "CAUSAL": int(operator.causal),
        "KEY_ROWS": operator.key_rows,
        "SHARERS": operator.q.shape[0] // operator.k.shape[0],
        "QUERY_SLOTS": stage.query_slots,
        "BLOCK_SLOTS": stage.block_slots,
        "OUT_HEAD": operator.out.strides[0],
        "OUT_ROW": operator.out.strides[1],
    }
    scale = f"    static constexpr float SCALE = {operator.factor * log2(e):.9e}f;  // of powers of 2\n"
    return f"template <> struct Stage<{number}> {{\n{_members(values)}{scale}}};"


def _tile_values(stage: StagePlan, plan: Plan, options: Options, layout: Layout) -> dict[str, object]:
    """Return how a tile is cut and loaded: its blocks, and the slots of its weights."""
    operator, block_bytes = stage.operator, stage.columns * _ROW_BYTES
    pack = layout.b_bytes // block_bytes
    under_way, ahead = _under_way(stage, plan, options, pack * block_bytes)
    return {
        "SLOT_TAPS": _slot_taps(stage, plan),
        "SHARE": stage.share(plan.split),
        "GROUP": _group(stage, plan, layout),
        "TILE_ROWS": operator.tile[0],
        "ABREAST": stage.abreast,
        "INTERLEAVED": int(stage.interleaved),
        "BLOCK_ROWS": _height(stage, plan),
        "BOX_ROWS": _box_rows(stage, plan),
        "TILE_COLUMNS": operator.tile[1],
        "COLUMNS": stage.columns,
        "WIDTH": _width(stage),
        "BLOCK_BYTES": block_bytes,
        "PACK": pack,
        "UNDER_WAY": min(layout.b_slots, under_way),
        "UNDER_WAY_AHEAD": min(layout.b_slots, ahead),
    }


def _store_values(stage: StagePlan, operator: Gemm | Conv2d, plan: Plan, options: Options) -> dict[str, object]:
    """Return the passes in which a tile's result is stored."""
    passes = _passes(stage, plan, options)
    return {
        "SEGMENTS": passes.segments,
        "MINE": _chunks_per_warp(stage, passes.segments),
        "SEGMENT": passes.segment,
        "PASS_COLUMNS": passes.columns,
        "PASSES": passes.count,
        "GROUPS": passes.segment // 8,
        "OWN": passes.own,
        "PASS_GROUPS": passes.columns // 8,
        "WARPS": passes.warps,
        "OUT_ROW": operator.out.strides[-2],
        "RESIDUAL_ROW": operator.residual.strides[-2] if operator.residual else 0,
    }


def _epilogue_values(number: int, operator: Gemm | Conv2d, plan: Plan) -> dict[str, object]:
    """Return what is computed with the sums before they are stored."""
    gate = gated(operator)
    return {
        "EPILOGUE": "NONE" if gate else operator.epilogue.upper(),
        "GATED": int(gate),
        "BIAS": int(operator.bias is not None),
        "BIAS_AT": sum(_bias_of(s) for s in plan.stages[:number]),
        "RESIDUAL": int(operator.residual is not None),
        "NORM": int(isinstance(operator, Conv2d) and operator.mean is not None),
        "MULTIPLIES": int(operator.combine == "multiply"),
    }


def _window_values(stage: StagePlan, operator: Conv2d, plan: Plan) -> dict[str, object]:
    """Return the window of a convolution, and where a tile's rows lie in its halo."""
    values: dict[str, object] = {
        "TAPS": taps_of(stage), "S": operator.weight.shape[2], "P": operator.out.shape[1],
        "Q": operator.out.shape[2], "STRIDE": operator.stride, "PADDING": operator.padding,
    }  # fmt: skip
    if halo := stage.halo(plan.split):
        values |= {
            "ROW_STEP": halo.columns,
            "ROW_PIXELS": halo.out_columns,
            "IMAGE_PIXELS": halo.out_columns * halo.out_rows,
        }
        if halo.images > 1:
            values |= {"IMAGES": halo.images, "GROUP_STEP": halo.columns * halo.rows}
    return values


def multiply(width: int, dtype: str) -> str:
    """Return ``wgmma`` of 64 rows, ``width`` columns and 16 of k: sums += a * b."""
    half = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    count = width // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(sums[{i}])' for i in range(count))
    return f"""template <> struct Multiply<{width}> {{
    static __device__ __forceinline__ void add(float (&sums)[{count}], unsigned long long a, unsigned long long b) {{
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{half}.{half} {{{registers}}}, %{count}, %{count + 1}, "
            "1, 1, 1, 0, 0;"
            : {operands}
            : "l"(a), "l"(b));
    }}
}};"""
