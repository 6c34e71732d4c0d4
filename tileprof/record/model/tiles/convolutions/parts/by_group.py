"""Convolutions whose groups cuDNN launches one after the other: each is a convolution of one group.

A group has its own workspace (recorded: launches of one group do not depend on those of another).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tileprof.record.model.tile_model import Operand, Scratch
from tileprof.record.model.tiles.convolutions.conv_kernels import Window
from tileprof.record.model.tiles.convolutions.library_kernels import MAINS, parse_name
from tileprof.record.model.tiles.convolutions.problem import Problem
from tileprof.record.model.tiles.foundations.sketch import narrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileprof.record.model.tile_model import Kernel
    from tileprof.record.model.tiles.convolutions.conv_weight_kernels import WeightGradient
    from tileprof.record.model.tiles.convolutions.problem import MeasuredLaunch

_GROUPS, _INSIDE, _OUTSIDE = 5, 7, 8
"""Columns of a key."""
_OWN_SLOTS, _SLOTS = 6, 64
"""Scratch slots of a group, and more slots than the launches of a call have in all (`convolutions.conv`)."""


def turns(launches: Sequence[MeasuredLaunch], groups: int) -> int:
    """Return how many launches a group has where groups take turns: all groups launch the same kernels, one of which
    computes at least. 0 for other calls.
    """
    turn, rest = divmod(len(launches), groups)
    names = [launch.name for launch in launches]
    computes = any(parse_name(name).role in MAINS for name in names[:turn])
    return turn if groups > 1 and not rest and computes and names == names[:turn] * groups else 0


def key_of_group(key: tuple[int, ...]) -> tuple[int, ...]:
    """Return the key of one group's convolution."""
    groups, divided = key[_GROUPS], (_INSIDE, _OUTSIDE)
    return tuple(1 if i == _GROUPS else n // groups if i in divided else n for i, n in enumerate(key))


def problems(problem: Problem) -> list[Problem]:
    """Return the convolutions of a call's groups."""
    return [_problem(problem, key_of_group(problem.key), number) for number in range(problem.key[_GROUPS])]


def _problem(problem: Problem, key: tuple[int, ...], group: int) -> Problem:
    groups = problem.key[_GROUPS]

    def own(operand: Operand, dim: int) -> Operand:
        size = operand.shape[dim] // groups
        return narrow(operand, dim, group * size, size)

    shape: Window | WeightGradient
    if isinstance(problem.shape, Window):
        source, weight = own(problem.inputs[0], 1), own(problem.inputs[1], 0)
        out = own(problem.out, 1)
        shape = replace(problem.shape, out=out, source=source, weight=weight, groups=1, bias=None)
        return Problem(key, shape, (source, weight), out)
    small, large = (own(operand, 1) for operand in problem.inputs)
    out = own(problem.out, 0)
    shape = replace(problem.shape, weight=out, small=small, large=large, groups=1)
    return Problem(key, shape, (small, large), out)


def apart(kernel: Kernel, group: int) -> Kernel:
    """Return a kernel of a group with workspace of its own."""

    def moved(operand: Operand | Scratch) -> Operand | Scratch:
        if isinstance(operand, Scratch) and not operand.library and operand.slot < _OWN_SLOTS:
            return replace(operand, slot=operand.slot + _SLOTS * (group + 1))
        return operand

    return replace(kernel, operands=tuple(map(moved, kernel.operands)))
