"""Addresses of a Triton kernel without its data: what fake tensors need.

Programs run on pointers alone: loads return stand-ins, stores and dot products do nothing. Addresses, masks, branches
and loop bounds that are made of a stand-in depend on values, and so does what differs between constants and mixed
stand-ins (some ways through the interpreter make plain arrays of them); such a kernel cannot be recorded without
values. Boxes of inner programs of a grid mostly move by a constant from neighbour to neighbour: they are then worked
out from a few programs and checked on others at random; where masks cut the programs at the grid's upper edges, these
run one by one. Whatever does not check out runs in full.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.record.triton.interpreter import Watch, watching
from tileprof.record.triton.programs import ProgramLog, Span
from tileprof.trace.footprint import Boxes

Place = tuple[int, int, int]

_CHECKS = 8
"""Inner programs that are run to check the extrapolation."""
_MOST_ACCESSES = 1_000_000
"""A program with more loops over values that are not there."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Stands for a tensor argument: an address and an element type, no memory."""

    dtype: Any
    address: int

    def data_ptr(self) -> int:
        return self.address


class DependsOnValues(Exception):  # noqa: N818 (an answer, not an error)
    """Addresses or control flow depend on loaded values."""


class _StandIn(np.ndarray[Any, Any]):
    """Values that are not there. Arithmetic with them gives more of them; nothing may be decided by one."""

    def __array_function__(self, function: Any, _types: Any, arguments: Any, options: Any) -> Any:
        result = function(*_plain(arguments), **_plain(options))  # numpy's own functions decide by values inside
        return np.asarray(result).view(_StandIn) if isinstance(result, np.ndarray | np.generic) else result

    def _decide(self) -> Any:
        raise DependsOnValues

    __bool__ = __int__ = __index__ = _decide


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_plain(one) for one in value)
    return value.view(np.ndarray) if isinstance(value, _StandIn) else value


_MIXED = -1
"""A fill: small numbers that differ from element to element and from load to load."""


class AddressRun:
    """One launch of an interpreted kernel, run on pointers; ``arguments`` hold `Pointer` in place of tensors."""

    def __init__(self, module: Any, executor: Any, arguments: dict[str, Any]) -> None:
        self._module, self._executor = module, executor
        try:
            scope = module._patch_lang(executor.fn)  # noqa: SLF001 (the interpreter offers no other way in)
            try:
                fixed = executor.constexprs
                self._bound_arguments = {n: a if n in fixed else module._implicit_cvt(a) for n, a in arguments.items()}  # noqa: SLF001
                grid = executor.grid(self._bound_arguments) if callable(executor.grid) else executor.grid
            finally:
                scope.restore()
        except AttributeError as error:
            raise UserError(
                f"Triton kernels on fake tensors need another Triton than this one ({error}); record without --fake"
            ) from None
        x, y, z = (*(int(n) for n in grid), 1, 1, 1)[:3]
        self.grid: Place = (x, y, z)

    def boxes(self, spans: list[Span]) -> tuple[list[Place], list[Boxes], list[int]]:
        """Return places in hardware order, the boxes of each program, and the flops of each.

        Raises `DependsOnValues`, and ValueError for an address outside every span.
        """
        places = [(x, y, z) for z, y, x in product(*(range(n) for n in reversed(self.grid)))]
        self._check_values(places, spans)
        guess = self._extrapolated(places, spans) if len(places) > 4 * _CHECKS else None
        if guess is None:
            logs = self._run(places, 0)
            guess = {p: (log.boxes(0, spans), log.flops) for p, log in logs.items()}
        guesses = [guess[place] for place in places]
        tiled = [replace(b, tile=np.full(len(b), n, np.int32)) for n, (b, _) in enumerate(guesses)]
        return places, tiled, [flops for _, flops in guesses]

    def _run(self, places: Iterable[Place], fill: int) -> dict[Place, ProgramLog]:
        builder = self._module.interpreter_builder
        scope = self._module._patch_lang(self._executor.fn)  # noqa: SLF001 (as above)
        try:
            if hasattr(self._module, "ReduceScanOpInterface"):
                scope.set_attr(self._module.ReduceScanOpInterface, "to_tensor", _reduction_result(self._module))
            with watching(builder) as watch, np.errstate(all="ignore"):
                _blind(self._module, builder, watch, fill)
                builder.set_grid_dim(*self.grid)
                for place in places:
                    builder.set_grid_idx(*place)
                    self._executor.fn(**self._bound_arguments)
                return dict(zip(watch.at, watch.programs, strict=True))
        except Exception as error:
            if _led_to(error, DependsOnValues):  # the interpreter wraps what functions raise that a kernel calls
                raise DependsOnValues from None
            raise
        finally:
            scope.restore()

    def _check_values(self, places: list[Place], spans: list[Span]) -> None:
        for place in _sample(places, 4):
            zero = self._run([place], 0)[place].boxes(0, spans)
            for fill in (1, _MIXED):
                try:
                    other = self._run([place], fill)[place].boxes(0, spans)
                except ValueError:  # an address outside every tensor, made of what was loaded
                    raise DependsOnValues from None
                if not _same(zero, other):
                    raise DependsOnValues

    def _extrapolated(self, places: list[Place], spans: list[Span]) -> dict[Place, tuple[Boxes, int]] | None:
        """Return all programs from a few; the upper edges too where no mask cuts them.

        None where they do not follow.
        """
        last = tuple(n - 1 for n in self.grid)
        inner = [p for p in places if all(c < e or e == 0 for c, e in zip(p, last, strict=True))]
        edge = sorted(set(places) - set(inner))
        units: list[Place] = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
        steps = [unit for axis, unit in enumerate(units) if self.grid[axis] > 2]
        if not steps:
            return None
        whole = self._moved(places, steps, [*_sample(places, _CHECKS), *_sample(edge, _CHECKS)], spans)
        if whole is not None or len(edge) > len(places) // 2:
            return whole
        guess = self._moved(inner, steps, _sample(inner, _CHECKS), spans)
        if guess is None:
            return None
        return guess | {p: (log.boxes(0, spans), log.flops) for p, log in self._run(edge, 0).items()}

    def _moved(
        self, places: list[Place], steps: list[Place], checks: list[Place], spans: list[Span]
    ) -> dict[Place, tuple[Boxes, int]] | None:
        """Return the first program's boxes, moved in proportion to the place; None where a program in ``checks``
        differs.
        """
        origin = (0, 0, 0)
        logs = self._run({origin, *steps, *checks}, 0)
        base, flops = logs[origin].boxes(0, spans), logs[origin].flops
        shifts = np.zeros((3, len(base)), np.int64)
        for step in steps:
            shifted_boxes = logs[step].boxes(0, spans)
            if not _same(base, shifted_boxes, but_offset=True):
                return None
            shifts[step.index(1)] = shifted_boxes.offset - base.offset
        guess = {p: (replace(base, offset=base.offset + np.asarray(p, np.int64) @ shifts), flops) for p in places}
        return guess if all(_same(guess[p][0], logs[p].boxes(0, spans)) for p in checks) else None


def _sample(places: list[Place], count: int) -> list[Place]:
    """Return the first, the last and some at random, the same ones every time."""
    if not places:
        return []
    random = np.random.default_rng(0)
    sample = {0, len(places) - 1, *random.integers(len(places), size=count).tolist()}
    return [places[n] for n in sorted(sample)]


def _same(a: Boxes, b: Boxes, *, but_offset: bool = False) -> bool:
    names = [n for n in Boxes.__slots__ if not (but_offset and n == "offset")]
    return len(a) == len(b) and all(
        np.array_equal(getattr(a, n), getattr(b, n), equal_nan=n in {"first", "last"}) for n in names
    )


def _blind(module: Any, builder: Any, watch: Watch, fill: int) -> None:
    """Let the builder's memory methods log and touch nothing; `watching` restores them."""

    def log(pointers: Any, mask: Any, mode: int) -> NDArray[np.uint64]:
        program = watch.programs[-1]
        decided_by = (pointers.data, None if mask is None else mask.data)
        if len(program.accesses) >= _MOST_ACCESSES or any(isinstance(data, _StandIn) for data in decided_by):
            raise DependsOnValues
        itemsize = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        addresses = np.asarray(pointers.data, np.uint64)
        program.add(mode, addresses, None if mask is None else np.asarray(mask.data, bool), itemsize)
        return addresses

    def value(addresses: NDArray[np.uint64], element: Any) -> Any:
        dtype = module._get_np_dtype(element)  # noqa: SLF001 (as above)
        content = np.full(addresses.shape, fill if fill != _MIXED else 0, dtype)
        if fill == _MIXED:
            turn = len(watch.programs[-1].accesses)
            content = ((addresses // 4 * 2654435761 + turn * 40503) // 65536 % 5).astype(dtype)
        return module.TensorHandle(content.view(_StandIn), element)

    def discard(*_arguments: Any, **_options: Any) -> None:
        return None

    methods: dict[str, Callable[..., Any]] = {
        "create_masked_load": lambda p, mask, *_a, **_k: value(log(p, mask, 0), p.get_element_ty()),
        "create_masked_store": lambda p, _v, mask, *_a, **_k: discard(log(p, mask, 1)),
        "create_atomic_rmw": lambda _op, p, v, mask, *_a, **_k: value(log(p, mask, 2), v.dtype.scalar),
        "create_atomic_cas": lambda p, compare, *_a, **_k: value(log(p, None, 2), compare.dtype.scalar),
        "create_dot": lambda a, _b, d, *_a, **_k: _dot(watch, a, d),
    }
    for name, method in methods.items():
        setattr(builder, name, method)


def _reduction_result(module: Any) -> Callable[..., Any]:
    """Return what makes a tensor of a reduction's result: of stand-ins it is one, too."""
    original = module.ReduceScanOpInterface.to_tensor

    def to_tensor(self: Any, result: Any, dtype: Any) -> Any:
        if not isinstance(result, _StandIn):
            return original(self, result, dtype)
        tensor = original(self, result.view(np.ndarray), dtype)
        tensor.handle.data = tensor.handle.data.view(_StandIn)
        return tensor

    return to_tensor


def _led_to(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error is not None


def _dot(watch: Watch, left: Any, total: Any) -> Any:
    watch.programs[-1].flops += 2 * total.data.size * left.data.shape[-1]
    return total


def named_arguments(executor: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the kernel's own arguments by name, launch options left out."""
    spec = inspect.getfullargspec(executor.fn)
    own = {k: v for k, v in options.items() if k in spec.args or k in spec.kwonlyargs}
    return inspect.getcallargs(executor.fn, *arguments, **own)
