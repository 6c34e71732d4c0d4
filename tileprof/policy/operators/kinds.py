"""Which stage operator a recorded kernel is: one function a family of kernels, chosen by the framework's operator.

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


def draft(called: RecordedCall) -> Draft:
    """The operator of a launch; raises `UnknownStageError` where there is none, or where its grid is another."""
    if called.op.rstrip("_") in _RANDOM or called.arguments.get("dropout_p", 0):
        raise UnknownStageError(
            f"{called.op} draws from PyTorch's generator, whose numbers no stage repeats: record the model in eval "
            "mode; a softmax stage "
            "takes dropout and a seed of its own"
        )
    kind = _BY_OPERATOR.get(called.op) or _BY_OPERATOR.get(called.op.rstrip("_"))
    if kind is None:
        raise UnknownStageError(f"no stage operator computes {called.op}")
    made = kind(called)
    if made.grid != called.grid:
        option = {"gemm": "gemm", "conv2d": "conv"}.get(made.name)
        how = (
            f"; tileprof record --tile {option}=128x128x64 (or another shape) dictates tiles in a grid that is"
            if option
            else ""
        )
        raise UnknownStageError(
            f"{made.name} would have a grid of {_by(made.grid)} tiles of this shape, {called.kernel} has "
            f"{_by(called.grid)}{how}"
        )
    return made


def _by(grid: tuple[int, ...]) -> str:
    return " x ".join(map(str, grid))


def _tiled(
    called: RecordedCall, sizes: tuple[int, int], tile: tuple[int, int], z: int = 1
) -> tuple[dict[str, Any], tuple[int, int, int]]:
    """Parameters and grid of ``sizes`` in tiles: rows run along whichever axis gives the launch's grid, x where neither
    does.
    """
    down, across = -(-sizes[0] // tile[0]), -(-sizes[1] // tile[1])
    along = "y" if (across, down, z) == called.grid != (down, across, z) else "x"
    grid = (down, across, z) if along == "x" else (across, down, z)
    return {"tile": list(tile), "rows_along": along}, grid


def gemm(called: RecordedCall) -> Draft:
    """mm, addmm, bmm, baddbmm; with split-k the first of the two kernels."""
    called.only(alpha=1)
    if called.kernel.startswith("splitk_reduce"):
        return reduce(called)
    if not called.kernel.startswith("gemm_"):
        raise UnknownStageError(f"{called.kernel} is no product of matrices that stages compute")
    a, b = called.need("mat1", "batch1", "self"), called.need("mat2", "batch2")
    if called.workspace[0] >= 0:
        return _split(called, a, b)
    out = called.written()
    operands = {"a": _batchless(a), "b": _batchless(b), "out": _batchless(out)}
    if "beta" in called.arguments and called.arguments["beta"] != 0:
        operands |= _addend(called, called.need("self", "out"), operands["out"], out)
    *_, rows, columns = called.tile(operands["out"])
    sizes = operands["out"].shape
    z = sizes[0] if len(sizes) == 3 else 1
    return Draft("gemm", operands, *_tiled(called, (sizes[-2], sizes[-1]), (rows, columns), z))


def _split(called: RecordedCall, a: Slot, b: Slot) -> Draft:
    a, b = _batchless(a), _batchless(b)
    if len(a.shape) != 2:
        raise UnknownStageError("a product of batches, split along k")
    slot, buffer = called.workspace
    m, n = a.shape[0], b.shape[1]
    split = called.grid[2]
    part = Slot(slot, "workspace", (split, m, n), (m * n, n, 1), "float32", buffer, 0)
    _, rows, columns = called.tile(part)
    starts = [called.reads_from(a, (0, 0, z))[1] for z in range(split)]
    step = starts[1]
    if starts != [z * step for z in range(split)] or split * step < a.shape[1]:
        raise UnknownStageError(f"split-k slices of unequal depth, beginning at {starts[:8]}")
    parameters, grid = _tiled(called, (m, n), (rows, columns), split)
    parameters |= {"split_k": split, "split_multiple": step}
    return Draft("gemm", {"a": a, "b": b, "out": part}, parameters, grid)


def reduce(called: RecordedCall) -> Draft:
    """The sum over split-k slices: rectangles of results, or runs of them as one long row."""
    whole = called.written()
    out = _batchless(whole)
    if len(out.shape) != 2:
        raise UnknownStageError("a product of batches, split along k")
    m, n = out.shape
    slot, buffer = called.workspace
    slices = 1 + called.span(slot, READ, (0, 0, 0), 4)[1] // (m * n)
    sums = Slot(slot, "workspace", (slices, m, n), (m * n, n, 1), "float32", buffer, 0)
    operands = {"x": sums, "out": out}
    if called.arguments.get("beta", 0) != 0:
        operands |= _addend(called, called.need("self", "out"), out, whole)
    rows, columns = called.tile(out)
    parameters, grid = _tiled(called, (m, n), (rows, columns))
    if grid == called.grid or "bias" in operands:
        return Draft("reduce", operands, parameters, grid)
    _, run = called.tile(out.flat())
    row = {role: view.flat() for role, view in operands.items() if role != "x"} | {
        "x": sums.like((slices, 1, m * n), (m * n, m * n, 1))
    }
    return Draft("reduce", row, {"tile": [1, run]}, (-(-m * n // run), 1, 1))


def _batchless(slot: Slot) -> Slot:
    """A batch of one is a matrix."""
    return slot.like(slot.shape[1:], slot.strides[1:]) if len(slot.shape) == 3 and slot.shape[0] == 1 else slot


def _addend(called: RecordedCall, given: Slot, out: Slot, whole: Slot) -> dict[str, Slot]:
    """What is added to a product: a bias along its columns, or a matrix of its shape."""
    called.only(beta=1)
    sizes = [n for n in given.shape if n > 1]
    if given.shape == whole.shape:
        return {"residual": given.like(out.shape, given.strides[len(whole.shape) - len(out.shape) :])}
    if sizes == [out.shape[-1]] and given.shape[-1] == out.shape[-1]:
        return {"bias": given.like(given.shape[-1:], given.strides[-1:])}
    raise UnknownStageError(f"{called.op} adds a tensor of shape {given.shape} to a result of {whole.shape}")


def convolution(called: RecordedCall) -> Draft:
    """Two-dimensional, one group, equal strides and paddings; channels last or first."""
    called.only(groups=1, transposed=False)
    if not called.kernel.startswith("implicit_gemm_fprop") or called.workspace[0] >= 0:
        raise UnknownStageError(f"{called.kernel} is no convolution that stages compute")
    x, weight, out = called.need("input", "self"), called.need("weight"), called.written()
    if len(x.shape) != 4:
        raise UnknownStageError(f"a convolution in {len(x.shape) - 2} dimensions; stages compute those in two")
    settings = {name: {int(n) for n in called.arguments.get(name, (1,))} for name in ("stride", "padding", "dilation")}
    if any(len(values) != 1 for values in settings.values()) or settings["dilation"] != {1}:
        raise UnknownStageError(f"a convolution with {', '.join(f'{k} {sorted(v)}' for k, v in settings.items())}")
    operands = {role: slot.permuted(0, 2, 3, 1) for role, slot in (("x", x), ("weight", weight), ("out", out))}
    bias = called.find("bias")
    if bias is not None:
        operands["bias"] = bias
    n, p, q, k = operands["out"].shape
    image, row, column, channels = (size - 1 for size in called.tile(operands["out"]))
    parameters, grid = _tiled(called, (n * p * q, k), ((image * p + row) * q + column + 1, channels + 1))
    parameters |= {"stride": settings["stride"].pop(), "padding": settings["padding"].pop()}
    return Draft("conv2d", operands, parameters, grid)


def pointwise(called: RecordedCall) -> Draft:
    """Functions of single elements: as one long row where operands lie alike and without gaps, else in runs of the
    result.
    """
    if "elementwise" not in called.kernel:
        raise UnknownStageError(f"{called.kernel} is no function of single elements")
    out, name = called.written(), called.op.rstrip("_")
    called.only(alpha=1, rounding_mode=None)
    function = _ONE.get(name) or _TWO.get(name, "copy")
    if name == "gelu" and called.arguments.get("approximate") == "tanh":
        function = "gelu_tanh"
    given, number = [called.need("src", "self")], 1.0
    if name in _TWO or name == "div":
        other = called.arguments.get("other")
        if isinstance(other, int | float) and name in ("mul", "div") and other:
            function, number = "copy", float(other) if name == "mul" else 1 / other
        elif name == "div":
            raise UnknownStageError("no stage operator computes div")
        else:
            given.append(called.need("other"))
    if number == 1.0 and all((slot.shape, slot.strides) == (out.shape, out.strides) for slot in given):
        return _one_row(called, given, out, function)
    return _runs(called, given, out, function, number)


def _one_row(called: RecordedCall, given: list[Slot], out: Slot, function: str) -> Draft:
    flat = out.flat()
    operands = {role: slot.flat() for role, slot in zip("xy", given, strict=False)} | {"out": flat}
    _, run = called.tile(flat)
    return Draft("pointwise", operands, {"tile": [1, run], "function": function}, (-(-flat.shape[1] // run), 1, 1))


def _runs(called: RecordedCall, given: list[Slot], out: Slot, function: str, number: float) -> Draft:
    """Blocks walk the result as it lies in memory; where it has one element along a dimension, the operands decide."""
    spread = [_broadcast(slot, out) for slot in given]
    wide = [d for d in range(len(out.shape)) if out.shape[d] > 1] or [0]
    order = sorted(wide, key=lambda d: (-out.strides[d], d))
    operands = {role: slot.permuted(*order) for role, slot in zip("xy", spread, strict=False)} | {
        "out": out.permuted(*order)
    }
    reached = called.tile(operands["out"])
    run = prod(reached) if called.grid[0] == 1 else _number(tuple(n - 1 for n in reached), operands["out"].shape) + 1
    parameters: dict[str, Any] = {"run": run, "function": function} | ({} if number == 1.0 else {"number": number})
    return Draft("elementwise", operands, parameters, (-(-prod(operands["out"].shape) // run), 1, 1))


def _broadcast(slot: Slot, out: Slot) -> Slot:
    """The slot in the shape of the result, elements repeated."""
    missing = len(out.shape) - len(slot.shape)
    shape, strides = (1,) * missing + slot.shape, (0,) * missing + slot.strides
    if missing < 0 or any(n not in (1, whole) for n, whole in zip(shape, out.shape, strict=True)):
        raise UnknownStageError(f"{slot.argument} of shape {slot.shape} does not spread to {out.shape}")
    return slot.like(out.shape, [0 if n == 1 else s for n, s in zip(shape, strides, strict=True)])


def _number(at: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """The row-major number of a place."""
    number = 0
    for n, size in zip(at, shape, strict=True):
        number = number * size + n
    return number


def norm(called: RecordedCall) -> Draft:
    """Layer norm and RMS norm over the last dimension."""
    if len(called.arguments.get("normalized_shape", [0])) != 1 or not called.kernel.startswith("rows<"):
        raise UnknownStageError(f"{called.op} over {called.arguments.get('normalized_shape')}")
    out = called.need("out").matrix()
    operands = {"x": called.need("input").matrix(), "out": out}
    operands |= {role: slot for role in ("weight", "bias") if (slot := called.find(role)) is not None}
    rows, _ = called.tile(out)
    kind = "rms" if "rms" in called.op else "layer"
    epsilon = called.arguments.get("eps")
    if epsilon is None:
        raise UnknownStageError(f"{called.op} without an epsilon of its own")
    return Draft("norm", operands, {"rows": rows, "kind": kind, "epsilon": epsilon}, (-(-out.shape[0] // rows), 1, 1))


def softmax(called: RecordedCall) -> Draft:
    """Over the last dimension."""
    out, given = called.written(), called.need("self")
    called.only(half_to_float=False)
    if called.arguments["dim"] not in (-1, len(out.shape) - 1):
        raise UnknownStageError(
            f"softmax over dimension {called.arguments['dim']} of {len(out.shape)}; stages take the last"
        )
    x, out = given.matrix(), out.matrix()
    rows, _ = called.tile(out)
    return Draft("softmax", {"x": x, "out": out}, {"rows": rows}, (-(-out.shape[0] // rows), 1, 1))


def batch_norm(called: RecordedCall) -> Draft:
    """In evaluation, by running averages: no stage by itself, but an epilogue of a convolution."""
    called.only(training=False)
    x, out = called.need("input"), called.need("out")
    epsilon = called.arguments.get("eps", called.arguments.get("epsilon"))
    vectors = {"mean": "running_mean", "var": "running_var", "scale": "weight", "shift": "bias"}
    operands = {role: called.find(name) for role, name in vectors.items()}
    if (x.shape, x.strides) != (out.shape, out.strides) or not isinstance(epsilon, float) or None in operands.values():
        raise UnknownStageError(f"{called.op} without running averages, weight and bias, or into another layout")
    known = {role: slot for role, slot in operands.items() if slot is not None}
    return Draft("batch_norm", {"x": x, **known, "out": out}, {"epsilon": epsilon}, called.grid)


_ONE: Final = {
    "relu": "relu", "gelu": "gelu", "silu": "silu",
    "clone": "copy", "copy": "copy", "_to_copy": "copy", "contiguous": "copy",
}  # fmt: skip
_TWO: Final = {"add": "add", "mul": "mul"}
_BY_NUMBER: Final = ("div",)
_RANDOM: Final = ("native_dropout", "_fused_dropout", "bernoulli")

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
