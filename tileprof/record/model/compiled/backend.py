"""The backend of Dynamo that computes graphs as they are, and records them as Inductor would lower them."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from tileprof.record.model.compiled import kernels, notes
from tileprof.record.model.compiled.lowering import Run, lower
from tileprof.record.model.compiled.wrapper import Listener
from tileprof.record.model.observation.dispatch import StandIns

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tileprof.record.model.compiled.kernels import CompiledKernel
    from tileprof.record.model.session import Session


class Backend:
    """A backend of ``torch.compile`` with Inductor's settings."""

    def __init__(self, session: Session, settings: dict[str, Any]) -> None:
        self._session, self._settings = session, settings
        self.__name__ = "inductor"

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return what runs a graph of Dynamo's."""
        region = Region(self._session, graph)
        try:
            region.function = lower(
                _copy_of(graph), inputs, self._settings, self._session.device, region, region.on_gpu
            )
        except Exception as error:  # noqa: BLE001 - internals of another version, or an operator that has no lowering
            self._session.remark(notes.FAILED.format(why=_short(error)))
        return region


def _copy_of(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the same graph over the same tensors: passes of the compiler change graphs in place."""
    environment: dict[torch.fx.Node, torch.fx.Node] = {}
    twin_graph = torch.fx.Graph()
    output = twin_graph.graph_copy(graph.graph, environment)
    if output is not None:
        last = twin_graph.output(output)
        last.meta = dict(next(node for node in reversed(graph.graph.nodes) if node.op == "output").meta)
    twin = torch.fx.GraphModule(graph, twin_graph)
    twin.meta = dict(graph.meta)
    return twin


def _short(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0].strip() if lines else ''}"
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


_SHORT = 160


class Region(Listener):
    """One graph of Dynamo's: ``function`` runs its wrappers on fake tensors; None where it could not be lowered."""

    def __init__(self, session: Session, graph: torch.fx.GraphModule) -> None:
        self._session, self._graph = session, graph
        self.function: Callable[..., Any] | None = None
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._here = threading.local()
        self._real: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        """Fake tensor, real tensor and number of writes to it, by the storage of the fake tensor."""

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph."""
        session = self._session
        if self.function is None or not session.active:
            return self.uncompiled(arguments)
        session.modules.any_called = True
        if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments):
            return list(_Differentiable.apply(self, *arguments))
        _, stand_ins, is_recorded = self.record(arguments)
        if not is_recorded:
            return self._graph.forward(*arguments)
        results = self.compute(arguments)
        return self.as_recorded(results, stand_ins)

    # ---- the program's own results

    def uncompiled(self, arguments: Sequence[Any]) -> Any:
        """Return the graph's results; its operators are recorded one by one."""
        return self._graph.forward(*arguments)

    def compute(self, arguments: Sequence[Any]) -> Any:
        """Return the graph's results; nothing of it is recorded."""
        with self.outside():
            return self._graph.forward(*arguments)

    def outside(self) -> ExitStack:
        """Be outside of all modes but the one that makes the program's tensors fake."""
        stack = ExitStack()
        stack.enter_context(_disable_current_modes())
        stack.enter_context(self._session.fake_mode or nullcontext())
        return stack

    # ---- the recording

    def record(self, arguments: Sequence[Any], *, gradients: bool = False) -> tuple[list[Any], list[Any], bool]:
        """Run the lowered program on stand-ins of the arguments: those, its results, and whether it could."""
        with _disable_current_modes():
            inputs = [self.stand_in(a, gradients=gradients) for a in arguments]
            results, is_recorded = self.run(lambda: self._function(inputs))
        return inputs, results, is_recorded

    def _function(self, inputs: list[Any]) -> list[Any]:
        assert self.function is not None
        results = self.function(*inputs)
        return list(results) if isinstance(results, tuple | list) else [results]

    def run(self, work: Callable[[], list[Any]]) -> tuple[list[Any], bool]:
        """Run a lowered program, in which fake tensors stand for real memory."""
        try:
            with self._mode, StandIns(self._session, self._module):
                return work(), True
        except Exception as error:  # noqa: BLE001 - the program is to continue
            traceback.print_exc()
            self._session.remark(notes.FAILED.format(why=_short(error)))
            self.function = None
            return [], False

    def backward(self, results: list[Any], inputs: list[Any], gradients: list[Any]) -> list[Any]:
        """Run the lowered backward; the gradients of ``inputs``, or nothing where it failed."""
        with _disable_current_modes():
            stand_ins = [self.stand_in(g) for g in gradients]
            input_gradients, _ = self.run(
                lambda: list(torch.autograd.grad(results, inputs, stand_ins, retain_graph=True, allow_unused=True))
            )
        return input_gradients

    def stand_in(self, value: Any, *, gradients: bool = False) -> Any:
        """Return a fake tensor on the CPU in the memory of a real one."""
        if not isinstance(value, torch.Tensor):
            return value
        fake = self._alike(value)
        self._session.shares(fake, value)
        if not self._session.fake:
            self._remember(fake, value)
        return fake.requires_grad_(value.requires_grad) if gradients and fake.is_leaf else fake

    def _alike(self, value: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor of the same layout in a storage of the same size."""
        elements = value.untyped_storage().nbytes() // max(1, value.element_size())
        with _disable_current_modes(), self._mode, torch.no_grad():
            flat = torch.empty(int(elements), dtype=value.dtype)
            sizes, strides = ([int(n) for n in numbers] for numbers in (value.size(), value.stride()))
            return flat.as_strided(sizes, strides, int(value.storage_offset())).detach()

    def on_gpu(self, run: Run, arguments: Sequence[Any]) -> Any:
        """Run a wrapper on stand-ins of its own; results are stand-ins for the program that called it."""
        inputs = []
        for value in arguments:
            if isinstance(value, torch.Tensor):
                stand_in = self._alike(value)
                self._session.shares(stand_in, value)
                origin = self._real.get(_key(value))
                if origin is not None:
                    self._real[_key(stand_in)] = (stand_in, *origin[1:])
                inputs.append(stand_in)
            else:
                inputs.append(value)
        with torch.no_grad():
            results = run(inputs)
        self._real.clear()
        back = []
        for value in results:
            if isinstance(value, torch.Tensor):
                back.append(self._alike(value))
                self._session.shares(back[-1], value)
            else:
                back.append(value)
        return tuple(back) if isinstance(results, tuple) else back

    def as_recorded(self, results: Any, stand_ins: list[Any]) -> list[Any]:
        """Return the real results in the layouts and the memory in which the lowered program left them."""
        return [self._in_layout_of(real, fake) for real, fake in zip(results, stand_ins, strict=True)]

    def _in_layout_of(self, real: Any, fake: Any) -> Any:
        if not (isinstance(real, torch.Tensor) and isinstance(fake, torch.Tensor)):
            return real
        with self.outside(), torch.no_grad():
            alike = tuple(real.stride()) == tuple(int(n) for n in fake.stride())
            if alike and real.storage_offset() == fake.storage_offset() and self._session.shares(real, fake):
                return real
            elements = int(fake.untyped_storage().nbytes()) // max(1, fake.element_size())
            flat = torch.empty(elements, dtype=real.dtype, device=real.device)
            copy = flat.as_strided(real.shape, [int(n) for n in fake.stride()], int(fake.storage_offset()))
            copy.copy_(real)
            self._session.shares(copy, fake)
            return copy

    # ---- what a wrapper tells

    def mark(self, op: str, module: str) -> None:
        """Remember which operators and modules the next launch belongs to."""
        self._here.op, self._here.module = op, module

    def _module(self) -> str:
        path = getattr(self._here, "module", "").partition(",")[0] or self._session.modules.here()
        return path.removeprefix("_orig_mod").removeprefix(".")

    def allocated(self, tensor: torch.Tensor) -> None:
        """Make a buffer of new memory."""
        self._session.allocated(tensor)

    def remark(self, text: str) -> None:
        """Say in the trace what is not as on a GPU."""
        self._session.remark(text)

    def launched(self, kernel: CompiledKernel, arguments: tuple[Any, ...]) -> None:
        """Record a launch of a Triton kernel."""
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        op = getattr(self._here, "op", "") or f"triton::{kernel.name}"
        key: Any = kernel.key(arguments)
        integers_by_tensor = [self._values(t) for t in tensors if kernels.may_decide(t)]
        if any(integers is not None for integers in integers_by_tensor):
            key = (*key, *(None if integers is None else integers.tobytes() for integers in integers_by_tensor))
        self._session.launched_as(op, self._module(), key, lambda: kernel.kernel(arguments, self._values)[0], tensors)

    def _remember(self, fake: torch.Tensor, value: torch.Tensor) -> None:
        self._real[_key(fake)] = (fake, value, self._session.buffers.writes(value))

    def _values(self, tensor: torch.Tensor) -> NDArray[Any] | None:
        """Return a tensor's integers, where they are what they were when the program called the graph."""
        origin = self._real.get(_key(tensor))
        if origin is None or self._session.buffers.writes(tensor) != origin[2]:
            return None
        flat = kernels.integers_of(origin[1])
        shift = int(tensor.storage_offset() - origin[1].storage_offset())
        return None if flat is None or shift < 0 else flat[shift:]


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - a storage's identity


class _Differentiable(torch.autograd.Function):  # type: ignore[misc]  # PyTorch is not followed
    """A graph whose results have gradients: its lowered backward is recorded when the program goes backward."""

    @staticmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # PyTorch is not followed
    def forward(ctx: Any, region: Region, *arguments: Any) -> Any:
        """Compute with gradients, and keep both programs' results."""
        with torch.enable_grad():
            inputs, stand_ins, is_recorded = region.record(arguments, gradients=True)
        leaves = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in arguments]
        with torch.enable_grad():
            results = list(region.compute(leaves) if is_recorded else region.uncompiled(leaves))
        ctx.set_materialize_grads(False)
        outputs = region.as_recorded([_detached(r) for r in results], stand_ins) if is_recorded else results
        outputs = [_detached(one) for one in outputs]
        constant_outputs = [
            p for p, r in zip(outputs, results, strict=True)
            if isinstance(p, torch.Tensor) and not (isinstance(r, torch.Tensor) and r.requires_grad)
        ]  # fmt: skip
        ctx.mark_non_differentiable(*constant_outputs)
        ctx.region, ctx.leaves, ctx.results = region, leaves, results
        ctx.lowered = (inputs, stand_ins) if is_recorded else None
        return tuple(outputs)

    @staticmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # PyTorch is not followed
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Go backward in both programs."""
        region: Region = ctx.region
        differentiable = [n for n, a in enumerate(ctx.leaves) if isinstance(a, torch.Tensor) and a.requires_grad]
        led_back = [
            n for n, (r, g) in enumerate(zip(ctx.results, gradients, strict=True))
            if g is not None and isinstance(r, torch.Tensor) and r.requires_grad
        ]  # fmt: skip
        result_gradients = [gradients[n] for n in led_back]
        stand_ins: list[Any] = []
        if ctx.lowered is not None:
            inputs, results = ctx.lowered
            stand_ins = region.backward(
                [results[n] for n in led_back], [inputs[n] for n in differentiable], result_gradients
            )
        with region.outside() if stand_ins else nullcontext():
            input_gradients = torch.autograd.grad(
                [ctx.results[n] for n in led_back], [ctx.leaves[n] for n in differentiable], result_gradients,
                retain_graph=True, allow_unused=True,
            )  # fmt: skip
        if stand_ins:
            input_gradients = region.as_recorded(input_gradients, stand_ins)
        places = dict(zip(differentiable, input_gradients, strict=True))
        return (None, *(places.get(n) for n in range(len(ctx.leaves))))


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
