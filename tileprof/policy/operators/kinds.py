"""Identifies the stage operator of a recorded kernel: one function per family of kernels, chosen by the framework's
operator.

Tile shapes are read off the elements that the tile at the grid's origin writes, so that it does not matter who chose
them. Whatever an operator cannot say (a scaled product, a grouped convolution) is an `UnknownStageError` that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from tileprof.policy.operators.recorded_call import RecordedCall, Slot, UnknownStageError
from tileprof.trace.footprint import READ


@dataclass(frozen=True, slots=True)
class Draft:
    """An operator whose tensors have no names yet. ``grid`` is what it computes from shapes and tile."""

    name: str
    operands: dict[str, Slot]
    parameters: dict[str, Any]
    grid: tuple[int, int, int]


def draft(call: RecordedCall) -> Draft:
    """Return the operator of a launch; raises `UnknownStageError` where there is none, or where its grid is another."""
    kind = _BY_OPERATOR.get(call.op) or _BY_OPERATOR.get(call.op.rstrip("_"))
    if kind is None:
        how = "; stages of attention are for chains built in Python, see docs/ccks.md" if "attention" in call.op else ""
        raise UnknownStageError(f"no stage operator computes {call.op}{how}")
    stage = kind(call)
    if stage.grid != call.grid:
        option = {"gemm": "gemm", "conv2d": "conv"}.get(stage.name)
        how = f"; tileprof record --tile {option}=128x128x64 (or another shape) gives it such a grid" if option else ""
        raise UnknownStageError(
            f"{call.kernel} has a grid of {_by(call.grid)} tiles, and the stage operator {stage.name} needs "
            f"{_by(stage.grid)}{how}"
        )
    return stage


def _by(grid: tuple[int, ...]) -> str:
    return " x ".join(map(str, grid))


def _tile_parameters(
    call: RecordedCall, sizes: tuple[int, int], tile: tuple[int, int], z: int = 1
) -> tuple[dict[str, Any], tuple[int, int, int]]:
    """Return parameters and grid of ``sizes`` in tiles: rows run along whichever axis gives the launch's grid, x where
    neither does.
    """
    down, across = -(-sizes[0] // tile[0]), -(-sizes[1] // tile[1])
    along = "y" if (across, down, z) == call.grid != (down, across, z) else "x"
    grid = (down, across, z) if along == "x" else (across, down, z)
    return {"tile": list(tile), "rows_along": along}, grid


def gemm(call: RecordedCall) -> Draft:
    """Draft mm, addmm, bmm, baddbmm; with split-k the first of the two kernels."""
    call.only(alpha=1)
    if call.kernel.startswith("splitk_reduce"):
        return reduce(call)
    if call.kernel.endswith("<copy_>") or call.kernel.startswith("memcpy"):
        raise UnknownStageError(f"{call.op} adds a tensor that PyTorch copies to the results first")
    if not call.kernel.startswith("gemm_"):
        raise UnknownStageError(f"{call.kernel} is not a product of matrices that stages compute")
    a, b = call.need("mat1", "batch1", "self"), call.need("mat2", "batch2")
    if call.workspace[0] >= 0:
        return _split(call, a, b)
    out = call.written_slot()
    operands = {"a": _batchless(a), "b": _batchless(b), "out": _batchless(out)}
    if "beta" in call.arguments and call.arguments["beta"] != 0:
        operands |= _addend(call, call.need("self", "out"), operands["out"], out)
    *_, rows, columns = call.tile(operands["out"])
    sizes = operands["out"].shape
    z = sizes[0] if len(sizes) == 3 else 1
    return Draft("gemm", operands, *_tile_parameters(call, (sizes[-2], sizes[-1]), (rows, columns), z))


def _split(call: RecordedCall, a: Slot, b: Slot) -> Draft:
    a, b = _batchless(a), _batchless(b)
    if len(a.shape) != 2:
        raise UnknownStageError("a product of batches, split along k")
    slot, buffer = call.workspace
    m, n = a.shape[0], b.shape[1]
    split = call.grid[2]
    part = Slot(slot, "workspace", (split, m, n), (m * n, n, 1), "float32", buffer, 0)
    _, rows, columns = call.tile(part)
    starts = [call.reads_from(a, (0, 0, z))[1] for z in range(split)]
    step = starts[1]
    if starts != [z * step for z in range(split)] or split * step < a.shape[1]:
        raise UnknownStageError(f"split-k slices of unequal depth, beginning at {starts[:8]}")
    parameters, grid = _tile_parameters(call, (m, n), (rows, columns), split)
    parameters |= {"split_k": split, "split_multiple": step}
    return Draft("gemm", {"a": a, "b": b, "out": part}, parameters, grid)


def reduce(call: RecordedCall) -> Draft:
    """Draft the sum over split-k slices: rectangles of results, or runs of them as one long row."""
    whole = call.written_slot()
    out = _batchless(whole)
    if len(out.shape) != 2:
        raise UnknownStageError("a product of batches, split along k")
    m, n = out.shape
    slot, buffer = call.workspace
    slices = 1 + call.span(slot, READ, (0, 0, 0), 4)[1] // (m * n)
    sums = Slot(slot, "workspace", (slices, m, n), (m * n, n, 1), "float32", buffer, 0)
    operands = {"x": sums, "out": out}
    if call.arguments.get("beta", 0) != 0:
        operands |= _addend(call, call.need("self", "out"), out, whole)
    rows, columns = call.tile(out)
    parameters, grid = _tile_parameters(call, (m, n), (rows, columns))
    if grid == call.grid or "bias" in operands:
        return Draft("reduce", operands, parameters, grid)
    _, run = call.tile(out.flat())
    row = {role: view.flat() for role, view in operands.items() if role != "x"} | {
        "x": sums.like((slices, 1, m * n), (m * n, m * n, 1))
    }
    return Draft("reduce", row, {"tile": [1, run]}, (-(-m * n // run), 1, 1))


def _batchless(slot: Slot) -> Slot:
    """Return a batch of one as a matrix."""
    return slot.like(slot.shape[1:], slot.strides[1:]) if len(slot.shape) == 3 and slot.shape[0] == 1 else slot


def _addend(call: RecordedCall, addend: Slot, out: Slot, whole: Slot) -> dict[str, Slot]:
    """Return what is added to a product: a bias along its columns, or a matrix of its shape."""
    call.only(beta=1)
    sizes = [n for n in addend.shape if n > 1]
    if addend.shape == whole.shape:
        return {"residual": addend.like(out.shape, addend.strides[len(whole.shape) - len(out.shape) :])}
    if sizes == [out.shape[-1]] and addend.shape[-1] == out.shape[-1]:
        return {"bias": addend.like(addend.shape[-1:], addend.strides[-1:])}
    raise UnknownStageError(f"{call.op} adds a tensor of shape {addend.shape} to a result of {whole.shape}")


def convolution(call: RecordedCall) -> Draft:
    """Draft a two-dimensional convolution: one group, equal strides and paddings; channels last or first."""
    call.only(groups=1, transposed=False)
    if not call.kernel.startswith("implicit_gemm_fprop") or call.workspace[0] >= 0:
        raise UnknownStageError(f"{call.kernel} is not a convolution that stages compute")
    x, weight, out = call.need("input", "self"), call.need("weight"), call.written_slot()
    if len(x.shape) != 4:
        raise UnknownStageError(f"a convolution in {len(x.shape) - 2} dimensions; stages compute those in two")
    settings = {name: {int(n) for n in call.arguments.get(name, (1,))} for name in ("stride", "padding", "dilation")}
    if any(len(values) != 1 for values in settings.values()) or settings["dilation"] != {1}:
        raise UnknownStageError(f"a convolution with {', '.join(f'{k} {sorted(v)}' for k, v in settings.items())}")
    operands = {role: slot.permuted(0, 2, 3, 1) for role, slot in (("x", x), ("weight", weight), ("out", out))}
    bias = call.find("bias")
    if bias is not None:
        operands["bias"] = bias
    n, p, q, k = operands["out"].shape
    image, row, column, channels = (size - 1 for size in call.tile(operands["out"]))
    parameters, grid = _tile_parameters(call, (n * p * q, k), ((image * p + row) * q + column + 1, channels + 1))
    parameters |= {"stride": settings["stride"].pop(), "padding": settings["padding"].pop()}
    return Draft("conv2d", operands, parameters, grid)


def pointwise(call: RecordedCall) -> Draft:
    """Draft functions of single elements: as one long row where operands lie alike and without gaps, else in runs of
    the result.
    """
    if "elementwise" not in call.kernel:
        raise UnknownStageError(f"{call.kernel} is not a function of single elements")
    out, name = call.written_slot(), call.op.rstrip("_")
    call.only(alpha=1, rounding_mode=None)
    function = _ONE.get(name) or _TWO.get(name, "copy")
    if name == "gelu" and call.arguments.get("approximate") == "tanh":
        function = "gelu_tanh"
    inputs, number = [call.need("src", "self")], 1.0
    if name in _TWO or name == "div":
        other = call.arguments.get("other")
        if isinstance(other, int | float) and name in ("mul", "div") and other:
            function, number = "copy", float(other) if name == "mul" else 1 / other
        elif name == "div":
            raise UnknownStageError("no stage operator computes div")
        else:
            inputs.append(call.need("other"))
    if number == 1.0 and all((slot.shape, slot.strides) == (out.shape, out.strides) for slot in inputs):
        return _one_row(call, inputs, out, function)
    return _runs(call, inputs, out, function, number)


def _one_row(call: RecordedCall, inputs: list[Slot], out: Slot, function: str) -> Draft:
    flat = out.flat()
    operands = {role: slot.flat() for role, slot in zip("xy", inputs, strict=False)} | {"out": flat}
    _, run = call.tile(flat)
    return Draft("pointwise", operands, {"tile": [1, run], "function": function}, (-(-flat.shape[1] // run), 1, 1))


def _runs(call: RecordedCall, inputs: list[Slot], out: Slot, function: str, number: float) -> Draft:
    """Draft runs of the result, which blocks walk as it lies in memory; where it has one element along a dimension, the
    operands decide.
    """
    if not out.shape:
        out = out.like((1,), (1,))
    spread = [_broadcast(slot, out) for slot in inputs]
    wide = [d for d in range(len(out.shape)) if out.shape[d] > 1] or [0]
    order = sorted(wide, key=lambda d: (-out.strides[d], d))
    operands = {role: slot.permuted(*order) for role, slot in zip("xy", spread, strict=False)} | {
        "out": out.permuted(*order)
    }
    tile_shape = call.tile(operands["out"])
    run = (
        prod(tile_shape) if call.grid[0] == 1 else _number(tuple(n - 1 for n in tile_shape), operands["out"].shape) + 1
    )
    parameters: dict[str, Any] = {"run": run, "function": function} | ({} if number == 1.0 else {"number": number})
    return Draft("elementwise", operands, parameters, (-(-prod(operands["out"].shape) // run), 1, 1))


def _broadcast(slot: Slot, out: Slot) -> Slot:
    """Return the slot in the shape of the result, elements repeated."""
    missing = len(out.shape) - len(slot.shape)
    shape, strides = (1,) * missing + slot.shape, (0,) * missing + slot.strides
    if missing < 0 or any(n not in (1, whole) for n, whole in zip(shape, out.shape, strict=True)):
        raise UnknownStageError(f"{slot.argument} of shape {slot.shape} does not spread to {out.shape}")
    return slot.like(out.shape, [0 if n == 1 else s for n, s in zip(shape, strides, strict=True)])


def _number(at: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Return the row-major number of a place."""
    number = 0
    for n, size in zip(at, shape, strict=True):
        number = number * size + n
    return number


def norm(call: RecordedCall) -> Draft:
    """Draft layer norm and RMS norm over the last dimension."""
    if len(call.arguments.get("normalized_shape", [0])) != 1 or not call.kernel.startswith("rows<"):
        raise UnknownStageError(f"{call.op} over {call.arguments.get('normalized_shape')}")
    out = call.need("out").matrix()
    operands = {"x": call.need("input").matrix(), "out": out}
    operands |= {role: slot for role in ("weight", "bias") if (slot := call.find(role)) is not None}
    rows, _ = call.tile(out)
    kind = "rms" if "rms" in call.op else "layer"
    epsilon = call.arguments.get("eps")
    if epsilon is None:
        raise UnknownStageError(f"{call.op} without an epsilon of its own")
    return Draft("norm", operands, {"rows": rows, "kind": kind, "epsilon": epsilon}, (-(-out.shape[0] // rows), 1, 1))


def softmax(call: RecordedCall) -> Draft:
    """Draft a softmax over the last dimension."""
    out, source = call.written_slot(), call.need("self")
    call.only(half_to_float=False)
    if call.arguments["dim"] not in (-1, len(out.shape) - 1):
        raise UnknownStageError(
            f"softmax over dimension {call.arguments['dim']} of {len(out.shape)}; stages take the last"
        )
    x, out = source.matrix(), out.matrix()
    rows, _ = call.tile(out)
    return Draft("softmax", {"x": x, "out": out}, {"rows": rows}, (-(-out.shape[0] // rows), 1, 1))


def batch_norm(call: RecordedCall) -> Draft:
    """Draft a batch norm in evaluation, by running averages: an epilogue of a convolution, no stage."""
    call.only(training=False)
    x, out = call.need("input"), call.need("out")
    epsilon = call.arguments.get("eps", call.arguments.get("epsilon"))
    vectors = {"mean": "running_mean", "var": "running_var", "scale": "weight", "shift": "bias"}
    operands = {role: call.find(name) for role, name in vectors.items()}
    if (x.shape, x.strides) != (out.shape, out.strides) or not isinstance(epsilon, float) or None in operands.values():
        raise UnknownStageError(f"{call.op} without running averages, weight and bias, or into another layout")
    present = {role: slot for role, slot in operands.items() if slot is not None}
    return Draft("batch_norm", {"x": x, **present, "out": out}, {"epsilon": epsilon}, call.grid)


_ONE: Final = {
    "relu": "relu", "gelu": "gelu", "silu": "silu",
    "clone": "copy", "copy": "copy", "_to_copy": "copy", "contiguous": "copy",
}  # fmt: skip
_TWO: Final = {"add": "add", "mul": "mul"}
_BY_NUMBER: Final = ("div",)

_BY_OPERATOR: Final[dict[str, Callable[[RecordedCall], Draft]]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), gemm),
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution"), convolution),
    **dict.fromkeys((*_ONE, *_TWO, *_BY_NUMBER), pointwise),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), norm),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "_batch_norm_no_update"),
        batch_norm,
    ),
    "_softmax": softmax,
}
