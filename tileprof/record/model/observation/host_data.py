"""Data on the host: on a GPU they are copied there and back.

PyTorch's dispatcher does not tell `torch.tensor(data, device=x.device)`, which copies, from `torch.tensor(data)`, whose
tensor stays on the host until something moves it. Inside a session the functions that take data are wrapped, and so are
those that move tensors: `Tensor.to` and `Tensor.cpu`, which do nothing on a CPU, and `Tensor.tolist`, which copies all
values to the host at once. What `Tensor.cpu` returns is the host's (`Buffer.host_copy`), and so is what is computed
from it alone.
"""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from tileprof.record.model.memory.storage import without_transforms
from tileprof.record.model.observation.dispatch import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tileprof.record.model.session import Session

_FUNCTIONS = ("tensor", "as_tensor", "from_numpy")
_FILLS = {"aten::fill_.Tensor": 1, "aten::masked_fill_.Tensor": 2, "aten::masked_fill.Tensor": 2}
_PUTS = ("aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
_INDEXED = ("aten::index.Tensor", *_PUTS)


@contextmanager
def watch(session: Session) -> Iterator[Callable[[], None]]:
    """Tell the session of data that become tensors (`Session.from_host`); yields what ends that before the context
    does.
    """
    _device_constructors()  # `with torch.device(...)` remembers the functions as they are when it is first asked
    originals = {name: getattr(torch, name) for name in _FUNCTIONS}
    builtins: dict[int, str] = torch.jit._builtins._get_builtin_table()  # noqa: SLF001 - TorchScript knows them by id
    wrapped = {name: _wrapped(original, session) for name, original in originals.items()}
    for name, function in wrapped.items():
        if id(originals[name]) in builtins:
            builtins[id(function)] = f"aten::{name}"
        setattr(torch, name, function)
    ends = _watch_lists(session), _watch_moves(session)

    def end() -> None:
        for end_of_methods in ends:
            end_of_methods()
        for name, function in wrapped.items():
            if getattr(torch, name) is function:
                setattr(torch, name, originals[name])
            builtins.pop(id(function), None)

    try:
        yield end
    finally:
        end()


def _wrapped(original: Callable[..., torch.Tensor], session: Session) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = original(*args, **kwargs)
        data = args[0] if args else kwargs.get("data")
        foreign = isinstance(data, torch.Tensor) or (isinstance(tensor, FakeTensor) and not session.fake)
        if session.active and not foreign and tensor.device.type == "cpu" and _is_on():
            device = kwargs.get("device")
            library = _called_by_a_library()
            stays = device is None or (isinstance(device, str) and library) or original is torch.from_numpy
            session.from_host(without_transforms(tensor), stays=stays, in_use=library)
        return tensor

    return _named(make, original.__name__)


def _watch_lists(session: Session) -> Callable[[], None]:
    """Let `tolist` be one copy of the tensor, as on a GPU; PyTorch reads fake tensors element by element. Returns what
    ends that.
    """
    originals = {kind: kind.tolist for kind in (torch.Tensor, FakeTensor)}
    own = {kind: vars(kind).get("tolist") for kind in originals}
    wrapped = {kind: _listing(original, session) for kind, original in originals.items()}
    for kind, function in wrapped.items():
        kind.tolist = function

    def end() -> None:
        for kind, function in wrapped.items():
            if vars(kind).get("tolist") is not function:
                continue
            del kind.tolist
            if own[kind] is not None:  # else it was inherited
                kind.tolist = own[kind]

    return end


def _listing(original: Callable[[torch.Tensor], Any], session: Session) -> Callable[[torch.Tensor], Any]:
    @functools.wraps(original)
    def tolist(tensor: torch.Tensor) -> Any:
        is_fake = type(tensor) is FakeTensor
        plain = session.fake if is_fake else type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not (session.active and plain and tensor.numel() and tensor.device.type == "cpu" and _is_on()):
            return original(tensor)
        values = tensor.constant if is_fake else tensor
        if values is None:
            return original(tensor)  # raises: its values were never computed
        with _disable_current_modes():
            lists = values.tolist()
        session.to_host(without_transforms(tensor))
        return lists

    return _named(tolist, "Tensor.tolist")


def _watch_moves(session: Session) -> Callable[[], None]:
    """Let `cpu` and `to` be copies; returns what ends that."""
    to, cpu = torch.Tensor.to, torch.Tensor.cpu

    @functools.wraps(cpu)
    def to_host(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        moved = cpu(tensor, *args, **kwargs)
        return _left(tensor, moved, session) if session.modules.any_called and not session.modules.converting else moved

    @functools.wraps(to)
    def moved_to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device", args[0] if args else None)
        moved = to(tensor, *args, **kwargs)
        if not isinstance(device, str | torch.device | torch.Tensor) or not session.active:
            return moved
        if isinstance(device, str) and device == "cpu" and _called_by_a_library():
            return _left(tensor, moved, session) if not session.modules.converting else moved
        if moved is tensor and _is_plain(tensor, session):
            session.moves(without_transforms(tensor))
        return moved

    wrapped = {"to": moved_to, "cpu": to_host}
    for name, function in wrapped.items():
        setattr(torch.Tensor, name, _named(function, f"Tensor.{name}"))

    def end() -> None:
        for name, function in wrapped.items():
            if vars(torch.Tensor).get(name) is function:
                delattr(torch.Tensor, name)  # it was inherited

    return end


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the function, named as pickle finds the one of PyTorch's that it stands for."""
    function.__module__, function.__qualname__ = "torch", name
    return function


def _left(tensor: torch.Tensor, moved: torch.Tensor, session: Session) -> torch.Tensor:
    """Return the host's copy of a tensor: memory of its own, as on a GPU."""
    if not session.active or not _is_plain(tensor, session):
        return moved
    with _disable_current_modes():
        copy = tensor.clone() if moved is tensor else moved
    return copy if session.left(without_transforms(tensor), without_transforms(copy)) else moved


def _is_plain(tensor: torch.Tensor, session: Session) -> bool:
    """Return whether a tensor stands for one on the GPU, and operators on it are recorded."""
    kinds = (FakeTensor,) if session.fake else (torch.Tensor, torch.nn.Parameter)
    dense = tensor.layout is torch.strided and not tensor.is_nested
    return type(tensor) in kinds and dense and tensor.numel() > 0 and tensor.device.type == "cpu" and _is_on()


def arriving(op: str, arguments: list[Any], is_number: Callable[[torch.Tensor], bool]) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call first copies to the GPU: PyTorch made them of Python's numbers (``is_number``).

    One that only tells what to fill with is read on the host: it is 0 among the ``arguments`` afterwards.
    """
    if _puts_a_number(op, arguments) and is_number(arguments[2]):
        yield arguments[2]
    yield from (indices for indices in _indices_of(op, arguments) if is_number(indices))
    number = _filled_with(op, arguments)
    if number is not None and is_number(arguments[number]):
        arguments[number] = 0


def _puts_a_number(op: str, arguments: Sequence[Any]) -> bool:
    """Return whether the call is ``x[indices] = number`` or the like: PyTorch makes a tensor on the host of a number,
    which the operator copies to the GPU. For a mask it fills instead.
    """
    if op not in _PUTS:
        return False
    _, indices, value, *_ = arguments
    return isinstance(value, torch.Tensor) and value.dim() == 0 and not any(map(_is_mask, indices))


def _indices_of(op: str, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Return the indices of the call that are arrays; those of a list, or on the host, are copied to the GPU first."""
    if op not in _INDEXED:
        return []
    return [index for index in arguments[1] if index is not None and index.dim()]


def _filled_with(op: str, arguments: Sequence[Any]) -> int | None:
    """Return the place of the argument that is a tensor of one number for a fill: where PyTorch made it of a number of
    Python's, it is read on the host. None for other calls.
    """
    if op in _FILLS:
        return _FILLS[op]
    if op in _PUTS and len(arguments[1]) == 1 and _is_mask(arguments[1][0]) and not arguments[3]:
        return 2
    return None


def notes(reads: int) -> list[str]:
    """Return the note on so many reads of values, if there were any."""
    if not reads:
        return []
    times = "time" if reads == 1 else "times"
    return [
        f"{reads} {times} the program read a value from the device (.item() and the like): host waits are not modelled."
    ]


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _called_by_a_library() -> bool:
    """Return whether an installed library calls: its "cpu" is the host, a program's stands for the GPU."""
    frame = sys._getframe(2)  # noqa: SLF001 - the caller of the wrapper
    return _is_installed(frame.f_code.co_filename, str(frame.f_globals.get("__name__", "")))


@cache
def _is_installed(file: str, module: str) -> bool:
    """Return whether a module lies where packages are installed: beside what pip knows about them."""
    path = Path(file)
    packages = module.count(".") + (path.name == "__init__.py")
    return packages < len(path.parents) and any(path.parents[packages].glob("*.dist-info"))


def _is_on() -> bool:
    """Return whether this thread's operators are recorded; PyTorch makes tensors for itself, too."""
    return any(isinstance(mode, Mode) for mode in _get_current_dispatch_mode_stack())
