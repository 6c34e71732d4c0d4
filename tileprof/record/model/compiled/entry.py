"""``torch.compile`` while the model recorder records: Inductor's programs are lowered for the described GPU.

The program's own code runs as Dynamo captures it, operator by operator, so its numbers are those of a run without the
compiler; what is recorded are the launches that Inductor would make on the GPU. Where that cannot be had, operators are
recorded one by one, and a note says why.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from tileprof.record.model.compiled.notes import BY_OPERATOR, FUSED
from tileprof.record.model.observation.dispatch import Mode
from tileprof.record.model.observation.modules import unless_compiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tileprof.record.model.session import Session


@contextmanager
def compiler(session: Session, before: Callable[[], None]) -> Iterator[None]:
    """Record compiled functions as a GPU would run them; the compiler is imported only by programs that ask for it,
    and ``before()`` is called before that.
    """
    original = torch.compile

    @functools.wraps(original)
    def compile_for_model(model: Any = None, **options: Any) -> Any:
        backend = options.get("backend", "inductor")
        if _is_ours(backend) or options.get("disable"):
            return original(model, **options)
        why = _obstacle(backend)
        if why:
            session.remark(BY_OPERATOR.format(why=why))
            return original(model, **(options | {"disable": True}))
        before()
        from tileprof.record.model.compiled.backend import Backend  # noqa: PLC0415 (imports the compiler)

        session.remark(FUSED)
        session.compiles = True
        module_call, converted = torch.nn.Module.__call__, torch.nn.Module._apply  # noqa: SLF001 - ours, in its place
        for function in (Mode.__torch_dispatch__, module_call, converted, unless_compiling(print)):
            _keep_dynamo_out(function)
        mode, settings = options.pop("mode", None), options.pop("options", None)
        options["backend"] = Backend(session, _settings(mode, settings, options.get("dynamic")))
        return original(model, **options)

    torch.compile = compile_for_model
    try:
        yield
    finally:
        torch.compile = original


def _keep_dynamo_out(function: Any) -> None:
    """Let Dynamo run a function of tileprof as it is, where the program calls it between two compiled graphs."""
    frames: Any = import_module("torch._dynamo.eval_frame")
    skip = getattr(frames, "skip_code", None)
    if skip is not None and "tileprof" in function.__code__.co_filename:
        skip(function.__code__)


def _is_ours(backend: Any) -> bool:
    return type(backend).__module__.startswith("tileprof.record.model.compiled")


def _obstacle(backend: Any) -> str:
    """Return why a program is not lowered; "" where it can be."""
    if backend != "inductor":
        name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
        return f"its backend is {name!r}, and only Inductor's programs are lowered"
    if find_spec("triton") is None:
        return "Triton is not installed, which writes the fused kernels (pip install triton)"
    return ""


def _settings(mode: str | None, settings: dict[str, Any] | None, dynamic: bool | None) -> dict[str, Any]:
    """Return the settings that a mode and options stand for, as ``torch.compile`` understands them."""
    chosen: dict[str, Any] = {}
    if mode is not None and mode != "default":
        inductor: Any = __import__("torch._inductor", fromlist=["list_mode_options"])
        chosen |= inductor.list_mode_options(mode, dynamic)
    chosen |= {name.replace("-", "_"): value for name, value in (settings or {}).items()}
    return chosen
