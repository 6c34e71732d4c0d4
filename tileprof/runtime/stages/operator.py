"""A stage operator: a frozen description that knows its tiles, what each touches, and how to compute one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, Final

from tileprof.arrays import grids
from tileprof.errors import UserError
from tileprof.runtime.executor.touches import READ, WRITE, Touches
from tileprof.runtime.stages.view import Spans, View

Grid = tuple[int, int, int]

_MODULES: Final = {
    "gemm": "gemm",
    "reduce": "reduce",
    "conv2d": "conv",
    "pointwise": "pointwise",
    "elementwise": "elementwise",
    "norm": "rows",
    "softmax": "rows",
    "attention": "attention",
}


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an operand that a tile touches."""

    role: str
    spans: Spans
    mode: int = READ


class Operator(ABC):
    """Subclasses are frozen dataclasses: fields of type `View` are operands, the others parameters; ``out`` is the
    operand written.

    They validate themselves and raise `UserError`. Tensors are handed in by role, as views of just the described shape
    and strides.
    """

    NAME: ClassVar[str]
    out: View

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """Tiles along x, y and z."""

    @abstractmethod
    def regions(self, x: int, y: int, z: int) -> Iterator[Region]:
        """Return what tile (x, y, z) touches; what it writes lies in ``out``."""

    @abstractmethod
    def run_tile(self, x: int, y: int, z: int, tensors: Mapping[str, Any]) -> None:
        """Compute one tile on the CPU, products and sums in float32, and write it into ``tensors["out"]``."""

    @abstractmethod
    def reference(self, tensors: Mapping[str, Any]) -> Any:
        """Return the whole result by plain PyTorch, of whatever shape the tensors given have."""

    def views(self) -> dict[str, View]:
        """Return operands by role."""
        values = ((f.name, getattr(self, f.name)) for f in _fields(self))
        return {name: value for name, value in values if isinstance(value, View)}

    @property
    def tiles(self) -> int:
        x, y, z = self.grid
        return x * y * z

    def place(self, tile: int) -> tuple[int, int, int]:
        """Return coordinates of a tile by its number."""
        return grids.place(self.grid, tile)

    def touches(self, buffers: Mapping[str, int]) -> Touches:
        """Return what all tiles touch; ``buffers`` numbers the tensors."""
        views = self.views()
        rows: list[tuple[int, ...]] = []
        for tile in range(self.tiles):
            for region in self.regions(*self.place(tile)):
                view = views[region.role]
                head = tile, buffers[view.tensor], region.mode
                rows.extend((*head, *box) for box in view.boxes(region.spans))
        return Touches.of(rows)

    def describe(self) -> dict[str, Any]:
        """Return the form in a policy file; `operator_of` gives an equal operator back."""
        parameters = {}
        for f in _fields(self):
            value = getattr(self, f.name)
            if not isinstance(value, View) and value != f.default:
                parameters[f.name] = list(value) if isinstance(value, tuple) else value
        operands = {role: view.describe() for role, view in self.views().items()}
        return {"name": self.NAME, "operands": operands, "parameters": parameters}


def operator_of(description: Mapping[str, Any]) -> Operator:
    """Return the operator that a stage describes; raises `UserError` with what is wrong."""
    name = description.get("name")
    if not isinstance(name, str) or name not in _MODULES:
        raise UserError(f"there is no stage operator {name!r}; known: {', '.join(_MODULES)}")
    module = import_module(f"tileprof.runtime.stages.{_MODULES[name]}")
    kind: type[Operator] = next(k for k in vars(module).values() if getattr(k, "NAME", None) == name)
    operands, parameters = description.get("operands", {}), description.get("parameters", {})
    if not isinstance(operands, dict) or not isinstance(parameters, dict):
        raise UserError(f"{name}: operands and parameters are objects")
    roles = {f.name for f in _fields(kind) if "View" in str(f.type)}
    names = {f.name for f in _fields(kind)}
    for mapping, names_of_kind, what in ((operands, roles, "operand"), (parameters, names - roles, "parameter")):
        for key in mapping:
            if key not in names_of_kind:
                raise UserError(f"{name} has no {what} {key!r}; it has {', '.join(sorted(names_of_kind))}")
    required = {f.name for f in _fields(kind) if f.default is MISSING}
    if missing_names := sorted(required - set(operands) - set(parameters)):
        raise UserError(f"{name} lacks {', '.join(missing_names)}")
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in parameters.items()}
    try:
        return kind(**{role: View.parse(view) for role, view in operands.items()}, **values)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: a parameter has the wrong type: {error}") from None


def cut(tensor: Any, spans: Spans) -> Any:
    """Return the part of a tensor between ``spans``."""
    return tensor[tuple(slice(low, high) for low, high in spans)]


def write_region(spans: Spans) -> Region:
    """Return the region of the result that a tile writes."""
    return Region("out", spans, WRITE)


def _fields(kind: Any) -> tuple[Any, ...]:
    return fields(kind)
