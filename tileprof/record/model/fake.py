"""Recording without memory or arithmetic: the program runs on PyTorch's fake tensors, which know layouts only."""

from __future__ import annotations

import sysconfig
import traceback
import weakref
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.utils
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WHY = {
    DataDependentOutputException: "needs a value that was never computed ({0})",
    DynamicOutputShapeException: "makes a tensor whose size depends on values that were never computed ({0})",
    UnsupportedOperatorException: "calls {0}, which PyTorch cannot run on fake tensors",
    UnsupportedFakeTensorException: "uses a tensor that cannot be fake ({0})",
}


def mode() -> FakeTensorMode:
    """The mode in which tensors are fake; what the program got from elsewhere (numpy, files) becomes fake as well."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def conversions() -> Iterator[None]:
    """Lets ``module.half()``, ``.to()`` and the like convert fake parameters.

    PyTorch exchanges their contents, which it refuses to do for a tensor that somebody refers to weakly, and its own fake mode does so for every
    tensor that it makes. What refers to a parameter is to refer to the converted one, which is what the exchange gives.
    """

    def of_others(tensor: Any) -> list[Any]:
        return [] if isinstance(tensor, FakeTensor) else weakref.getweakrefs(tensor)

    kept = vars(torch.utils)["weakref"]
    vars(torch.utils)["weakref"] = SimpleNamespace(getweakrefs=of_others)
    try:
        yield
    finally:
        vars(torch.utils)["weakref"] = kept


def only_fake(types: Iterable[type]) -> bool:
    """Whether all tensor subclasses among ``types`` are fake tensors."""
    return all(issubclass(t, FakeTensor) for t in types)


def obstacle(error: BaseException) -> str | None:
    """A sentence on why the program cannot run fake and where; None for errors that are the program's own."""
    for kind, why in _WHY.items():
        if isinstance(error, kind):
            reason = why.format(*(str(a) for a in error.args[:1] or ("unknown",)))
            break
    else:
        if not (isinstance(error, RuntimeError) and "not supported for tensor subclasses" in str(error)):
            return None
        reason = f"leaves PyTorch ({str(error).partition('(')[0].strip()})"
    file, line, code = _place(error)
    return (
        f"The program cannot go on with --fake: {file}, line {line} {reason}.\n    {code}\n"
        "Make the program not ask for the value while it is recorded, or record without --fake."
    )


def _place(error: BaseException) -> tuple[str, int, str]:
    """The innermost line of the user's own files: neither installed, nor Python's, nor ours."""
    installed = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))
    foreign = (*installed, str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<frozen")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(foreign)] or frames[-1:]
    return own[-1].filename, own[-1].lineno or 0, own[-1].line or ""
