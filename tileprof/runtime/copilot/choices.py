"""The preferences of a co-pilot: the order in which it takes ready tasks, and what it sends before its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tileprof.arrays.ragged import owners, ragged
from tileprof.errors import UserError
from tileprof.runtime.persistent.cost import task_us
from tileprof.runtime.persistent.dealing import MOST_AHEAD
from tileprof.runtime.persistent.plan import I32, Plan

ORDERS: Final = ("stages", "critical", "deadline")
"""Stage by stage in the plan's order; the task first that the longest chain of tasks waits for; or the task first that
has to begin first for its program to keep its deadline.
"""


@dataclass(frozen=True, slots=True)
class Choices:
    """``order``: one of `ORDERS`. ``affinity``: a cluster that has completed the last input of a task gets that task
    first, which then may find it in its SM's cache or the L2 nearby. ``speculate``: tasks are sent before they are
    ready where a cluster has room, and the cluster awaits their semaphores. ``depth``: tasks that a cluster is sent and
    has not completed, at most. ``deadlines_us``: for order ``deadline``, from the begin of a run, one for each program
    of the plan (`programs`); ``math.inf`` for a program that has none. ``overwrite``: a command that its cluster has
    not taken is overwritten by a ready task that is more urgent, or where the first one waits for inputs; ``depth`` is
    at least 2.
    """

    order: str = "critical"
    affinity: bool = False
    speculate: bool = True
    depth: int = 2
    deadlines_us: tuple[float, ...] = ()
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UserError(f"there is no order {self.order!r} of a co-pilot; there are {', '.join(ORDERS)}")
        if not 1 <= self.depth <= MOST_AHEAD:
            raise UserError(f"a cluster is sent 1 to {MOST_AHEAD} tasks ahead, not {self.depth}")
        if self.overwrite and self.depth < 2:
            raise UserError("a cluster that is sent one task at a time has no command to overwrite; take depth=2")
        if (self.order == "deadline") != bool(self.deadlines_us) or not all(us > 0 for us in self.deadlines_us):
            raise UserError(
                f"the order is {self.order} and the deadlines are {self.deadlines_us}: deadlines are positive, and go "
                "with the order deadline"
            )


def programs(plan: Plan) -> I32:
    """Return ``[stages]``: the program of every stage. Stages that wait for each other, through any others, are one
    program; programs are numbered by their first stages.
    """
    home = list(range(len(plan.stages)))

    def root(stage: int) -> int:
        while home[stage] != stage:
            stage = home[stage]
        return stage

    first: dict[int, int] = {}  # the first stage seen at a semaphore
    posts = zip(np.repeat(plan.tasks[:, 0], np.diff(plan.post_ptr)), plan.posts, strict=True)
    waits = zip(np.repeat(plan.tasks[:, 0], np.diff(plan.wait_ptr)), plan.waits[:, 2], strict=True)
    for stage, semaphore in (*posts, *waits):
        a, b = sorted((root(int(stage)), root(first.setdefault(int(semaphore), int(stage)))))
        home[b] = a
    _, numbers = np.unique([root(stage) for stage in range(len(home))], return_inverse=True)
    return np.asarray(numbers, np.int32)


def places(plan: Plan, choices: Choices) -> I32:
    """Return ``[T]``: the place of every task in the order in which ready ones are taken.

    Raises `UserError` where there is not one deadline for each program.
    """
    _, turn = ragged(np.diff(plan.task_ptr))
    order = np.lexsort([turn, plan.tasks[:, 0], *_urgency(plan, choices)])
    places_of = np.empty(len(order), np.int32)
    places_of[order] = np.arange(len(order))
    return places_of


def grades(plan: Plan, choices: Choices) -> I32:
    """Return ``[T]``: tasks that are equally urgent have the same grade, and more urgent ones a smaller one."""
    keys = _urgency(plan, choices) or [plan.tasks[:, 0]]
    order = np.lexsort(keys)
    steps = np.zeros(len(order), np.int32)
    for key in keys:
        steps[1:] |= key[order][1:] != key[order][:-1]
    grades_of = np.empty(len(order), np.int32)
    grades_of[order] = np.cumsum(steps)
    return grades_of


def _urgency(plan: Plan, choices: Choices) -> list[Any]:
    """Return keys ``[T]`` of an order, the last first; none where tasks are taken stage by stage."""
    if choices.order == "deadline":
        program_of = programs(plan)
        if len(choices.deadlines_us) != program_of.max() + 1:
            raise UserError(
                f"the plan has {program_of.max() + 1} programs, independent of each other, and "
                f"{len(choices.deadlines_us)} deadlines are given"
            )
        upward = upward_us(plan)
        slack_us = np.array(choices.deadlines_us)[program_of[plan.tasks[:, 0]]] - upward
        return [-upward, slack_us]  # the first is for those without a deadline
    return [-upward_us(plan)] if choices.order == "critical" else []


def upward_us(plan: Plan) -> np.ndarray:
    """Return ``[T]``: modelled microseconds from a task's begin to the end of the longest chain of tasks that wait for
    it.
    """
    waiter, poster = owners(plan.wait_ptr), owners(plan.post_ptr)
    ranks_us, behind = np.zeros(len(plan.tasks)), np.zeros(max(1, plan.semaphores))
    for number in reversed(range(len(plan.stages))):  # a task waits for earlier stages only
        in_stage = plan.tasks[:, 0] == number
        longest = np.zeros(len(plan.tasks))
        posts = in_stage[poster]
        np.maximum.at(longest, poster[posts], behind[plan.posts[posts]])
        life_us = task_us(plan.stages[number], plan.split)[plan.tasks[in_stage, 1]]
        ranks_us[in_stage] = life_us + longest[in_stage]
        waits = in_stage[waiter]
        np.maximum.at(behind, plan.waits[waits, 2], ranks_us[waiter[waits]])
    return np.round(ranks_us, 6)
