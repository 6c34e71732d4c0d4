"""A plan as the kernel reads it: the header that it is compiled with, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tileprof.errors import UserError
from tileprof.runtime.encoder.plan import K_CHUNK, ROWS, Finish, Plan, StagePlan, Tiled, parts_of
from tileprof.runtime.encoder.program import Attention, Matrix

SHARED_BYTES: Final = 227 * 1024
ATTENTION_BYTES: Final = (ROWS + 2 * 128) * 144
_EPILOGUES: Final = {"none": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3, "relu": 4}
_PRODUCT: Final = 0
_ATTENTION: Final = 1
_FINISH: Final = 2
PARAMETERS: Final = 128
PARAMETER: Final = 1 << 63
"""Set in an address that is a parameter's number; bytes behind it are counted from bit 8 on."""

RECORDS: Final = 2

STAGE: Final = np.dtype(
    [
        *(
            (name, np.uint64)
            for name in (
                "activations",
                "gamma",
                "beta",
                "normalised",
                "bias",
                "residual",
                "out",
                "partials",
                "key",
                "value",
                "mask",
                "out_wiped",
                "normalised_wiped",
                "unused",
            )
        ),
        *(
            (name, np.int32)
            for name in (
                "kind",
                "rows",
                "columns",
                "depth",
                "activation_pitch",
                "residual_pitch",
                "out_pitch",
                "epilogue",
            )
        ),
        ("epsilon", np.float32),
        ("scale", np.float32),
        ("masked", np.float32),
        *(
            (name, np.int32)
            for name in (
                "causal",
                "mask_batch",
                "mask_head",
                "mask_row",
                "keys",
                "splits",
                "width",
                "generation",
                "unused_2",
            )
        ),
    ]
)
"""`Stage` of tables.cuh."""

WORKSPACE: Final = 1 << 62
"""Set in an address that is in the memory between stages."""

Table = npt.NDArray[Any]
Address = Callable[[str], int]
"""The device address of a tensor by name, with `WORKSPACE` between stages; or `PARAMETER` and a parameter's number."""


@dataclass(frozen=True, slots=True)
class Options:
    """``delay_ns``: for tests, tasks sleep up to so long. ``stamps``: times of every task are written.

    ``wiping_warp``: memory is made absent by a warp of its own, not by those that store.
    """

    timeout_ns: int = 2_000_000_000
    delay_ns: int = 0
    stamps: bool = False
    wiping_warp: bool = False


def header(plan: Plan, options: Options) -> str:
    """stages.h: sizes, and what all products of the program have in common.

    Raises `UserError` for a program that mixes epilogues, masks or layouts of weights.
    """
    program = plan.program
    products = program.products()
    epilogues = {product.epilogue for product in products} - {"none"}
    masks = {0 if s.mask is None else 1 if s.mask.boolean else 2 for s in program.stages if isinstance(s, Attention)}
    layouts = {product.k_major for product in products}
    if len(epilogues) > 1 or len(masks) > 1 or len(layouts) > 1:
        raise UserError(f"{program.name} mixes epilogues, masks or layouts of weights")
    slot = 2 * K_CHUNK * plan.width
    area = max(ROWS * (2 * plan.activation_columns + 16), 4 * ROWS * (plan.width + 8) * 4, ATTENTION_BYTES)
    row = max(128, *(stage.columns for stage in plan.stages if isinstance(stage, Finish)), 128)
    record = STAGE.itemsize + 16 + 6 * row
    free = SHARED_BYTES - 1024 - area - RECORDS * record - 64
    slots = free // (slot + 24) // plan.cluster * plan.cluster
    return f"""// Made by source.py.
#define BFLOAT16 {int(program.dtype == "bfloat16")}
constexpr bool K_MAJOR = {str(layouts.pop()).lower()};
constexpr int EIGHTS = {plan.width // 8};
constexpr int EPILOGUE = {_EPILOGUES[max(epilogues, default="none")]}, MASK_KIND = {max(masks, default=0)};
constexpr int CLUSTER = {plan.cluster}, SLOTS = {slots}, ACTIVATION_COLUMNS = {plan.activation_columns};
constexpr int ROW_COLUMNS = {row}, STAMPS = {int(options.stamps)};
constexpr bool WIPING_WARP = {str(options.wiping_warp).lower()};
constexpr unsigned SLOT_BYTES = {slot}, AREA_BYTES = {area}, SHARED_BYTES = {SHARED_BYTES};
constexpr unsigned long long TIMEOUT_NS = {options.timeout_ns}ull, DELAY_NS = {options.delay_ns}ull;
"""


def task_tables(plan: Plan) -> tuple[Table, Table]:
    """Return tasks, block by block, and where each block's end."""
    tasks = [plan.tasks[number] for block in plan.blocks for number in block]
    rows = [(task.stage, task.row, task.column, task.part) for task in tasks]
    return np.array(rows, np.int32).reshape(-1, 4), np.cumsum([0, *map(len, plan.blocks)]).astype(np.int32)


def stream_tables(plan: Plan) -> tuple[Table, Table]:
    """Return what each cluster multiplies, `Stream` of kernel.cu, and where each cluster's ends."""
    rows, ends = [], [0]
    for first in range(0, len(plan.blocks), plan.cluster):
        for number in plan.blocks[first]:
            task = plan.tasks[number]
            stage = plan.stages[task.stage]
            if isinstance(stage, Tiled):
                share = stage.product.depth // stage.splits
                chunks, size = -(-share // K_CHUNK), 2 * K_CHUNK * stage.width
                rows.append((task.stage, task.column, task.part, chunks, size, 0, 0, 0))
        ends.append(len(rows))
    return np.array(rows, np.int32).reshape(-1, 8), np.array(ends, np.int32)


def stage_table(plan: Plan, generations: Sequence[int], address: Address, wiped: Address) -> Table:
    """Return `Stage` rows; ``address`` names where tensors are, partial sums too, and ``wiped`` where tasks that write
    one make memory absent, 0 for nowhere.
    """
    table = np.zeros(len(plan.stages), STAGE)
    for row, stage, generation in zip(table, plan.stages, generations, strict=True):
        row["generation"] = generation
        _put(row, stage, address, wiped)
    return table


def _at(matrix: Matrix, address: Address) -> int:
    place = address(matrix.tensor)
    return place + (2 * matrix.column << 8 if place & PARAMETER else 2 * matrix.column)


def _wiped_at(matrix: Matrix, wiped: Address) -> int:
    place = wiped(matrix.tensor)
    return place + 2 * matrix.column if place else 0


def _put(row: Any, stage: StagePlan, address: Address, wiped: Address) -> None:
    row["rows"] = stage.product.rows if isinstance(stage, Tiled) else stage.rows
    match stage:
        case Tiled(product, source, width, splits, parts):
            row["kind"], row["columns"] = _PRODUCT, product.columns
            row["activations"], row["activation_pitch"] = _at(source, address), source.pitch
            row["depth"], row["width"], row["splits"] = product.depth // splits, width, splits
            if parts:
                row["partials"] = address(parts_of(product.name))
            else:
                row["out"], row["out_pitch"] = _at(product.out, address), product.out.pitch
                row["out_wiped"] = _wiped_at(product.out, wiped)
                row["bias"] = 0 if product.bias is None else address(product.bias)
                row["epilogue"] = _EPILOGUES[product.epilogue]
        case Finish():
            row["kind"], row["columns"], row["width"], row["splits"] = (
                _FINISH,
                stage.columns,
                stage.columns,
                stage.splits,
            )
            row["partials"] = address(parts_of(stage.name)) if stage.splits else 0
            row["bias"] = 0 if stage.bias is None else address(stage.bias)
            row["epilogue"] = _EPILOGUES[stage.epilogue]
            if stage.residual is not None:
                row["residual"], row["residual_pitch"] = _at(stage.residual, address), stage.residual.pitch
            if stage.out is not None:
                row["out"], row["out_pitch"] = _at(stage.out, address), stage.out.pitch
                row["out_wiped"] = _wiped_at(stage.out, wiped)
            if stage.norm is not None and stage.normed is not None:
                row["gamma"], row["beta"] = address(stage.norm.gamma), address(stage.norm.beta)
                row["epsilon"], row["normalised"] = stage.norm.epsilon, address(stage.normed)
                row["normalised_wiped"] = wiped(stage.normed)
        case Attention():
            row["kind"], row["columns"] = _ATTENTION, stage.heads
            row["activations"], row["activation_pitch"] = _at(stage.query, address), stage.query.pitch
            row["key"], row["value"] = _at(stage.key, address), _at(stage.value, address)
            row["residual_pitch"] = stage.key.pitch
            row["out"], row["out_pitch"] = _at(stage.out, address), stage.out.pitch
            row["out_wiped"] = _wiped_at(stage.out, wiped)
            row["scale"], row["causal"], row["keys"] = stage.scale, stage.causal, stage.length
            row["splits"] = stage.heads // stage.key_heads
            if stage.cache_outputs is not None:
                row["normalised"], row["partials"] = map(address, stage.cache_outputs)
            if (mask := stage.mask) is not None:
                row["mask"], row["masked"] = address(mask.tensor), mask.false
                row["mask_batch"], row["mask_head"], row["mask_row"] = mask.strides
