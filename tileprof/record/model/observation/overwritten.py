"""Copies of what in-place operators overwrite.

If the gradient of an in-place operator needs the values before it (`silu_`, `hardswish_`, `hardtanh_`, `mul_`), its
autograd function clones them first. On a GPU this copy is part of the in-place operator, because it runs inside of it.
A dispatch mode sees both as operators of their own, one after the other, from the same call in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from types import FrameType

    from tileprof.record.model.calls.overload_facts import Operator

_CLONE: Final = "aten::clone"


class _Copy(NamedTuple):
    tensor: int
    """`id` of what was copied, which is not kept alive."""
    call: tuple[int, int]
    """The frame that called, and its instruction."""
    launch: int


class Overwritten:
    """The operators of one thread, in order."""

    def __init__(self) -> None:
        self._copy: _Copy | None = None

    def copy_for(self, operator: Operator, args: tuple[Any, ...], caller: FrameType) -> int | None:
        """Return the launch of the copy that belongs to ``operator``, which is about to run; None if the operator
        before it was no such copy.
        """
        copy, self._copy = self._copy, None
        if copy is None or not operator.mutates or not args or copy[:2] != (id(args[0]), _call(caller)):
            return None
        return copy.launch

    def ran(
        self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType, launch: int
    ) -> None:
        """Remember an operator that has just been recorded as ``launch``."""
        if operator.name == _CLONE and len(args) == 1 and not kwargs and torch.is_grad_enabled():
            self._copy = _Copy(id(args[0]), _call(caller), launch)


def _call(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti
