"""Replacing operators that PyTorch makes of others, where a GPU makes them of other ones than a CPU."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_IMPLICIT: Final = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - has no public name


@contextmanager
def replaced(operator: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Run ``function`` for a composite operator on the CPU: in eager programs, in inference mode and in traces."""
    library = torch.library.Library("aten", "IMPL")
    schema = operator._schema  # noqa: SLF001 - has no public name
    name = schema.name.removeprefix("aten::") + (f".{schema.overload_name}" if schema.overload_name else "")
    library.impl(name, function, "AutogradCPU")
    with mock.patch.dict(operator.py_kernels, {_IMPLICIT: function}):
        operator._dispatch_cache.clear()  # noqa: SLF001 - PyTorch looks its kernels up once
        try:
            yield
        finally:
            library._destroy()  # noqa: SLF001 - the only way to take kernels back
            operator._dispatch_cache.clear()  # noqa: SLF001 - as above


def written_out(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run PyTorch's own composition of an operator."""
    return operator._op_dk(_IMPLICIT, *args, **kwargs)  # noqa: SLF001 - what PyTorch does
