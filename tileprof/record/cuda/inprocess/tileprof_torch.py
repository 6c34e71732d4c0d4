# ruff: noqa: INP001, PLC0415, PTH118, SLF001 - runs inside other programs: a script that imports little, and late
"""Names for what PyTorch does, inside the recorded program: operators, modules, parameters, tensors' lifetimes.

Waits for torch to be imported. Everything goes to the injection library as events among its own, in order; what
the caching allocator did is taken from its own history when the program ends. Nothing here runs on the GPU. Where only
marked regions are recorded, operators are looked at only inside them. Callbacks of PyTorch's name operators
(`operators.cpp`); they do not change what it runs. Compiled code names its launches itself (`tileprof_inductor`). With
``TILEPROF_HOOKS=tensors`` nothing is named; only tensors' lifetimes and captures of graphs are told.
"""

from __future__ import annotations

import ctypes
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
    library.tileprof_event(_inside(event))


def _inside(event: dict[str, Any]) -> bytes:
    return json.dumps(event)[1:-1].encode()


class _Hooks:
    def __init__(self, torch: Any, *, names: bool) -> None:
        self.torch = torch
        self.names = names
        self.library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
        self.folder = os.path.join(os.environ["TILEPROF_RAW"], f"process-{os.getpid()}")
        self.call_of_module = torch.nn.Module._call_impl.__code__
        self.modules: dict[int, str] = {}
        self.handles: list[Any] = []
        """Of the hooks on calls of modules, while operators are looked at."""
        self.operators: Any = None
        """The library that names operators; none where it could not be built."""
        self.aside = False
        self.looking = os.environ.get("TILEPROF_CAPTURE") != "0" and "TILEPROF_NVTX" not in os.environ
        self.for_a_graph = False
        self.compiled: list[Any] = []
        """Compiled functions and modules, whose calls are not hooked: their parameters are named after compilation, and
        when a region begins.
        """

    def install(self) -> None:
        import tileprof_regions  # type: ignore[import-not-found]

        if self.names:
            self.load_operators()
        history = tileprof_allocator.History(self.torch, self.folder, self.complain)
        if self.looking:
            history.from_the_start()
            self.look()
        else:
            tileprof_regions.changed.append(history.region)
            tileprof_regions.changed.append(self.region)
            if not tileprof_regions.by_ranges():
                self.follow_profiler(tileprof_regions.tell)
            elif self.operators is not None:
                self.follow_emitters(self.operators.tileprof_operators_emit)
        self.follow_graphs(history)
        if self.names:
            self.follow_compiler()

    def load_operators(self) -> None:
        import tileprof_operators  # type: ignore[import-not-found]

        try:
            self.operators = tileprof_operators.load(self.torch)
        except tileprof_operators.UnavailableError as error:
            self.complain(f"operators carry no names: {error}")
            return
        self.operators.tileprof_operators_start(
            self.library.tileprof_mark, self.library.tileprof_marked, self.library.tileprof_called
        )

    def follow_compiler(self) -> None:
        """Let compiled code name its launches, and keep the hooks out of the compiler's way."""
        import tileprof_inductor

        tileprof_inductor.say = self.mark_compiled
        tileprof_inductor.tell = lambda event: self.library.tileprof_called(_inside(event))
        compile_ = self.torch.compile

        def compile_after(*arguments: Any, **options: Any) -> Any:
            self.step_aside()
            if arguments and callable(arguments[0]):
                self.compiled.append(arguments[0])
                self.learn_of(arguments[0])
            return compile_(*arguments, **options)

        self.torch.compile = compile_after

    def mark_compiled(self, op: str, module: str) -> None:
        """Say which operators compiled code launches next; those that it calls have no names of their own."""
        if self.operators is not None:
            self.operators.tileprof_operators_compiled(bool(op))
        self.mark(op, module)

    def step_aside(self) -> None:
        """The compiler would look into the hooks on modules: leave it alone."""
        if not self.aside:
            self.aside = True
            self.leave_modules()
            self.complain("torch.compile is used: launches outside compiled code carry no module names from then on")

    # ---- regions

    def look(self) -> None:
        """See every operator and every call of a module from now on."""
        if not self.names:
            return
        if not self.handles and not self.aside:
            hooks = self.torch.nn.modules.module
            self.handles.append(hooks.register_module_forward_pre_hook(self.enter))
            self.handles.append(hooks.register_module_forward_hook(self.leave, always_call=True))
        if self.operators is not None:
            self.say_where(self.running())
            self.operators.tileprof_operators_look("cpu" in tileprof_calls.DEVICES)

    def look_away(self) -> None:
        """See none any more."""
        self.leave_modules()
        if self.operators is not None:
            self.operators.tileprof_operators_look_away()
        self.mark("", "")

    def leave_modules(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.say_where([])

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

    def follow_emitters(self, emits: Any) -> None:
        """``emit_nvtx`` opens a range around every operator: one that matches begins what is recorded."""
        emitter = self.torch.autograd.profiler.emit_nvtx
        enter, leave = emitter.__enter__, emitter.__exit__

        def enter_and_tell(context: Any) -> Any:
            result = enter(context)
            emits(1)  # afterwards: callbacks run in the order in which they are added
            return result

        def tell_and_leave(context: Any, *exception: Any) -> Any:
            emits(0)
            return leave(context, *exception)

        emitter.__enter__, emitter.__exit__ = enter_and_tell, tell_and_leave

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

    def enter(self, module: Any, _: Any) -> None:
        running = self.running()
        if len(running) == 1:
            self.learn(module)
        self.say_where(running)

    def leave(self, *_: Any) -> None:
        self.say_where(self.running()[1:])

    def say_where(self, running: list[Any]) -> None:
        """Operators of this thread belong to the innermost of these modules from now on."""
        if self.operators is not None:
            path = self.modules.get(id(running[0]), type(running[0]).__name__) if running else ""
            self.operators.tileprof_operators_module(path.encode())

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

    def mark(self, op: str, module: str) -> None:
        """Say to which operator and module the launches of this thread belong from now on."""
        self.library.tileprof_mark(op.encode(), module.encode())

    def complain(self, text: str) -> None:
        self.say(e="complaint", text=text)

    def say(self, **event: Any) -> None:
        _say(self.library, **event)
