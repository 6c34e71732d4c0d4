"""A policy as a callable on tensors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tileprof.errors import UserError
from tileprof.policy.format import Policy, load_policy
from tileprof.policy.format.symbolic import load_symbolic
from tileprof.runtime.chain import Chain
from tileprof.runtime.executor import Execution, Memory, Order, Program, execute, stream
from tileprof.runtime.sized_pipeline import SizedPipeline
from tileprof.runtime.stages.view import View

if TYPE_CHECKING:
    from tileprof.policy.verification.verifier import Verification

try:
    import torch
except ImportError as error:
    raise UserError("running a policy needs PyTorch: pip install torch") from error

_CPU: Final = torch.device("cpu")
_DTYPES: Final = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class FellBackWarning(RuntimeWarning):
    """The stages ran one after the other, by plain PyTorch, instead of as the policy says."""


class Pipeline:
    """A policy's stages, executed tile by tile on CPU tensors.

    ``inputs`` and ``outputs`` map the names of tensors to the views expected and returned; calls take the inputs by
    name, or by position in this order, and return the output (a tuple of several). What does not fit the policy's guard
    (strides, or a shape that PyTorch can still compute), and a policy that does not wait for what its tiles need, run
    in stream order by plain PyTorch, with a `FellBackWarning`. Raises `UserError` where not even that is possible.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.chain = Chain.of_policy(policy)
        self.inputs, self.outputs = self.chain.inputs(), self.chain.outputs()
        self._program = Program.of(policy)

    @cached_property
    def memory(self) -> Memory:
        """The bytes that the tiles touch."""
        return self.chain.memory()

    @cached_property
    def verdict(self) -> Verification:
        """The result of checking that the policy waits for what the tiles need."""
        return self.chain.verify(self.policy, self.memory)

    @classmethod
    def from_policy(cls, path: Path | str) -> Pipeline | SizedPipeline:
        """Return the pipeline of a policy file, for a symbolic one that of every size; raises `PolicyError` or
        `UserError` naming what is wrong with it.
        """
        symbolic = load_symbolic(path)
        return cls(load_policy(path)) if symbolic is None else SizedPipeline(symbolic, cls)

    def __call__(self, *tensors: Any, **by_name: Any) -> Any:
        inputs = self._bound(tensors, by_name)
        reason = self._unfit(inputs)
        if reason is None and not self.verdict.sound:
            missing_count = len(self.verdict.missing)
            reason = (
                f"the policy leaves {missing_count:,} dependencies uncovered"
                if missing_count
                else self.verdict.never[0]
            )
        if reason is not None:
            warnings.warn(f"{reason}; the stages run one after the other, by PyTorch", FellBackWarning, stacklevel=2)
            results = self.reference(inputs)
        else:
            results, _ = self.run(inputs, stream(self._program))
        values = tuple(results[name] for name in self.outputs)
        return values[0] if len(values) == 1 else values

    def run(self, inputs: Mapping[str, Any], order: Order, *, watch: bool = False) -> tuple[dict[str, Any], Execution]:
        """Execute the tiles in one order; every tensor by name, and what happened. ``watch`` looks for races as well.

        Memory that no tile has written holds NaN, so that a race shows in the numbers too.
        """
        storage = self._storage(inputs)
        roles = [
            {role: _strided(storage[view.tensor], view) for role, view in operator.views().items()}
            for operator in self.chain.operators
        ]

        def work(stage: int, tile: int) -> None:
            operator = self.chain.operators[stage]
            operator.run_tile(*operator.place(tile), roles[stage])

        execution = execute(self._program, order, self.memory if watch else None, work=work)
        results = {operator.out.tensor: roles[n]["out"] for n, operator in enumerate(self.chain.operators)}
        return results, execution

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return every stage's result by plain PyTorch, in stream order, for inputs of any shape that it can
        compute.
        """
        values = dict(inputs)
        layouts = dict(self.inputs)
        for name, operator in zip(self.chain.names, self.chain.operators, strict=True):
            roles = {}
            for role, view in operator.views().items():
                if role != "out":
                    roles[role] = _part(values[view.tensor], view, layouts[view.tensor])
            try:
                value = operator.reference(roles)
            except RuntimeError as error:
                shapes = ", ".join(f"{role} {tuple(t.shape)}" for role, t in roles.items())
                raise UserError(f"stage {name} cannot compute {shapes}: {str(error).splitlines()[0]}") from None
            value = value.to(_DTYPES[operator.out.dtype]) if value.dtype != _DTYPES[operator.out.dtype] else value
            if operator.out.tensor in layouts and layouts[operator.out.tensor] != operator.out:
                raise UserError(
                    f"stage {name} writes a part of {operator.out.tensor}, which PyTorch in stream order does "
                    "not do here"
                )
            values[operator.out.tensor], layouts[operator.out.tensor] = value, operator.out
        return values

    def example(self, seed: int = 0, device: Any = _CPU) -> dict[str, Any]:
        """Return random inputs whose products stay near 1 in size; variances are positive.

        Another device has other random numbers.
        """
        generator = torch.Generator(device).manual_seed(seed)
        scales: dict[str, float] = {}
        for operator in self.chain.operators:
            for role, view in operator.views().items():
                fan_in = {"b": view.shape[-2] if len(view.shape) > 1 else 1, "weight": _product(view.shape[1:])}.get(
                    role, 1
                )
                scales[view.tensor] = min(scales.get(view.tensor, 1.0), fan_in**-0.5)
        variances = {o.views()["var"].tensor for o in self.chain.operators if "var" in o.views()}
        examples = {}
        for name, view in self.inputs.items():
            with room_for(view):
                flat = torch.randn(view.elements, generator=generator, device=device).mul_(scales[name])
            flat = flat.abs_().add_(0.5) if name in variances else flat
            examples[name] = _strided(flat.to(_DTYPES[view.dtype]), View(name, view.shape, view.strides, view.dtype))
        return examples

    def _bound(self, tensors: tuple[Any, ...], by_name: Mapping[str, Any], device: Any = _CPU) -> dict[str, Any]:
        names = list(self.inputs)
        if len(tensors) > len(names):
            raise UserError(f"{len(tensors)} tensors given; the pipeline takes {len(names)}: {', '.join(names)}")
        bound = dict(zip(names, tensors, strict=False))
        for name, tensor in by_name.items():
            if name not in names or name in bound:
                fault = "given twice" if name in bound else "not an input"
                raise UserError(f"{name!r} is {fault}; the inputs are {', '.join(names)}")
            bound[name] = tensor
        if missing_names := [name for name in names if name not in bound]:
            raise UserError(f"the pipeline lacks {', '.join(missing_names)}; the inputs are {', '.join(names)}")
        for name, tensor in bound.items():
            if not isinstance(tensor, torch.Tensor):
                raise UserError(f"input {name} is a {type(tensor).__name__}, not a tensor")
            if tensor.device.type != device.type or device.index not in (None, tensor.device.index):
                raise UserError(f"input {name} is on {tensor.device}; this pipeline runs on {device}")
        return {name: bound[name] for name in names}

    def _unfit(self, inputs: Mapping[str, Any]) -> str | None:
        """Return why the tensors are not those for which the policy was made; None where they are."""
        for name, view in self.inputs.items():
            tensor = inputs[name]
            properties = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tuple(tensor.stride())
            for what, actual, expected in zip(
                ("shape", "dtype", "strides"), properties, (view.shape, view.dtype, view.strides), strict=True
            ):
                if actual != expected:
                    return f"input {name} has {what} {actual}; the policy is for {expected}"
        return None

    def _storage(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return memory of every tensor, flat; poison where nothing is given."""
        storage = {}
        for name, views in self.chain.tensors().items():
            if name in inputs:
                tensor = inputs[name]
                storage[name] = tensor.as_strided((self.inputs[name].elements - self.inputs[name].offset,), (1,))
            else:
                largest = max(views, key=lambda view: view.elements)
                with room_for(largest):
                    storage[name] = torch.full((largest.elements,), float("nan"), dtype=_DTYPES[largest.dtype])
        return storage


@contextmanager
def room_for(view: View) -> Iterator[None]:
    """Raises `UserError` where what is allocated inside does not fit."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise UserError(
            f"no memory for tensor {view.tensor} of shape {view.shape} and strides {view.strides}, which spans "
            f"{view.elements:,} elements: {str(error).splitlines()[0]}"
        ) from None


def _strided(flat: Any, view: View) -> Any:
    return flat.as_strided(view.shape, view.strides, flat.storage_offset() + view.offset)


def _part(tensor: Any, view: View, layout: View) -> Any:
    """Return the view's part of a tensor that was described as ``layout``; both may have grown or shrunk together."""
    if view.shape == layout.shape and view.strides == layout.strides and view.offset == layout.offset:
        return tensor
    if view.elements > layout.elements:
        raise UserError(
            f"tensor {view.tensor} is written as {layout.shape} with strides {layout.strides} and read as "
            f"{view.shape} with strides {view.strides}, "
            "which is more"
        )
    if tuple(tensor.shape) == layout.shape and layout.offset == 0:
        flat = torch.empty(layout.elements, dtype=tensor.dtype, device=tensor.device)
        flat.as_strided(layout.shape, layout.strides).copy_(tensor)
        return _strided(flat, view)
    raise UserError(
        f"tensor {view.tensor} has shape {tuple(tensor.shape)} and the policy is for {layout.shape}; a stage takes a "
        "part of it, "
        "which is known for that shape only"
    )


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
