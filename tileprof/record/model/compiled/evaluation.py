"""Running a generated Triton kernel on addresses alone, for all programs of its grid at once.

The kernel's Python source runs with a `tl` of our own: program numbers and lanes are `Lanes`, what is loaded is
`Unknown` (or the real numbers, where integers are known), loads and stores are noted. Programs that take different
ways run again, each group on its own.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64, grids
from tileprof.record.model.compiled import lane_arithmetic, lanes
from tileprof.record.model.compiled.accesses import Accesses, Space, boxes
from tileprof.record.model.compiled.lanes import Lanes, Mask, NotUniform, Unknowable, Unknown
from tileprof.trace.footprint import ATOMIC, READ, WRITE, Footprint

_MOST_WAYS = 4096
"""Most groups of programs that take different branches."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument that points to memory, plus ``offset`` elements. ``values``: what is there, where it is known."""

    space: Space
    itemsize: int
    values: Callable[[], NDArray[Any] | None]
    offset: Any = 0

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.space, self.itemsize, self.values, lane_arithmetic.combine("+", self.offset, other))

    __radd__ = __add__

    @property
    def dtype(self) -> Any:
        """The type of the pointer; what it points to does not matter here."""
        return SimpleNamespace(element_ty=SimpleNamespace(name="float32"), name="pointer")

    @property
    def shape(self) -> tuple[int, ...]:
        """The block of addresses."""
        return tuple(getattr(self.offset, "shape", ()))

    def to(self, *_: Any, **__: Any) -> Pointer:
        """Return the pointer; element types do not change here."""
        return self

    def __getitem__(self, index: Any) -> Pointer:
        return Pointer(self.space, self.itemsize, self.values, lanes.lanes(self.offset)[index])


@dataclass(slots=True)
class Result:
    """The accesses of a kernel's programs. ``flops`` counts dot products, per program; ``bounded``: some accesses are
    supersets.
    """

    footprint: Footprint
    flops: NDArray[np.float64]
    bounded: bool


def evaluate(
    source: str, name: str, arguments: Mapping[str, Any], grid: tuple[int, int, int], spaces: list[Space]
) -> Result:
    """Run the kernel ``name`` of a generated module.

    Raises `Unknowable` where control flow depends on values, and ValueError for addresses outside every operand.
    """
    places = grids.places(grid).astype(np.int64)
    todo = [np.arange(len(places))]
    finished: list[_Run] = []
    while todo:
        run = _Run(places, todo.pop(), grid)
        try:
            run(source, name, arguments)
        except NotUniform as split:
            groups = np.broadcast_to(split.groups, run.tiles.shape)
            numbers = np.unique(groups)
            if len(todo) + len(finished) + len(numbers) > _MOST_WAYS:
                raise Unknowable from None
            todo += [run.tiles[groups == number] for number in numbers]
        else:
            finished.append(run)
    flops = np.zeros(len(places))
    for run in finished:
        flops[run.tiles] = run.flops
    footprint = Footprint(places.astype(np.int32), boxes([run.accesses for run in finished], spaces))
    return Result(footprint, flops, any(run.accesses.bounded for run in finished))


class _Run:
    """One way through the kernel, for the programs ``tiles``."""

    def __init__(self, places: I64, tiles: I64, grid: tuple[int, int, int]) -> None:
        self.tiles, self.grid, self.flops = tiles, grid, 0
        self.accesses = Accesses(tiles)
        self._places = places[tiles]

    def __call__(self, source: str, name: str, arguments: Mapping[str, Any]) -> None:
        scope = self._scope()
        exec(_code(source), scope)  # noqa: S102 - Inductor's own code, as it would run
        with np.errstate(all="ignore"):
            scope[name](**arguments)

    def _scope(self) -> dict[str, Any]:
        language = _Language(self)
        helpers = _Helpers()
        triton = SimpleNamespace(cdiv=_ceiling, jit=lambda function: function, language=language)
        return {
            "__builtins__": builtins, "tl": language, "triton_helpers": helpers, "libdevice": _UnknownFunctions(),
            "tl_math": _UnknownFunctions(), "math": math, "triton": triton,
            "min": lanes_or(min, lane_arithmetic.least), "max": lanes_or(max, lane_arithmetic.greatest),
            "float": _float, "range": _range,
        }  # fmt: skip

    # ---- memory

    def load(self, pointer: Any, mask: Any = None, *_: Any, **__: Any) -> Any:
        """Note a load; the numbers where they are known."""
        if not isinstance(pointer, Pointer):
            raise Unknowable  # an address that is made of values, or a descriptor
        active, offset = self._note(READ, pointer, mask)
        values = pointer.values() if isinstance(offset, Lanes) else None
        shape = tuple(np.broadcast_shapes(active.shape, pointer.shape))
        if values is None or not len(values):
            return Unknown(shape)
        return _gathered(values, lanes.broadcast(offset, shape), lanes.broadcast(active, shape))

    def store(self, pointer: Any, _value: Any = None, mask: Any = None, *_: Any, **__: Any) -> None:
        """Note a store."""
        if not isinstance(pointer, Pointer):
            raise Unknowable
        self._note(WRITE, pointer, mask)

    def atomic(self, pointer: Any, _value: Any = None, mask: Any = None, *_: Any, **__: Any) -> Unknown:
        """Note an atomic update."""
        if not isinstance(pointer, Pointer):
            raise Unknowable
        self._note(ATOMIC, pointer, mask)
        return Unknown(pointer.shape)

    def _note(self, mode: int, pointer: Pointer, mask: Any) -> tuple[Mask, Any]:
        active = lanes.truth(value=True) if mask is None else lanes.lanes(mask)
        if not isinstance(active, Mask):
            active = (
                lanes.maybe(active.shape) if isinstance(active, Unknown) else lane_arithmetic.combine("!=", active, 0)
            )
        offset = lanes.lanes(pointer.offset)
        shape = tuple(np.broadcast_shapes(active.shape, offset.shape))
        self.accesses.add(
            mode, pointer.space, lanes.broadcast(offset, shape), pointer.itemsize, lanes.broadcast(active, shape)
        )
        return active, offset

    def program(self, axis: int) -> Lanes:
        """Return the programs' numbers along an axis."""
        return Lanes((), self._places[:, axis].copy(), ())


def _gathered(values: NDArray[Any], offset: Lanes, mask: Mask) -> Any:
    """Return known integers at these places; 0 where the mask is off."""
    if values.dtype == np.bool_:
        values = values.astype(np.int64)
    low, high = np.array([min(0, int(values.min()))]), np.array([max(0, int(values.max()))])

    def maker(chunk: lanes.Chunk) -> NDArray[Any]:
        places = offset.dense(chunk)
        return np.where(mask.dense(chunk) != 0, values[np.clip(places, 0, len(values) - 1)], 0)

    if offset.flat and bool(mask.always.all()):
        return Lanes(offset.shape, values[np.clip(offset.base, 0, len(values) - 1)].astype(np.int64),
                     (0,) * len(offset.shape))  # fmt: skip
    return Lanes.bounded(offset.shape, low, high, maker)


@lru_cache(maxsize=256)
def _code(source: str) -> Any:
    """Return the module without its imports and decorators."""
    tree = ast.parse(source)
    body: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            statement.decorator_list = []
            statement.returns = None
            for argument in (*statement.args.args, *statement.args.kwonlyargs, *statement.args.posonlyargs):
                argument.annotation = None
            body.append(statement)
        elif isinstance(statement, ast.Assign):
            body.append(statement)
    return compile(ast.Module(body, []), "<kernel>", "exec")


def _ceiling(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return -(-left // right)
    return (left + right - 1) // right


def _range(*ends: Any, **_: Any) -> builtins.range:
    return builtins.range(*(int(end) for end in ends))


def _float(value: Any) -> Any:
    return float(value) if isinstance(value, str | int | float) else Unknown()


def lanes_or(plain: Callable[..., Any], function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return a function for Python's numbers and for lanes."""

    def either(*values: Any, **options: Any) -> Any:
        if len(values) == 2 and any(isinstance(v, Lanes | Unknown | Mask) for v in values):
            return function(*values)
        return plain(*values, **options)

    return either


def shape_of(*values: Any) -> tuple[int, ...]:
    """Return the shape that values have together."""
    shapes = [tuple(getattr(value, "shape", ())) for value in values]
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        return shapes[0]


class _UnknownFunctions:
    """Functions of values: what they return is not known."""

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **_: Unknown(shape_of(*values))


class _Helpers(_UnknownFunctions):
    """Inductor's helpers: those that make indices are computed."""

    def __getattr__(self, name: str) -> Any:
        return self.max2 if name == "any" else super().__getattr__(name)

    div_floor_integer = staticmethod(lane_arithmetic.floor_quotient)
    remainder_integer = staticmethod(lane_arithmetic.floor_remainder)

    @staticmethod
    def minimum(left: Any, right: Any) -> Any:
        """Return the smaller one."""
        return lane_arithmetic.least(left, right)

    @staticmethod
    def maximum(left: Any, right: Any) -> Any:
        """Return the larger one."""
        return lane_arithmetic.greatest(left, right)

    @staticmethod
    def promote_to_tensor(value: Any) -> Any:
        """Return the value as it is."""
        return lanes.lanes(value)

    @staticmethod
    def max2(value: Any, axis: int | None = None) -> Any:
        """Return a reduced value."""
        return _reduced(value, axis)

    min2 = prod = max2

    @staticmethod
    def max_with_index(value: Any, _index: Any, axis: int) -> tuple[Any, Any]:
        """Return two reduced values."""
        return _reduced(value, axis), _reduced(value, axis)

    min_with_index = max_with_index

    @staticmethod
    def welford(mean: Any, _m2: Any, _weight: Any, axis: int) -> tuple[Any, Any, Any]:
        """Return three reduced values."""
        return (_reduced(mean, axis),) * 3

    @staticmethod
    def welford_reduce(value: Any, mean: Any, *_: Any) -> tuple[Any, Any, Any]:
        """Return three values of the same shape."""
        return (Unknown(shape_of(value, mean)),) * 3

    welford_combine = welford_reduce

    @staticmethod
    def maximum_with_index(left: Any, _a: Any, right: Any, _b: Any) -> tuple[Any, Any]:
        """Return two values of the same shape."""
        return (Unknown(shape_of(left, right)),) * 2

    minimum_with_index = maximum_with_index

    @staticmethod
    def online_softmax_combine(left: Any, _sum: Any, right: Any, *_: Any) -> tuple[Any, Any]:
        """Return two values of the same shape."""
        return (Unknown(shape_of(left, right)),) * 2

    @staticmethod
    def online_softmax_reduce(value: Any, _sum: Any, axis: int, *_: Any) -> tuple[Any, Any]:
        """Return two reduced values."""
        return (_reduced(value, axis),) * 2

    @staticmethod
    def sort_with_index(value: Any, index: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Return two values of the same shape."""
        return Unknown(shape_of(value)), Unknown(shape_of(index))

    @staticmethod
    def set_driver_to_gpu() -> None:
        """Do nothing."""

    @staticmethod
    def if_mask(mask: Any, _value: Any) -> Any:
        """Return the mask of a load."""
        return mask


def _reduced(value: Any, axis: int | None = None, keep_dims: bool = False, **_: Any) -> Unknown:
    shape = list(shape_of(value))
    if axis is None:
        return Unknown(())
    if keep_dims:
        shape[axis] = 1
    elif shape:
        del shape[axis]
    return Unknown(tuple(shape))


class _Language(_UnknownFunctions):
    """The module that kernels call ``tl``; functions that are not here make unknown values."""

    class constexpr:  # noqa: N801 (Triton's name)
        """A constant is its value."""

        def __new__(cls, value: Any) -> Any:
            """Return the value."""
            return value

    def __init__(self, run: _Run) -> None:
        self._run = run
        self.load, self.store = run.load, run.store
        for name in ("add", "max", "min", "and", "or", "xor", "xchg", "cas"):
            setattr(self, f"atomic_{name}", run.atomic)
        for name in _TYPES:
            setattr(self, name, SimpleNamespace(name=name))
        self.math = self.extra = _UnknownFunctions()
        self.range = self.static_range = _range

    def program_id(self, axis: int) -> Lanes:
        """Return the program's number."""
        return self._run.program(axis)

    def num_programs(self, axis: int) -> int:
        """Return the size of the grid."""
        return self._run.grid[axis]

    @staticmethod
    def arange(begin: int, end: int) -> Lanes:
        """Return lanes from ``begin`` to ``end``."""
        return Lanes((end - begin,), np.array([begin], np.int64), (1,))

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
        """Return a constant."""
        shape = tuple(int(n) for n in shape)
        name = getattr(dtype, "name", "")
        if isinstance(value, int | np.integer) and name == "int1":
            return lanes.truth(bool(value), shape)
        if isinstance(value, int | np.integer) and "int" in name:
            return lanes.broadcast(int(value), shape)
        return lanes.broadcast(value, shape).to(dtype) if isinstance(value, Lanes | Mask) else Unknown(shape)

    @staticmethod
    def zeros(shape: Any, dtype: Any = None, **_: Any) -> Any:
        """Return zeros."""
        return _Language.full(shape, 0, dtype)

    @staticmethod
    def broadcast_to(value: Any, *shape: Any) -> Any:
        """Return the value in a larger shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return lanes.broadcast(value, tuple(int(n) for n in sizes))

    @staticmethod
    def where(mask: Any, left: Any, right: Any) -> Any:
        """Return one or the other."""
        return lane_arithmetic.where(mask, left, right)

    @staticmethod
    def minimum(left: Any, right: Any, *_: Any, **__: Any) -> Any:
        """Return the smaller one."""
        return lane_arithmetic.least(left, right)

    @staticmethod
    def maximum(left: Any, right: Any, *_: Any, **__: Any) -> Any:
        """Return the larger one."""
        return lane_arithmetic.greatest(left, right)

    @staticmethod
    def multiple_of(value: Any, *_: Any) -> Any:
        """Return the value: a hint."""
        return value

    max_contiguous = max_constancy = assume = multiple_of

    @staticmethod
    def cdiv(left: Any, right: Any) -> Any:
        """Return the quotient rounded up."""
        return _ceiling(left, right)

    @staticmethod
    def cast(value: Any, dtype: Any, **_: Any) -> Any:
        """Return the value as another type."""
        return value.to(dtype) if hasattr(value, "to") else value

    @staticmethod
    def expand_dims(value: Any, axis: int) -> Any:
        """Return the value with one dimension more."""
        rank = len(shape_of(value)) + 1
        return value[tuple(None if n == axis % rank else slice(None) for n in range(rank))]

    def dot(self, left: Any, right: Any, acc: Any = None, **_: Any) -> Unknown:
        """Count a product."""
        rows, columns = shape_of(left), shape_of(right)
        self._run.flops += 2 * math.prod(rows) * columns[-1]
        return Unknown(shape_of(acc) if acc is not None else (*rows[:-1], columns[-1]))

    @staticmethod
    def trans(value: Any, *_: Any) -> Any:
        """Return the value with its dimensions in the other order."""
        return Unknown(shape_of(value)[::-1])

    @staticmethod
    def reshape(_value: Any, *shape: Any, **__: Any) -> Unknown:
        """Return unknown values of a shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return Unknown(tuple(int(n) for n in sizes))

    view = reshape
    sum = max = min = xor_sum = argmax = argmin = staticmethod(_reduced)

    @staticmethod
    def reduce(value: Any, axis: int | None, *_: Any, keep_dims: bool = False, **__: Any) -> Any:
        """Return reduced values, as many as are given."""
        if isinstance(value, tuple):
            return tuple(_reduced(one, axis, keep_dims) for one in value)
        return _reduced(value, axis, keep_dims)

    @staticmethod
    def associative_scan(value: Any, *_: Any, **__: Any) -> Any:
        """Return values of the same shapes."""
        return tuple(Unknown(shape_of(one)) for one in value) if isinstance(value, tuple) else Unknown(shape_of(value))

    @staticmethod
    def device_assert(*_: Any, **__: Any) -> None:
        """Do nothing."""

    static_assert = debug_barrier = device_print = static_print = device_assert


_TYPES = (
    "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float8e4nv", "float8e5",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
