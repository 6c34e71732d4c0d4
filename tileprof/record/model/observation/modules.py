"""Finds the module that an operator belongs to, forward and backward.

Forward: ``torch.nn.Module.__call__`` is wrapped, so that each thread has a stack of the modules it is in. (PyTorch's
global hooks would do, but they change the frames of tracebacks.) Names come from where modules are registered.
Backward: autograd numbers its nodes, and a node is numbered just before its forward operator is dispatched; the
module of that operator is remembered under the number.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch.nn.modules import module as torch_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_NODES_KEPT = 1 << 20
"""Autograd nodes per thread whose module is remembered; beyond, the older half is forgotten."""
_ACCUMULATE = 2**64 - 1
"""Sequence number of the nodes that add gradients up; they belong to no operator."""


class Names:
    """Paths of modules and names of their tensors, relative to the outermost module known to hold them."""

    def __init__(self) -> None:
        self._parents: weakref.WeakKeyDictionary[torch.nn.Module, tuple[weakref.ref[torch.nn.Module], str]] = (
            weakref.WeakKeyDictionary()
        )
        self._scanned: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()

    def registered(self, parent: torch.nn.Module, name: str, child: torch.nn.Module | None) -> None:
        """A module became part of another; the first place counts (a module used twice)."""
        if child is None or child is parent:
            return
        self._parents.setdefault(child, (weakref.ref(parent), name))
        if self._paths:
            self._paths.clear()

    def scan(self, root: torch.nn.Module) -> None:
        """Learn the tree below ``root``: copied and unpickled modules were never registered."""
        if root in self._scanned:
            return
        self._scanned.add(root)
        for parent in root.modules():
            for name, child in parent._modules.items():  # noqa: SLF001 - named_children skips repeated modules
                if child is not None and child is not parent:
                    self._parents.setdefault(child, (weakref.ref(parent), name))

    def path(self, module: torch.nn.Module) -> str:
        """Return ``transformer.h.3.mlp.c_fc``; the class name for an outermost module."""
        path = self._paths.get(module)
        if path is None:
            path = self._paths[module] = self._climb(module) or type(module).__name__
        return path

    def _climb(self, module: torch.nn.Module) -> str:
        words: list[str] = []
        visited: set[int] = set()
        while module in self._parents and id(module) not in visited:
            visited.add(id(module))
            reference, name = self._parents[module]
            parent = reference()
            if parent is None:
                break
            words.append(name)
            module = parent
        return ".".join(reversed(words))

    def tensor(self, module: torch.nn.Module, name: str) -> str:
        """Return ``transformer.wte.weight`` for a tensor of ``module``."""
        path = self._climb(module)
        return f"{path}.{name}" if path else name


def unless_compiling(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that Dynamo does not follow into our own code."""

    def called(*arguments: Any) -> None:
        if not torch.compiler.is_compiling():
            callback = set_eval_frame(None)
            hook(*arguments)
            set_eval_frame(callback)

    return called


class _Thread(threading.local):
    """The state of a thread: the modules it is in, the modules of the autograd nodes it made, and how deep it is in
    conversions of modules.
    """

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.nodes: dict[int, str] = {}
        self.conversions = 0


class Modules:
    """Follows module calls while installed.

    ``root_called`` hears of every call of an outermost module, ``registered`` of every tensor that becomes a parameter.
    """

    def __init__(
        self,
        names: Names,
        root_called: Callable[[torch.nn.Module], None],
        registered: Callable[[torch.Tensor | None], None],
    ) -> None:
        self.names = names
        self.any_called = False
        """True once any module was called."""
        self._root_called = root_called
        self._registered = registered
        self._here = _Thread()

    def install(self) -> Callable[[], None]:
        """Start following; returns what ends it."""
        original, convert = torch.nn.Module.__call__, torch.nn.Module._apply  # noqa: SLF001 - all conversions use it
        here, names, outermost = self._here, self.names, self._outermost

        @functools.wraps(original)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # Dynamo follows the call: it is to see PyTorch's own only
                return original(module, *args, **kwargs)
            callback = set_eval_frame(None)  # nor does Dynamo follow what is noted here
            stack = here.stack
            if not stack:
                outermost(module)
            stack.append(names.path(module))
            set_eval_frame(callback)
            try:
                return original(module, *args, **kwargs)
            finally:
                stack.pop()

        @functools.wraps(convert)
        def apply(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
            here.conversions += 1
            try:
                return convert(module, *args, **kwargs)
            finally:
                here.conversions -= 1

        torch.nn.Module.__call__, torch.nn.Module._apply = call, apply  # noqa: SLF001 - as above
        hooks = (
            torch_module.register_module_module_registration_hook(unless_compiling(names.registered)),
            torch_module.register_module_parameter_registration_hook(
                unless_compiling(lambda _, __, tensor: self._registered(tensor))
            ),
        )

        def end() -> None:
            torch.nn.Module.__call__, torch.nn.Module._apply = original, convert  # noqa: SLF001 - as above
            for hook in hooks:
                hook.remove()

        return end

    @property
    def converting(self) -> bool:
        """True while this thread is in ``module.half()``, ``module.to(…)`` or another conversion of all its tensors."""
        return self._here.conversions > 0

    @staticmethod
    def constructing() -> bool:
        """Return whether this thread is in the constructor of a module, however deep.

        Constructors cannot be wrapped: each class has its own, and may do its work before it calls its base class's.
        """
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.currentframe is the same with a check
        while frame is not None:
            code = frame.f_code
            receiver = code.co_varnames[0] if code.co_name == "__init__" and code.co_argcount else ""
            if receiver and isinstance(frame.f_locals.get(receiver), torch.nn.Module):
                return True
            frame = frame.f_back
        return False

    def _outermost(self, module: torch.nn.Module) -> None:
        self.any_called = True
        self.names.scan(module)
        self._root_called(module)

    def here(self) -> str:
        """Return the module of the operator that is being dispatched in this thread, forward or backward."""
        node = torch._C._current_autograd_node()  # noqa: SLF001 - the only way to ask
        stack, nodes = self._here.stack, self._here.nodes
        if node is None:
            path = stack[-1] if stack else ""
            # Also without gradients: a custom Function's node is made before its forward runs without them.
            nodes.setdefault(torch.autograd._get_sequence_nr() - 1, path)  # noqa: SLF001 - as torch.fx does
            if len(nodes) > _NODES_KEPT:
                for number in list(nodes)[: _NODES_KEPT // 2]:
                    del nodes[number]
            return path
        if stack:  # a checkpoint runs forward again
            return stack[-1]
        number = node._sequence_nr()  # noqa: SLF001 - has no public name
        if number == _ACCUMULATE:
            return ""
        return nodes.get(number, "")
