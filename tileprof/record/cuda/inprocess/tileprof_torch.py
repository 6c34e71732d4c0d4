# ruff: noqa: INP001, PLC0415, PTH118, PTH123, SLF001 - runs inside other programs: a script that imports little, and late
"""Names for what PyTorch does, inside the recorded program: operators, modules, parameters, tensors' lifetimes.

Waits for torch to be imported. Everything goes to the injection library as events among its own, in order; what
the caching allocator did is taken from its own history when the program ends. Nothing here runs on the GPU. Where only
marked regions are recorded, operators are looked at only inside them. Compiled code names its launches itself
(`tileprof_inductor`).
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import time
from typing import Any

_MOST_ALLOCATIONS = 4_000_000


def start() -> None:
    """Install the hooks as soon as torch has been imported."""
    import tileprof_inductor  # type: ignore[import-not-found]
    from tileprof_after import after_import  # type: ignore[import-not-found]

    after_import("torch._inductor.utils", tileprof_inductor.remember_modules)
    after_import("torch._inductor.codecache", tileprof_inductor.install)
    after_import("torch", lambda torch: _Hooks(torch).install())


class _Hooks:
    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
        self.folder = os.path.join(os.environ["TILEPROF_RAW"], f"process-{os.getpid()}")
        self.modules: dict[int, str] = {}
        self.path: list[str] = []
        self.handles: list[Any] = []
        self.mode: Any = None
        self.root: Any = None
        self.aside = False
        self.looking = os.environ.get("TILEPROF_CAPTURE") != "0"

    def install(self) -> None:
        import tileprof_inductor
        import tileprof_regions  # type: ignore[import-not-found]

        tileprof_inductor.say = lambda op, module: self.say(e="mark", op=op, module=module)
        self.torch.cuda._lazy_call(self.remember_allocations)
        module = self.torch.nn.modules.module
        self.handles += [
            module.register_module_forward_pre_hook(self.enter),
            module.register_module_forward_hook(self.leave, always_call=True),
        ]
        if self.looking:
            self.look()
        else:
            tileprof_regions.changed.append(self.region)
            self.follow_profiler(tileprof_regions.tell)
        compile_ = self.torch.compile

        def compile_after(*arguments: Any, **options: Any) -> Any:
            self.step_aside()
            return compile_(*arguments, **options)

        self.torch.compile = compile_after

    def step_aside(self) -> None:
        """The compiler does not look into code that runs under hooks and modes: leave it alone."""
        if not self.aside:
            self.aside = True
            self.look_away()
            for handle in self.handles:
                handle.remove()
            text = (
                "torch.compile is used: launches outside compiled code carry no operator and module names from then on"
            )
            self.say(e="complaint", text=text)

    # ---- regions

    def look(self) -> None:
        """See every operator from now on."""
        if self.mode is None and not self.aside:
            self.mode = self.dispatch_mode()
            self.mode.__enter__()

    def look_away(self) -> None:
        """See none any more. A mode of the program's that was entered since keeps ours below it: then it is only silent."""
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        if self.mode is not None and _get_current_dispatch_mode() is self.mode:
            self.mode.__exit__(None, None, None)
            self.mode = None
        self.say(e="mark", op="", module="")

    def region(self, begun: bool) -> None:
        """A captured region has begun or is about to end."""
        self.looking = begun
        if not begun:
            self.look_away()
            return
        if self.root is not None:
            self.learn(self.root)
        self.look()

    def follow_profiler(self, tell: Any) -> None:
        """``torch.cuda.profiler.start`` and ``stop`` mark a region, too."""
        profiler = self.torch.cuda.profiler
        start, stop = profiler.start, profiler.stop

        def start_and_look() -> None:
            start()
            tell(begun=True)

        def look_away_and_stop() -> None:
            tell(begun=False)
            stop()

        profiler.start, profiler.stop = start_and_look, look_away_and_stop

    # ---- operators

    def dispatch_mode(self) -> Any:
        from torch.utils._python_dispatch import TorchDispatchMode

        hooks = self

        class Marks(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
                if hooks.looking:
                    hooks.say(e="mark", op=function.name(), module=hooks.path[-1] if hooks.path else "")
                return function(*arguments, **(options or {}))

        return Marks()

    # ---- modules and parameters

    def enter(self, module: Any, _: Any) -> None:
        if not self.path:
            self.root = module
            if self.looking:
                self.learn(module)
        self.path.append(self.modules.get(id(module), type(module).__name__))

    def leave(self, *_: Any) -> None:
        if self.path:
            self.path.pop()
        if not self.path:
            self.root = None

    def learn(self, root: Any) -> None:
        """Names below a module that is called from outside any other; again each time, parameters may have moved."""
        for name, module in root.named_modules():
            self.modules.setdefault(id(module), name)
        for kind, found in (("parameter", root.named_parameters()), ("parameter", root.named_buffers())):
            for name, tensor in found:
                if tensor.is_cuda:
                    self.say(e="describe", address=tensor.data_ptr(), name=name, kind=kind)

    # ---- the caching allocator

    def remember_allocations(self) -> None:
        self.torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=_MOST_ALLOCATIONS
        )
        atexit.register(self.write_allocations)

    def write_allocations(self) -> None:
        rows = [
            [e["action"], e["addr"], e["size"], e["time_us"]]
            for trace in self.torch.cuda.memory._snapshot()["device_traces"]
            for e in trace
            if e["action"] in {"alloc", "free_completed"}
        ]
        with open(os.path.join(self.folder, "allocator.json"), "w", encoding="utf-8") as file:
            json.dump(rows, file)

    def say(self, **event: Any) -> None:
        event["t"] = time.time_ns()
        self.library.tileprof_event(json.dumps(event)[1:-1].encode())
