"""Recording without memory or arithmetic: the program runs on PyTorch's fake tensors, which know layouts only."""

from __future__ import annotations

import sysconfig
import traceback
import weakref
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WHY = {
    DataDependentOutputException: "needs a value that was never computed ({0})",
    DynamicOutputShapeException: "makes a tensor whose size depends on values that were never computed ({0})",
    UnsupportedOperatorException: "calls {0}, which PyTorch cannot run on fake tensors",
    UnsupportedFakeTensorException: "uses a tensor that cannot be fake ({0})",
}


SMALL: Final = 1 << 16
"""Elements up to which a tensor that is made of constants alone is computed: positions, masks, schedules, shuffled
indices."""

_UNDEFINED = ("aten::empty", "aten::new_empty")
"""Factories whose result has no values."""


class Mode(FakeTensorMode):  # type: ignore[misc] # typed as Any
    """Fake tensors, of which those keep values that the program makes of constants and random numbers alone, where
    small.

    PyTorch computes for real what depends on constants only; here factories make constants, too, and so does a random
    number drawn into a tensor of one element, as samplers draw their seeds.
    """

    def may_turn_const(self, t: torch.Tensor) -> bool:
        """Return whether a result of constants is a constant."""
        return t.numel() <= SMALL and t.layout is torch.strided and not self.is_our_fake(t) and t.device.type != "meta"

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Dispatch as PyTorch does; factories and seeds for real."""
        kwargs = kwargs or {}
        if isinstance(func, OpOverload):
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            if not tensors and _is_factory(func):
                constant = self._constant(func, args, kwargs)
                if constant is not None:
                    return constant
            if "sparse" in func._schema.name:  # noqa: SLF001 - PyTorch fails to tell that no sparse result is a constant
                for tensor in tensors:
                    if isinstance(tensor, FakeTensor):
                        tensor.constant = None
            if len(tensors) == 1 and tensors[0].numel() == 1 and _is_draw(func):
                return self._draw(func, args, kwargs)
        return super().dispatch(func, types, args, kwargs)

    def _constant(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """Return the factory's result with its values; None where it is large or on another device."""
        if str(kwargs.get("device") or "cpu") != "cpu":
            return None
        result = super().dispatch(func, (), args, kwargs)
        if not isinstance(result, FakeTensor) or result.layout is not torch.strided or result.numel() > SMALL:
            return result
        if result.device.type != "cpu":
            return result
        with no_dispatch():
            real = func(*args, **kwargs)
        return self.fake_tensor_converter.from_real_tensor(self, real, make_constant=True)

    def _draw(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        target = args[0]
        if not isinstance(target, FakeTensor) or target.device.type != "cpu":
            return super().dispatch(func, (FakeTensor,), args, kwargs)
        with no_dispatch():
            real = torch.empty(target.shape, dtype=target.dtype)
            func(real, *args[1:], **kwargs)
        target.constant = real
        self.fake_tensor_converter.add_constant_storage_mapping(target)
        return target


def _is_factory(func: OpOverload) -> bool:
    name = func._schema.name  # noqa: SLF001 - has no public name
    return name.startswith("aten::") and not name.startswith(_UNDEFINED) and not func._schema.is_mutable  # noqa: SLF001


def _is_draw(func: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags and func._schema.name.endswith("_")  # noqa: SLF001


def mode() -> FakeTensorMode:
    """Return the mode in which tensors are fake; what the program got from elsewhere (numpy, files) becomes fake as
    well.
    """
    return Mode(allow_non_fake_inputs=True)


@contextmanager
def initialisation() -> Iterator[None]:
    """Lets ``nn.init.trunc_normal_`` fill fake parameters: it draws until no value is beyond its bounds, and there are
    none.
    """

    def draw_once(
        tensor: torch.Tensor, mean: float, std: float, _low: float, _high: float, generator: Any = None
    ) -> torch.Tensor:
        with torch.no_grad():
            return tensor.normal_(mean, std, generator=generator)

    original = vars(torch.nn.init)["_no_grad_trunc_normal_"]
    vars(torch.nn.init)["_no_grad_trunc_normal_"] = draw_once
    try:
        yield
    finally:
        vars(torch.nn.init)["_no_grad_trunc_normal_"] = original


@contextmanager
def conversions() -> Iterator[None]:
    """Lets ``module.half()``, ``.to()`` and the like convert fake parameters.

    PyTorch exchanges their contents, which it refuses to do for a tensor that has weak references, and its own
    fake mode does so for every tensor that it makes. What refers to a parameter is to refer to the converted one, which
    is what the exchange gives.
    """

    def of_others(tensor: Any) -> list[Any]:
        return [] if isinstance(tensor, FakeTensor) else weakref.getweakrefs(tensor)

    original = vars(torch.utils)["weakref"]
    vars(torch.utils)["weakref"] = SimpleNamespace(getweakrefs=of_others)
    try:
        yield
    finally:
        vars(torch.utils)["weakref"] = original


@contextmanager
def deep_copies() -> Iterator[None]:
    """Lets ``copy.deepcopy`` copy fake tensors: PyTorch copies their storages, which its fake mode cannot.

    As on a device, a storage is copied once and whole, and tensors that share one still share its copy.
    """

    def deepcopy(self: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
        if type(self) is not FakeTensor or self.layout is not torch.strided or self.is_conj() or self.is_neg():
            return original(self, memo)
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol at the moment"
            )
        with torch.no_grad():
            storage = self.untyped_storage()
            if storage._cdata not in memo:  # noqa: SLF001 - the key that PyTorch uses
                whole = self.detach().as_strided((storage.nbytes() // self.element_size(),), (1,), 0)
                memo[storage._cdata] = whole.clone()  # noqa: SLF001
            flat = memo[storage._cdata].view(self.dtype)  # noqa: SLF001
            copy = flat.as_strided(self.shape, self.stride(), self.storage_offset()).detach()
        copy.requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        if self.grad is not None:
            copy.grad = deepcopy(self.grad, memo)
        return copy

    original = torch.Tensor.__deepcopy__
    torch.Tensor.__deepcopy__ = deepcopy
    try:
        yield
    finally:
        torch.Tensor.__deepcopy__ = original


def only_fake(types: Iterable[type]) -> bool:
    """Return whether all tensor subclasses among ``types`` are fake tensors."""
    return all(issubclass(t, FakeTensor) for t in types)


def obstacle(error: BaseException) -> str | None:
    """Return a sentence on why the program cannot run fake and where; None for errors that are the program's own."""
    for kind, why in _WHY.items():
        if isinstance(error, kind):
            reason = why.format(*(str(a) for a in error.args[:1] or ("unknown",)))
            break
    else:
        text = str(error)
        if not isinstance(error, RuntimeError):
            return None
        if "not supported for tensor subclasses" in text:
            reason = f"leaves PyTorch ({text.partition('(')[0].strip()})"
        elif "its data is not allocated yet" in text:
            reason = "reads values that were never computed from C++ (packed sequences do)"
        else:
            return None
    (file, line, code), library = _place(error), _library(error)
    inside = f" in {library[0]}, line {library[1]} ({library[2]})," if library is not None else ""
    return (
        f"The program cannot go on with --fake: {file}, line {line}{inside} {reason}.\n    {code}\n"
        "Make the program not ask for the value while it is recorded, or record without --fake."
    )


Line = tuple[str, int, str]


def _package_folders() -> tuple[str, ...]:
    return sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"), "<frozen"


def _own(name: str) -> bool:
    return name.startswith(str(Path(__file__).parents[2]))


def _place(error: BaseException) -> Line:
    """Return the innermost line of the user's own files: neither installed, nor Python's, nor ours."""
    foreign = (*_package_folders(), str(Path(torch.__file__).parent))
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(foreign) and not _own(f.filename)] or frames[-1:]
    return own[-1].filename, own[-1].lineno or 0, own[-1].line or ""


_MACHINERY = (
    "_subclasses", "_ops.py", "_tensor.py", "_higher_order_ops", "overrides.py", "utils/_", "_prims", "_refs", "_meta",
    "_dynamo", "_compile.py", "_library",
)  # fmt: skip


def _library(error: BaseException) -> Line | None:
    """Return the innermost line of a library that the user's line called, if it did: not of what makes tensors fake."""
    home = Path(torch.__file__).parent
    innermost = None
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        inner = path.is_relative_to(home) and str(path.relative_to(home)).startswith(_MACHINERY)
        library = path.is_relative_to(home) or frame.filename.startswith(_package_folders()[:2])
        if _own(frame.filename) or frame.filename.startswith("<"):
            continue
        if not library and not frame.filename.startswith(_package_folders()):
            innermost = None  # the user's: what it calls comes after
        elif library and not inner:
            innermost = frame.filename, frame.lineno or 0, frame.line or ""
    return innermost
