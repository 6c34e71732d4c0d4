"""Launches of the Triton kernels of stage operators: constants, warps, and which hooks are compiled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tileprof.errors import UserError
from tileprof.runtime.kernels.attention import attention_kernel
from tileprof.runtime.kernels.conv import conv_kernel
from tileprof.runtime.kernels.elementwise import pointwise_kernel, reduce_kernel, rows_kernel
from tileprof.runtime.kernels.gemm import gemm_kernel
from tileprof.runtime.stages import dropout
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.epilogues import GATE
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.operator import Operator
from tileprof.runtime.stages.pointwise import Pointwise
from tileprof.runtime.stages.reduce import Reduce
from tileprof.runtime.stages.rows import Norm, Softmax
from tileprof.runtime.stages.view import View

TIMEOUT_NS: Final = 2_000_000_000
"""A wait that lasts this long has no end: kernels take milliseconds."""

SHARED_BYTES: Final = 200 * 1024
"""Shared memory that a block's pipeline may take on sm_90, which has 227 KiB a block; the rest is the epilogue's."""

_WIDEST_HEAD: Final = 256
"""Elements of a head: the running sum of a block's rows stays in registers."""

_WIDEST_ROW: Final = 65536
"""Elements of a row that one block holds in registers."""


_REACH: Final = 2**31 - 2**22
"""Elements that an offset of 32 bits reaches, less those of a last block that is masked."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """The parameters that a stage's kernel compiles in beside arithmetic: those of `tileprof.runtime.sync.device`."""

    STAGE: int
    TILES: int
    WIDTH: int = 0
    POSTS: int = 0
    ORDERED: bool = False
    STARTED: int = -1
    TRIGGER: bool = False
    PDL: bool = False
    GRID_WAIT: bool = False
    DELAY_NS: int = 0
    TIMEOUT_NS: int = TIMEOUT_NS


@dataclass(frozen=True, slots=True)
class Kernel:
    """A Triton kernel with everything bound but tensors and hooks; ``roles`` in the order of its pointer parameters."""

    function: Any
    roles: tuple[str, ...]
    constants: Mapping[str, Any]
    warps: int

    def launch(self, tensors: Mapping[str, Any], shared: tuple[Any, ...], hooks: Hooks) -> Any:
        """Launch on the current stream; ``shared``: seed, order, waits, posts, flags, runs, record. Returns Triton's
        compiled kernel.
        """
        # A role that the operator lacks is never dereferenced; any pointer stands in for it.
        pointers = (tensors.get(role, tensors["out"]) for role in self.roles)
        more = {"launch_pdl": True} if hooks.PDL else {}
        return self.function[(hooks.TILES,)](
            *pointers, *shared, **self.constants, **asdict(hooks), num_warps=self.warps, **more
        )


def kernel_of(operator: Operator, *, ahead: bool = False) -> Kernel:
    """The kernel of an operator; ``ahead``: a product loads what depends on nothing before it waits.

    Raises `UserError` for layouts, dtypes and tiles that the kernels do not take.
    """
    match operator:
        case Gemm():
            return _gemm(operator, ahead=ahead)
        case Conv2d():
            return _conv(operator)
        case Pointwise():
            return _pointwise(operator)
        case Reduce():
            return _reduce(operator)
        case Norm() | Softmax():
            return _rows(operator)
        case Attention():
            return _attention(operator)
    raise UserError(f"{operator.NAME} has no GPU kernel")


def _gemm(operator: Gemm, *, ahead: bool) -> Kernel:
    a, b, out, residual = operator.a, operator.b, operator.out, operator.residual
    _check_rows("gemm", a, out, residual, operator.bias)
    _check_halves("gemm", a, b, *(() if operator.split_k > 1 else (out,)))
    height, width, sides = *_sides("gemm", operator.tile, 16), 2 if operator.epilogue == GATE else 1
    depth_k = 64 if height * width * sides >= 128 * 128 else 128
    stage_bytes = 2 * depth_k * (height + width * sides)
    k = a.shape[-1]
    batch = len(a.shape) == 3
    part = (
        k if operator.split_k == 1 else -(-k // (operator.split_k * operator.split_multiple)) * operator.split_multiple
    )
    constants = {
        "M": out.shape[-2],
        "N": out.shape[-1],
        "K": k,
        "PART": part,
        "A_Z": a.strides[0] if batch else 0,
        "A_ROW": a.strides[-2],
        "B_Z": b.strides[0] if batch else 0,
        "B_INNER": b.strides[-2],
        "B_COLUMN": b.strides[-1],
        "OUT_Z": out.strides[0] if len(out.shape) == 3 else 0,
        "OUT_ROW": out.strides[-2],
        "RESIDUAL_Z": residual.strides[0] if residual and batch else 0,
        "RESIDUAL_ROW": residual.strides[-2] if residual else 0,
        "HAS_BIAS": operator.bias is not None,
        "HAS_RESIDUAL": residual is not None,
        "MULTIPLY": operator.combine == "multiply",
        "EPILOGUE": operator.epilogue,
        "TILE_M": height,
        "TILE_N": width,
        "TILE_K": depth_k,
        "DEPTH": max(2, min(6, (SHARED_BYTES - (stage_bytes if ahead else 0)) // stage_bytes)),
        "ROWS_ALONG_X": operator.rows_along == "x",
        "AHEAD": ahead,
    }
    warps = 8 if height * width * sides >= 128 * 128 else 4
    return Kernel(gemm_kernel, ("a", "b", "out", "bias", "residual"), constants, warps)


def _conv(operator: Conv2d) -> Kernel:
    if operator.mean is not None:
        raise UserError("the Triton kernel of conv2d has no batch norm as its epilogue")
    x, weight, out, residual = operator.x, operator.weight, operator.out, operator.residual
    _check_rows("conv2d", x, weight, out, residual, operator.bias)
    _check_halves("conv2d", x, weight, out)
    for view in (out, residual):
        _, p, q, _ = out.shape
        if view is not None and (view.strides[1] != q * view.strides[2] or view.strides[0] != p * view.strides[1]):
            raise UserError(
                f"the conv2d kernel takes out and residual without gaps between pixels; {view.tensor} has strides "
                f"{view.strides}"
            )
    _check_reach("conv2d", replace(x, shape=(1, *x.shape[1:])))
    height, width = _sides("conv2d", operator.tile, 16)
    depth_k = min(64, max(16, 1 << (x.shape[3] - 1).bit_length()))
    constants = {
        "IMAGES": x.shape[0],
        "H": x.shape[1],
        "W": x.shape[2],
        "C": x.shape[3],
        "R": weight.shape[1],
        "S": weight.shape[2],
        "P": out.shape[1],
        "Q": out.shape[2],
        "CHANNELS": out.shape[3],
        "STRIDE": operator.stride,
        "PADDING": operator.padding,
        "X_IMAGE": x.strides[0],
        "X_ROW": x.strides[1],
        "X_COLUMN": x.strides[2],
        "W_CHANNEL": weight.strides[0],
        "W_ROW": weight.strides[1],
        "W_COLUMN": weight.strides[2],
        "OUT_PIXEL": out.strides[2],
        "RESIDUAL_PIXEL": residual.strides[2] if residual else 0,
        "HAS_BIAS": operator.bias is not None,
        "HAS_RESIDUAL": residual is not None,
        "MULTIPLY": operator.combine == "multiply",
        "EPILOGUE": operator.epilogue,
        "TILE_M": height,
        "TILE_N": width,
        "TILE_K": depth_k,
        "DEPTH": max(2, min(6, SHARED_BYTES // (2 * depth_k * (height + width)))),
        "ROWS_ALONG_X": operator.rows_along == "x",
    }
    return Kernel(
        conv_kernel, ("x", "weight", "out", "bias", "residual"), constants, 8 if height * width >= 128 * 128 else 4
    )


def _pointwise(operator: Pointwise) -> Kernel:
    _check_rows("pointwise", *operator.views().values())
    height, width = _sides("pointwise", operator.tile, 1)
    constants = {
        "ROWS": operator.x.shape[0],
        "COLUMNS": operator.x.shape[1],
        "X_ROW": operator.x.strides[0],
        "Y_ROW": operator.y.strides[0] if operator.y else 0,
        "OUT_ROW": operator.out.strides[0],
        "FUNCTION": operator.function,
        "TILE_ROWS": height,
        "TILE_COLUMNS": width,
        "ROWS_ALONG_X": operator.rows_along == "x",
    }
    return Kernel(pointwise_kernel, ("x", "y", "out"), constants, 4)


def _reduce(operator: Reduce) -> Kernel:
    _check_rows("reduce", *operator.views().values())
    height, width = _sides("reduce", operator.tile, 1)
    constants = {
        "SPLIT": operator.x.shape[0],
        "M": operator.out.shape[0],
        "N": operator.out.shape[1],
        "X_Z": operator.x.strides[0],
        "X_ROW": operator.x.strides[1],
        "OUT_ROW": operator.out.strides[0],
        "RESIDUAL_ROW": operator.residual.strides[0] if operator.residual else 0,
        "HAS_BIAS": operator.bias is not None,
        "HAS_RESIDUAL": operator.residual is not None,
        "EPILOGUE": operator.epilogue,
        "TILE_ROWS": height,
        "TILE_COLUMNS": width,
        "ROWS_ALONG_X": operator.rows_along == "x",
    }
    return Kernel(reduce_kernel, ("x", "out", "bias", "residual"), constants, 4)


def _rows(operator: Norm | Softmax) -> Kernel:
    _check_rows(operator.NAME, *operator.views().values())
    if operator.x.shape[1] > _WIDEST_ROW:
        raise UserError(
            f"the {operator.NAME} kernel holds a row in one block: at most {_WIDEST_ROW} columns, not "
            f"{operator.x.shape[1]}"
        )
    constants: dict[str, Any] = {
        "M": operator.x.shape[0], "N": operator.x.shape[1], "BLOCK": 1 << (operator.x.shape[1] - 1).bit_length(),
        "X_ROW": operator.x.strides[0], "OUT_ROW": operator.out.strides[0], "ROWS": operator.rows,
        "HAS_WEIGHT": False, "HAS_BIAS": False, "DROP_BELOW": 0, "GROWTH": 1.0, "DROP_SEED": 0,
    }  # fmt: skip
    if isinstance(operator, Norm):
        constants |= {
            "KIND": operator.kind, "NUMBER": operator.epsilon,
            "HAS_WEIGHT": operator.weight is not None, "HAS_BIAS": operator.bias is not None,
        }  # fmt: skip
        return Kernel(rows_kernel, ("x", "out", "weight", "bias"), constants, 4)
    constants |= {"KIND": "softmax", "NUMBER": operator.scale}
    if operator.dropout:
        constants |= {
            "DROP_BELOW": dropout.threshold(operator.dropout),
            "GROWTH": 1 / (1 - operator.dropout),
            "DROP_SEED": operator.seed,
        }
    return Kernel(rows_kernel, ("x", "out", "x", "x"), constants, 4)


def _attention(operator: Attention) -> Kernel:
    q, k, v, out = operator.q, operator.k, operator.v, operator.out
    _check_rows("attention", q, k, v, out)
    _check_halves("attention", q, k, v, out)
    for view in (k, v):
        _check_reach("attention", replace(view, shape=(1, *view.shape[1:])))
    rows, wide = operator.rows, max(16, 1 << (q.shape[2] - 1).bit_length())
    if rows & (rows - 1) or rows < 16 or wide > _WIDEST_HEAD:
        raise UserError(
            f"the attention kernel takes a power of two of rows from 16 and heads of at most {_WIDEST_HEAD}, not "
            f"{rows} and {q.shape[2]}"
        )
    constants = {
        "M": q.shape[1],
        "N": k.shape[1],
        "D": q.shape[2],
        "GROUP": q.shape[0] // k.shape[0],
        "Q_Z": q.strides[0],
        "Q_ROW": q.strides[1],
        "K_Z": k.strides[0],
        "K_ROW": k.strides[1],
        "V_Z": v.strides[0],
        "V_ROW": v.strides[1],
        "OUT_Z": out.strides[0],
        "OUT_ROW": out.strides[1],
        "CAUSAL": operator.causal,
        "SCALE": operator.factor,
        "ROWS": rows,
        "KEYS": 64 if wide <= 128 else 32,
        "WIDE": wide,
    }
    return Kernel(attention_kernel, ("q", "k", "v", "out"), constants, 4 if rows * wide <= 64 * 128 else 8)


def _check_rows(name: str, *views: View | None) -> None:
    for view in views:
        if view is not None and view.shape[-1] > 1 and view.strides[-1] != 1:
            raise UserError(f"the {name} kernel takes rows of unit stride; {view.tensor} has strides {view.strides}")


def _check_reach(name: str, part: View) -> None:
    """Refuse what a kernel cannot walk through in whole numbers of 32 bits."""
    reach = part.elements - part.offset
    if reach > _REACH:
        raise UserError(
            f"the {name} kernel takes up to {_REACH:,} elements from the first to the last of an image or a head; "
            f"those of {part.tensor} span {reach:,}"
        )


def _check_halves(name: str, *views: View) -> None:
    if len({view.dtype for view in views} - {"float32"}) != 1 or any(view.dtype == "float32" for view in views):
        dtypes = ", ".join(f"{view.tensor} {view.dtype}" for view in views)
        raise UserError(f"the {name} kernel takes float16 or bfloat16 throughout, not {dtypes}")


def _sides(name: str, tile: tuple[int, int], least: int) -> tuple[int, int]:
    if any(n & (n - 1) or n < least for n in tile):
        raise UserError(f"the {name} kernel takes tiles whose sides are powers of two from {least}, not {tile}")
    return tile
