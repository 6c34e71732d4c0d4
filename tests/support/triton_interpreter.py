"""Spares Triton's interpreter most of its work.

For each call of a function inside a kernel it looks through all of `triton.language` for the builtins that it replaces
while the kernel runs, mostly to find them replaced already.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from typing import Any


def install() -> None:
    """Let the interpreter, if it is imported, look for the builtins of a module or class once."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        return
    is_builtin = interpreter.tl.core.is_builtin

    @cache
    def builtins_of(package: Any) -> tuple[str, ...]:
        return tuple(name for name, member in inspect.getmembers(package) if is_builtin(member))

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name in builtins_of(package):
            member = getattr(package, name)
            if is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin
