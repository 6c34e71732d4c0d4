"""Receives operators from a dispatch mode in every thread of the program."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from tileprof.record.model.observation import fake, gradients_in_place, norm_statistics, wide_softmax
from tileprof.record.model.observation.overwritten import Overwritten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tileprof.record.model.calls.overload_facts import Operator
    from tileprof.record.model.session import Session


_ON_GPU: Final = norm_statistics.ON_GPU | wide_softmax.ON_GPU
"""What runs instead of operators whose types differ on a GPU."""


class Mode(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not followed
    """Hands operators of one thread to the session."""

    supports_higher_order_operators = True

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._of_fakes = session.fake
        """True if fake tensors are the program's own."""
        self._computing = 0
        """Operators of this thread so far that computed something."""
        self._overwritten = Overwritten()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let Dynamo compile frames although this mode is on: see `tileprof.record.model.compiled`."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Refuse a wrapper around `__torch_dispatch__`: it would import the compiler and lengthen every traceback."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._session.compiles:  # Dynamo is not to follow what runs here
            callback = set_eval_frame(None)
            try:
                with self._session.turn:
                    return self._dispatch(func, types, args, kwargs or {})
            finally:
                set_eval_frame(callback)
        if not self._session.fake:
            return self._dispatch(func, types, args, kwargs or {})
        with self._session.turn:
            return self._dispatch(func, types, args, kwargs or {})

    def _operator(self, func: Any) -> Operator:
        return self._session.operator(func)

    def _path(self) -> str:
        return self._session.modules.here()

    def _dispatch(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session = self._session
        if not session.active:
            return func(*args, **kwargs)
        operator = self._operator(func)
        if operator.metadata:
            return func(*args, **kwargs)
        if types:
            plain = torch.Tensor.__torch_dispatch__
            kinds = {t for t in types if getattr(t, "__torch_dispatch__", plain) is not plain}
            if kinds and not (self._of_fakes and fake.only_fake(kinds)):
                if fake.only_fake(kinds):  # the program traces itself with fake tensors: nothing runs
                    return func(*args, **kwargs)
                return NotImplemented  # a subclass of the program's; what it is made of comes here afterwards
        if operator.view and args and session.buffers.knows(args[0]):
            return func(*args, **kwargs)
        if args and is_lazy(args[0]):  # a parameter that has neither shape nor data yet
            return func(*args, **kwargs)
        path = self._path()
        caller = sys._getframe(2)  # noqa: SLF001 - what called `__torch_dispatch__`
        copy = self._overwritten.copy_for(operator, args, caller)
        if copy is not None:
            session.part_of(operator.name, copy)
        apart = (operator.composite or operator.explicit) and _dense((*args, *kwargs.values()))
        if operator.composite and apart:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        values = session.before(operator, args, kwargs)
        computing = self._computing
        if operator.explicit and apart:
            with self:
                result = func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)  # noqa: SLF001
            if self._computing != computing:  # its parts were seen; one that shows none computes by itself
                return result
        else:
            stand_in = gradients_in_place.in_place(func, args)
            result = _ON_GPU.get(func, func)(*args, **kwargs)
            if stand_in is not None and gradients_in_place.fits(result, args[0]) and session.shares(result, args[0]):
                operator = session.operator(stand_in)
                args = (*args, *gradients_in_place.MORE_ARGUMENTS.get(stand_in, ()))
        launch = session.writer.launches
        if session.after(operator, args, kwargs, result, path, values):
            self._computing += 1
            if session.writer.launches == launch + 1:
                self._overwritten.ran(operator, args, kwargs, caller, launch)
        return result


class StandIns(Mode):
    """Hands operators on fake tensors to the session that stand for real memory: those of a lowered program.

    ``path`` says in which module they are.
    """

    def __init__(self, session: Session, path: Callable[[], str]) -> None:
        super().__init__(session)
        self._of_fakes = True
        self._path = path  # type: ignore[method-assign]
        self._renamed: dict[Any, Operator] = {}

    def _operator(self, func: Any) -> Operator:
        """Return the operator; with its results given (`out=`) it goes by the plain name, as on a GPU."""
        operator = self._renamed.get(func)
        if operator is None:
            operator = self._session.operator(func)
            name = operator.name.removesuffix(".out").removesuffix(".dtype_out")
            operator = self._renamed[func] = replace(operator, name=name)
        return operator


def _dense(values: Iterable[Any]) -> bool:
    """Return whether all tensors are plain: sparse, nested and quantised ones have kernels of their own for what is
    composite else.
    """
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.is_nested or value.is_quantized:
                return False
        elif isinstance(value, list | tuple) and not _dense(value):
            return False
    return True


def each_thread(enter: Callable[[ExitStack], None]) -> Callable[[], None]:
    """Run every thread that starts from now on inside what ``enter`` enters; returns what ends that."""
    original = threading.Thread._bootstrap  # type: ignore[attr-defined]  # noqa: SLF001 - `run` may be overridden

    def bootstrap(thread: threading.Thread) -> None:
        with ExitStack() as stack:
            enter(stack)
            original(thread)

    threading.Thread._bootstrap = bootstrap  # type: ignore[attr-defined]  # noqa: SLF001

    def end() -> None:
        threading.Thread._bootstrap = original  # type: ignore[attr-defined]  # noqa: SLF001

    return end
