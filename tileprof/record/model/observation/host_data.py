"""Tensors made of Python's numbers, lists and arrays: on a GPU such data are copied there from the host.

PyTorch's dispatcher does not tell `torch.tensor(data, device=x.device)`, which copies, from `torch.tensor(data)`, whose
tensor stays on the host until something moves it. Inside a session the functions that take data are wrapped, and so is
`Tensor.tolist`, which copies all values to the host at once.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from tileprof.record.model.observation.dispatch import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tileprof.record.model.session import Session

_FUNCTIONS = ("tensor", "as_tensor")
_PUTS = ("aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
_LIBRARIES = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")


@contextmanager
def watch(session: Session) -> Iterator[Callable[[], None]]:
    """Tell the session of data that become tensors (`Session.from_host`); yields what ends that before the context
    does.
    """
    originals = {name: getattr(torch, name) for name in _FUNCTIONS}
    builtins: dict[int, str] = torch.jit._builtins._get_builtin_table()  # noqa: SLF001 - TorchScript knows them by id
    wrapped = {name: _wrapped(original, session) for name, original in originals.items()}
    for name, function in wrapped.items():
        builtins[id(function)] = f"aten::{name}"
        setattr(torch, name, function)
    end_of_lists = _watch_lists(session)

    def end() -> None:
        end_of_lists()
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
    def make(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = original(data, *args, **kwargs)
        foreign = isinstance(data, torch.Tensor) or (isinstance(tensor, FakeTensor) and not session.fake)
        if session.active and not foreign and tensor.device.type == "cpu" and _is_on():
            device = kwargs.get("device")
            session.from_host(tensor, stays=device is None or (isinstance(device, str) and _called_by_a_library()))
        return tensor

    return make


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
        session.to_host(tensor)
        return lists

    return tolist


def puts_a_number(op: str, arguments: Sequence[Any]) -> bool:
    """Return whether the call is ``x[indices] = number`` or the like: PyTorch makes a tensor on the host of a number,
    which the operator copies to the GPU. For a mask it fills instead.
    """
    if op not in _PUTS:
        return False
    _, indices, value, *_ = arguments
    masks = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
    return isinstance(value, torch.Tensor) and value.dim() == 0 and not masks


def _called_by_a_library() -> bool:
    """Return whether an installed library calls: its "cpu" is the host, a program's stands for the GPU."""
    return sys._getframe(2).f_code.co_filename.startswith(_LIBRARIES)  # noqa: SLF001 - the caller of the wrapper


def _is_on() -> bool:
    """Return whether this thread's operators are recorded; PyTorch makes tensors for itself, too."""
    return any(isinstance(mode, Mode) for mode in _get_current_dispatch_mode_stack())
