"""A generated Triton kernel: the configuration that Inductor's heuristics choose, its grid, what a launch touches."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from tileprof.arrays import grids
from tileprof.record.model.compiled.accesses import Space
from tileprof.record.model.compiled.evaluation import Pointer, evaluate
from tileprof.record.model.compiled.lanes import Unknowable
from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OPTIONS = frozenset(
    {"num_warps", "num_stages", "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack"}
)
"""Options of the compiler in a configuration, which the kernel does not see."""

_FEW = 4
"""Blocks of a pointwise launch below which its second configuration, with blocks of half the size, was faster: of five
kernels recorded on an H200 those of 1 and 2 blocks took it, those of 6, 64 and 128 did not.
"""

_LARGEST_VALUES = 1 << 22
"""Integers of a tensor that are looked at when they decide addresses."""

_NOTE = "fused by Inductor for this GPU; no kernel was compiled: registers and shared memory are unknown"
_BOUNDED = "; addresses that depend on values, or are not affine in a large launch, are taken between their bounds"
_WHOLE = "; {why}: every program takes every argument whole"
_TUNED = "; Inductor would measure {count} configurations: the {ordinal} is taken"

Values = Callable[[torch.Tensor], "NDArray[Any] | None"]
"""The numbers in a tensor's memory from its first element on, where they are known."""


@dataclass(slots=True)
class _Choice:
    """The decision of the heuristics: configurations (constants and warps), of which one is ``index``; the names of a
    launch's arguments.
    """

    configs: list[tuple[dict[str, Any], int]]
    names: list[str]
    meta: dict[str, Any]
    index: int = 0

    @property
    def constants(self) -> dict[str, Any]:
        """The constants of the configuration that is taken."""
        return self.configs[self.index][0]

    @property
    def warps(self) -> int:
        """The warps of a block."""
        return self.configs[self.index][1]


@dataclass(slots=True)
class CompiledKernel:
    """A kernel of a wrapper; ``launched`` hears of every launch."""

    name: str
    source: str
    launched: Callable[[CompiledKernel, tuple[Any, ...]], None]
    _choice: _Choice | None = field(default=None, init=False)

    def run(self, *arguments: Any, stream: Any = None, **keywords: Any) -> None:  # noqa: ARG002 (as the wrapper calls it)
        """Launch the kernel: note what it touches."""
        if keywords:
            names = self.choice().names
            arguments = (*arguments, *(keywords[n] for n in names[len(arguments) :] if n in keywords))
        self.launched(self, arguments)

    def choice(self) -> _Choice:
        """Return the configuration, chosen at the first launch."""
        if self._choice is None:
            self._choice = _choose(self.source, self.name)
        return self._choice

    def key(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what launches with equal accesses have in common."""
        words: list[Any] = [self.name, self.source]
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                words.append((argument.dtype, argument.storage_offset(), argument.untyped_storage().nbytes()))
            else:
                words.append(argument)
        return tuple(words)

    def kernel(self, arguments: tuple[Any, ...], values: Values) -> tuple[Kernel, bool]:
        """Return the launch, and whether its accesses depend on values that were known."""
        choice = replace(self.choice())
        extra = len(choice.meta.get("extra_launcher_args", ()))
        own, rest = (arguments[:-extra], arguments[-extra:]) if extra else (arguments, ())
        by_name = dict(zip(choice.names, own, strict=True))
        by_name |= dict(zip(choice.meta.get("extra_launcher_args", ()), rest, strict=True))
        grid = _grid(choice, by_name)
        if len(choice.configs) > 1 and grids.size(grid) < _FEW and self.name.startswith("triton_poi"):
            choice.index = 1
            grid = _grid(choice, by_name)
        tensors = [a for a in own if isinstance(a, torch.Tensor)]
        values_read: list[bool] = []
        spaces: list[Space] = []
        operands: list[Operand] = []
        bound: dict[str, Any] = {n: choice.constants[n] for n in choice.constants if n not in _OPTIONS}
        for name in choice.names:
            argument = by_name[name]
            if isinstance(argument, torch.Tensor):
                ref = next(n for n, t in enumerate(tensors) if t is argument)
                slot = next((n for n, o in enumerate(operands) if o.ref == ref), len(operands))
                if slot == len(operands):
                    operands.append(_operand(argument, ref))
                    spaces.append(_space(argument, slot))
                bound[name] = Pointer(spaces[slot], argument.element_size(), _asking(argument, values, values_read))
            elif name not in bound:
                bound[name] = argument
        count = len(choice.configs)
        note = _NOTE + (_TUNED.format(count=count, ordinal=("first", "second")[choice.index]) if count > 1 else "")
        coverage = "exact"
        try:
            accepted = _accepted_arguments(self.source, self.name, bound)
            result = evaluate(self.source, self.name, accepted, grid, spaces)
            footprint, flops = result.footprint, result.flops
            if result.bounded:
                note, coverage = note + _BOUNDED, "inferred"
        except (Unknowable, ValueError, TypeError, AttributeError, NameError, IndexError, KeyError) as error:
            why = (
                "what it does depends on values" if isinstance(error, Unknowable)
                else f"its addresses could not be followed ({type(error).__name__}: {error})"
            )  # fmt: skip
            note, coverage = note + _WHOLE.format(why=why), "conservative"
            footprint, flops = _whole(grid, spaces), np.zeros(grids.size(grid))
        kernel = Kernel(
            name=self.name, footprint=footprint, operands=tuple(operands), grid=grid, block=(32 * choice.warps, 1, 1),
            flops=int(flops.sum()), rate=_rate(tensors), tile_flops=flops if flops.any() else None,
            coverage=coverage, note=note,
        )  # fmt: skip
        return kernel, bool(values_read)


def _accepted_arguments(source: str, name: str, bound: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the kernel has: heuristics name some that it sets itself."""
    match = re.search(rf"^def {re.escape(name)}\((.*?)\):", source, re.DOTALL | re.MULTILINE)
    function = match or re.search(r"^@triton\.jit\ndef \w+\((.*?)\):", source, re.DOTALL | re.MULTILINE)
    if function is None:
        return bound
    names = {word.split(":")[0].split("=")[0].strip() for word in function[1].split(",")}
    return {key: value for key, value in bound.items() if key in names}


def _choose(source: str, name: str) -> _Choice:
    """Run the module's heuristics for the configuration: nothing is compiled."""
    heuristics: Any = __import__("torch._inductor.runtime.triton_heuristics", fromlist=["*"])
    helpers: Any = __import__("torch._inductor.runtime.triton_helpers", fromlist=["*"])
    choices: list[_Choice] = []

    def cached_autotune(_size_hints: Any, configs: Any, triton_meta: Any, *_: Any, **options: Any) -> Any:
        meta = options.get("inductor_meta") or {}

        def decorate(function: Any) -> Any:
            names = list(function.arg_names)
            options_of = [(dict(config.kwargs), int(config.num_warps)) for config in configs]
            for constants, _ in options_of:
                if "XBLOCK" not in names and constants.get("XBLOCK") == 1:
                    constants.pop("XBLOCK")
            launch = [n for n in names if n not in options_of[0][0]]
            choices.append(_Choice(options_of, launch, {**meta}))
            choices[-1].meta.setdefault("constants", triton_meta.get("constants", {}))
            return function

        return decorate

    module = types.ModuleType(name)
    module.__file__ = f"/{name}.py"
    patches = (
        mock.patch.object(heuristics, "cached_autotune", cached_autotune),
        mock.patch.object(helpers, "set_driver_to_gpu"),
    )
    with patches[0], patches[1]:
        exec(_compiled_code(source, name), vars(module))  # noqa: S102 - Inductor's own code, as it would run
    return choices[-1]


def _compiled_code(source: str, name: str) -> Any:
    """Return the code under a file name that `inspect` finds: Triton reads the source of what it decorates."""
    import linecache  # noqa: PLC0415 (only here)

    path = f"<tileprof {name}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    return compile(source, path, "exec")


def _grid(choice: _Choice, by_name: dict[str, Any]) -> tuple[int, int, int]:
    heuristics: Any = __import__("torch._inductor.runtime.triton_heuristics", fromlist=["*"])
    config = {**choice.constants, "num_warps": choice.warps}
    expression = heuristics.GridExpr.from_meta(choice.meta, config)
    x, y, z = expression.eval_slow({**by_name, **choice.constants})
    return int(x), int(y), int(z)


def _asking(tensor: torch.Tensor, values: Values, values_read: list[bool]) -> Callable[[], NDArray[Any] | None]:
    """Return what looks up a tensor's numbers, and remembers that they were there."""

    def look() -> NDArray[Any] | None:
        if not may_decide(tensor):
            return None
        integers = values(tensor)
        if integers is not None:
            values_read.append(True)
        return integers

    return look


def may_decide(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's numbers can be part of addresses, and are few enough to be looked at."""
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() <= _LARGEST_VALUES


def _space(tensor: torch.Tensor, slot: int) -> Space:
    before = tensor.storage_offset() * tensor.element_size()
    return Space(slot, -before, tensor.untyped_storage().nbytes() - before)


def _operand(tensor: torch.Tensor, ref: int) -> Operand:
    shape, strides = tuple(int(n) for n in tensor.shape), tuple(int(n) for n in tensor.stride())
    return Operand(shape, strides, str(tensor.dtype).removeprefix("torch."), tensor.element_size(), ref=ref)


def _whole(grid: tuple[int, int, int], spaces: list[Space]) -> Footprint:
    tiles = np.arange(grids.size(grid))
    parts = [
        Boxes.of(tile=tiles, operand=s.operand, mode=mode, offset=s.low, length=s.high - s.low)
        for s in spaces
        for mode in (READ, WRITE)
    ]
    return Footprint(grids.places(grid).astype(np.int32), Boxes.concat(parts))


def _rate(tensors: list[torch.Tensor]) -> str:
    """Return the rate of the dot products: that of the narrowest floating point argument."""
    names = {"float16": "fp16", "bfloat16": "bf16", "float32": "tf32", "float64": "fp64"}
    kinds = [(t.element_size(), str(t.dtype).removeprefix("torch.")) for t in tensors if t.is_floating_point()]
    return names.get(min(kinds)[1], "fp8") if kinds else "fp32"


def integers_of(tensor: torch.Tensor) -> NDArray[Any] | None:
    """Return the numbers behind a real tensor of integers, from its first element to its storage's end."""
    if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu":
        return None
    size = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    with _disable_current_modes():
        flat: NDArray[Any] = tensor.detach().as_strided((size,), (1,)).numpy()
    return flat
