# ruff: noqa: INP001, PLC0415, PTH118, SLF001 - runs inside other programs: a script that imports little, and late
"""Names for what PyTorch does, inside the recorded program: operators, modules, parameters, tensors' lifetimes.

Waits for torch to be imported. Everything goes to the injection library as events among its own, in order; what
the caching allocator did is taken from its own history when the program ends. Nothing here runs on the GPU. Where only
marked regions are recorded, operators are looked at only inside them. Compiled code names its launches itself
(`tileprof_inductor`). With ``TILEPROF_HOOKS=tensors`` nothing is named, and PyTorch runs as in a plain program; only
tensors' lifetimes and captures of graphs are told.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import json
import os
import sys
import time
from typing import Any

import tileprof_allocator  # type: ignore[import-not-found]
import tileprof_calls  # type: ignore[import-not-found]


def start() -> None:
    """Install the hooks as soon as torch has been imported."""
    from tileprof_after import after_import  # type: ignore[import-not-found]

    if os.environ["TILEPROF_HOOKS"] == "tensors":
        after_import("torch", lambda torch: _Hooks(torch, names=False).install())
        return
    import tileprof_benchmark  # type: ignore[import-not-found]
    import tileprof_inductor  # type: ignore[import-not-found]

    after_import("torch._inductor.utils", tileprof_inductor.remember_modules)
    after_import("torch._inductor.codecache", tileprof_inductor.install)
    library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
    pauses = tileprof_benchmark.Pauses(library.tileprof_pause, lambda on: _say(library, e="benchmark", on=on))
    after_import("torch._inductor.runtime.benchmarking", pauses.inductor)
    after_import("torch._inductor.runtime.triton_heuristics", pauses.inductor)
    after_import("triton.runtime.autotuner", pauses.triton)
    after_import("torch", lambda torch: _Hooks(torch, names=True).install())


def _say(library: Any, **event: Any) -> None:
    """Put an event among those of the injection library, in order."""
    event["t"] = time.time_ns()
    library.tileprof_event(json.dumps(event)[1:-1].encode())


_HIDDEN = ("ctc_loss", "quantile", "nanquantile")
"""Functions whose checks and arguments differ where PyTorch sees a dispatch mode: they run without ours, named as a
whole."""


class _Hooks:
    def __init__(self, torch: Any, *, names: bool) -> None:
        self.torch = torch
        self.names = names
        self.library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
        self.folder = os.path.join(os.environ["TILEPROF_RAW"], f"process-{os.getpid()}")
        self.call_of_module = torch.nn.Module._call_impl.__code__
        self.modules: dict[int, str] = {}
        self.handle: Any = None
        self.mode: Any = None
        self.marks: Any = None
        """The class of our mode, once it was needed."""
        self.aside = False
        self.looking = os.environ.get("TILEPROF_CAPTURE") != "0" and "TILEPROF_NVTX" not in os.environ
        self.for_a_graph = False
        self.backward = False
        self.composite: dict[Any, bool] = {}
        self.hidden: list[tuple[Any, str, Any]] = []
        """Functions that `look` replaced: owner, name, and the owner's own value, if it had one."""
        self.compiled: list[Any] = []
        """Compiled functions and modules, whose calls are not hooked: their parameters are named after compilation, and
        when a region begins.
        """

    def install(self) -> None:
        import tileprof_regions  # type: ignore[import-not-found]

        history = tileprof_allocator.History(self.torch, self.folder, self.complain)
        if self.looking:
            history.from_the_start()
            self.look()
        else:
            tileprof_regions.changed.append(history.region)
            tileprof_regions.changed.append(self.region)
            if not tileprof_regions.by_ranges():
                self.follow_profiler(tileprof_regions.tell)
        self.follow_graphs(history)
        if self.names:
            self.follow_compiler()

    def follow_compiler(self) -> None:
        """Let compiled code name its launches, and keep the hooks out of the compiler's way."""
        import tileprof_inductor

        tileprof_inductor.say = lambda op, module: self.say(e="mark", op=op, module=module)
        tileprof_inductor.tell = lambda event: self.say(**event)
        compile_ = self.torch.compile

        def compile_after(*arguments: Any, **options: Any) -> Any:
            self.step_aside()
            if arguments and callable(arguments[0]):
                self.compiled.append(arguments[0])
                self.learn_of(arguments[0])
            return compile_(*arguments, **options)

        self.torch.compile = compile_after

    def step_aside(self) -> None:
        """The compiler does not look into code that runs under hooks and modes: leave it alone."""
        if not self.aside:
            self.aside = True
            self.look_away()
            self.complain(
                "torch.compile is used: launches outside compiled code carry no operator and module names from then on"
            )

    # ---- regions

    def look(self) -> None:
        """See every operator and every call of a module from now on."""
        if self.names and self.mode is None and not self.aside:
            self.handle = self.torch.nn.modules.module.register_module_forward_pre_hook(self.enter)
            self.mode = self.dispatch_mode()
            self.mode.__enter__()
            for owner in (self.torch, self.torch.Tensor):
                for name in filter(lambda name: hasattr(owner, name), _HIDDEN):
                    self.hidden.append((owner, name, vars(owner).get(name)))
                    setattr(owner, name, self.without_mode(name, getattr(owner, name)))

    def look_away(self) -> None:
        """See none any more. A mode of the program's that was entered since keeps ours below it: then it is only
        silent.
        """
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        if self.handle is not None:
            self.handle.remove()
            self.handle = None
        for owner, name, own in self.hidden:
            delattr(owner, name) if own is None else setattr(owner, name, own)
        self.hidden.clear()
        if self.mode is not None and _get_current_dispatch_mode() is self.mode:
            self.mode.__exit__(None, None, None)
            self.mode = None
        self.say(e="mark", op="", module="")

    def region(self, active: bool) -> None:
        """A captured region has begun or is about to end."""
        self.looking, self.for_a_graph = active, False
        if not active:
            self.look_away()
            return
        for what in (*self.running()[-1:], *self.compiled):
            self.learn_of(what)
        self.look()

    def follow_profiler(self, tell: Any) -> None:
        """``torch.cuda.profiler.start`` and ``stop`` mark a region, too, and so do the calls below them."""

        def start_of(start: Any) -> Any:
            def start_and_look(*arguments: Any) -> Any:
                result = start(*arguments)
                if not self.looking or self.for_a_graph:
                    tell(active=True)
                return result

            return start_and_look

        def stop_of(stop: Any) -> Any:
            def look_away_and_stop(*arguments: Any) -> Any:
                if self.looking:
                    tell(active=False)
                return stop(*arguments)

            return look_away_and_stop

        profiler = self.torch.cuda.profiler
        profiler.start, profiler.stop = start_of(profiler.start), stop_of(profiler.stop)
        runtime = getattr(self.torch._C, "_cudart", None)
        if runtime is not None:
            runtime.cudaProfilerStart = start_of(runtime.cudaProfilerStart)
            runtime.cudaProfilerStop = stop_of(runtime.cudaProfilerStop)

    def follow_graphs(self, history: tileprof_allocator.History) -> None:
        """Look while a CUDA graph is made, too: its nodes are named then, and tensors known, and it is replayed
        later.
        """
        graph = self.torch.cuda.CUDAGraph
        begin, end = graph.capture_begin, graph.capture_end

        def away() -> None:
            if self.for_a_graph:
                history.region(False)
                self.region(False)

        def look_and_begin(*arguments: Any, **options: Any) -> Any:
            if not self.looking:
                history.region(True)
                self.region(True)
                self.for_a_graph = True
            self.say(e="capturing")
            try:
                return begin(*arguments, **options)
            except BaseException:
                away()
                raise

        def end_and_look_away(*arguments: Any, **options: Any) -> Any:
            try:
                return end(*arguments, **options)
            finally:
                away()

        graph.capture_begin, graph.capture_end = look_and_begin, end_and_look_away

    # ---- operators

    def dispatch_mode(self) -> Any:
        """Return a mode that sees every operator.

        PyTorch keeps Dynamo out of modes, and imports it for that at the first operator, which takes seconds. Ours
        waits until something else imports it.
        """
        if self.marks is None:
            from tileprof_after import after_import

            self.marks = self.class_of_mode()
            after_import("torch._dynamo", lambda _: self.keep_dynamo_out())
        return self.marks()

    def keep_dynamo_out(self) -> None:
        disable = getattr(self.torch, "_disable_dynamo", None)  # versions without it do not compile what runs in modes
        if disable is not None:
            self.marks.__torch_dispatch__ = disable(self.marks.__torch_dispatch__, recursive=True)

    def class_of_mode(self) -> Any:
        from torch.utils._python_dispatch import TorchDispatchMode

        hooks = self

        class Marks(TorchDispatchMode):  # type: ignore[misc]
            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                return "torch._dynamo" in sys.modules

            def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
                if not hooks.looking:
                    return function(*arguments, **(options or {}))
                if not hooks.backward and hooks.torch._C._current_graph_task_id() >= 0:
                    hooks.tell_of_backward()
                if hooks.torch.is_inference_mode_enabled() and hooks.is_composite(function):
                    with self:  # its parts have names of their own, as where autograd takes it apart before we see it
                        result = function.decompose(*arguments, **(options or {}))
                    if result is not NotImplemented:
                        return result
                return hooks.run_marked(function.name(), function, arguments, options or {})

        return Marks

    def is_composite(self, function: Any) -> bool:
        """Return whether PyTorch itself makes the operator of others on every device."""
        composite = self.composite.get(function)
        if composite is None:
            has_kernel = self.torch._C._dispatch_has_kernel_for_dispatch_key
            try:
                composite = bool(has_kernel(function.name(), "CompositeImplicitAutograd"))
            except RuntimeError:  # not in the dispatcher's tables
                composite = False
            self.composite[function] = composite
        return composite

    def run_marked(self, op: str, function: Any, arguments: Any, options: Any) -> Any:
        """Call what launches under this name. Afterwards there is none: other threads and libraries launch, too."""
        module = self.where()
        self.say(e="mark", op=op, module=module)
        try:
            result = function(*arguments, **options)
            call = tileprof_calls.described(self.torch, function, arguments, options, result)
            if call is not None:
                self.say(**call)
            return result
        finally:
            self.say(e="mark", op="", module=module)

    def without_mode(self, name: str, function: Any) -> Any:
        """Return the function, run as in a plain program, where our mode is the innermost."""
        from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if self.mode is None or not self.looking or _get_current_dispatch_mode() is not self.mode:
                return function(*arguments, **options)
            with _pop_mode_temporarily():
                return self.run_marked(f"aten::{name}", function, arguments, options)

        self.torch.jit._builtins._register_builtin(call, f"aten::{name}")  # scripted functions may call it, too
        return call

    def tell_of_backward(self) -> None:
        self.backward = True
        self.complain(
            "a backward pass ran under the hooks that name operators, where PyTorch adds gradients out of place and "
            "runs other kernels for some operators: they may differ from those of a plain run; --no-names records "
            "without hooks"
        )

    # ---- modules and parameters

    def running(self) -> list[Any]:
        """Return modules whose forward this thread is in, innermost first.

        From the stack: outside regions no call is hooked.
        """
        modules, frame = [], sys._getframe(1)
        while frame is not None:
            if frame.f_code is self.call_of_module:
                modules.append(frame.f_locals["self"])
            frame = frame.f_back  # type: ignore[assignment]
        return modules

    def where(self) -> str:
        """Return the path of the innermost module."""
        running = self.running()
        return self.modules.get(id(running[0]), type(running[0]).__name__) if running else ""

    def enter(self, module: Any, _: Any) -> None:
        if len(self.running()) == 1:
            self.learn(module)

    def learn_of(self, what: Any) -> None:
        """Names below a module, or below those that a function uses: of its closure, of its module, its own
        object's.
        """
        candidates: list[Any] = [what, getattr(what, "__self__", None)]
        try:
            variables = inspect.getclosurevars(what)
            candidates += [*variables.nonlocals.values(), *variables.globals.values()]
        except TypeError:
            pass  # no function of Python's
        for candidate in candidates:
            if isinstance(candidate, self.torch.nn.Module):
                self.learn(candidate)

    def learn(self, root: Any) -> None:
        """Names below a module that is called from outside any other; again each time, parameters may have moved."""
        for name, module in root.named_modules():
            self.modules.setdefault(id(module), name)
        for kind, named_tensors in (("parameter", root.named_parameters()), ("parameter", root.named_buffers())):
            for name, tensor in named_tensors:
                if tensor.is_cuda:
                    self.say(e="describe", address=tensor.data_ptr(), name=name, kind=kind)

    def complain(self, text: str) -> None:
        self.say(e="complaint", text=text)

    def say(self, **event: Any) -> None:
        _say(self.library, **event)
