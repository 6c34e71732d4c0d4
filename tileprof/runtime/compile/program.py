"""A compiled program: Inductor's, or the one with our kernels, whichever the first call finds right and faster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import fx

from tileprof.runtime.compile.lanes import NotNowError, RegionError
from tileprof.runtime.compile.race import difference, in_float32, times_in_turn
from tileprof.runtime.compile.ways import Traced, Way

LOG: Final = logging.getLogger("tileprof.runtime.compile")

WORTH: Final = 0.98
"""Our way is kept where its time is at most so much of Inductor's."""

_ROOM: Final = 3
"""Copies in float32 of all that a program is given, for which there must be memory before results are compared with float32."""


class Program:
    """What `torch.compile` gets. Until a call has decided, and in captures for which no runner is ready, Inductor's program runs.

    ``ways``: makes the ways that may win, best first; a later one is made where those before it have lost. ``theirs`` makes Inductor's program, at its first use.
    """

    def __init__(
        self,
        graph: Traced,
        plain: fx.GraphModule,
        ways: Sequence[Callable[[], Way]],
        theirs: Callable[..., Any],
        device: torch.device,
        *,
        measured: bool,
    ) -> None:
        self._graph, self._plain, self._ways, self._theirs = graph, plain, ways, theirs
        self._device, self._measured = device, measured
        self._deciding = threading.Lock()
        self._decided = False
        self._way: Way | None = None
        self._told: set[str] = set()

    def __call__(self, *args: Any) -> Any:
        if not self._decided:
            if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                self._tell_once(
                    "nothing can be measured during a capture: Inductor's program runs, and the next call decides"
                )
                return self._theirs(*args)
            with self._deciding:
                if not self._decided:
                    return self._decide(args)
        way = self._way
        if way is None:
            return self._theirs(*args)
        try:
            return way(*args)
        except NotNowError as reason:
            self._tell_once(f"{way.name}: Inductor's program runs in this call: {reason}")
        except RegionError as error:
            self._give_up(str(error))
        return self._theirs(*args)

    def _give_up(self, reason: str) -> None:
        LOG.warning("whole program: Inductor's from now on: %s", reason)
        self._way, self._decided = None, True

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            LOG.info(sentence)

    def _decide(self, args: tuple[Any, ...]) -> Any:
        """Race, and the results of this call. What the program updates in place is updated once, whatever ran."""
        changed = self._graph.changed(args)
        before = [t.clone() for t in changed]

        def restore() -> None:
            for tensor, saved in zip(changed, before, strict=True):
                tensor.copy_(saved)

        race = _Race(self, args, changed, restore)
        for make in self._ways:
            verdict = race.run(make)
            if verdict is None:
                break
            self._decided = True
            if verdict:
                break
        restore()
        return self._theirs(*args) if self._way is None else self(*args)


class _Race:
    """One call's ways against Inductor's program, on its inputs."""

    def __init__(self, program: Program, args: tuple[Any, ...], changed: Sequence[Any], restore: Callable[[], None]) -> None:  # fmt: skip
        self.program, self.args, self.changed, self.restore = program, args, changed, restore
        self._reference: Any = None

    def run(self, make: Callable[[], Way]) -> bool | None:
        """Whether the way is kept. None: these inputs cannot tell, another call may."""
        program = self.program
        name = "our kernels"
        try:
            way = make()
            name = way.name
            ours = self._results(way)
            way.lanes.now().check()
            right = self._right(way, ours)
            if not right:
                return right
            if program._measured and not self._faster(way):  # noqa: SLF001 - one concept in two classes
                return False
        except (RegionError, NotNowError) as error:
            LOG.warning("whole program: Inductor's: %s", error)
            return False
        except (RuntimeError, OSError) as error:  # of a compiler, memory, a capture: Inductor's way is there
            LOG.warning("whole program: Inductor's: %s: %s", name, (str(error) or type(error).__name__).splitlines()[0])
            return False
        program._way = way  # noqa: SLF001 - likewise
        return True

    def _results(self, run: Callable[..., Any]) -> list[Any]:
        """What a program returns and what it makes of the tensors that it updates."""
        self.restore()
        result = run(*self.args)
        results = list(result) if isinstance(result, tuple | list) else [result]
        return [*results, *(t.clone() for t in self.changed)]

    def _right(self, way: Way, ours: list[Any]) -> bool | None:
        program = self.program
        against = program._theirs if program._measured else program._plain  # noqa: SLF001 - likewise
        theirs = self._results(against)
        far = difference(ours, theirs)
        if far.error is None:
            LOG.info("whole program: Inductor's for now: results that are all zero, or not finite, cannot be compared")
            return None
        if far.passes:
            return True
        exact = self._in_float32()
        if exact is not None:
            count = len(exact)
            mine, other = (difference(_wide(r[:count]), exact) for r in (ours, theirs))
            LOG.info("%s: %.1e from float32, Inductor's %.1e", way.name, mine.error or 0.0, other.error or 0.0)
            if mine.error is not None and other.error is not None and mine.error <= max(far.tolerance, other.error):
                return True
        LOG.warning("whole program: Inductor's: results of %s differ by %.1e", way.name, far.error)
        return False

    def _in_float32(self) -> list[Any] | None:
        size = sum(4 * a.numel() for a in self.args if isinstance(a, torch.Tensor))
        device = self.program._device  # noqa: SLF001 - likewise
        if device.type == "cuda" and _ROOM * size > torch.cuda.mem_get_info(device)[0]:
            return None
        self.restore()
        return in_float32(self.program._plain, self.args)  # noqa: SLF001 - likewise

    def _faster(self, way: Way) -> bool:
        lane = way.lanes.now()
        works = [partial(way.in_lane, lane, self.args), partial(self.program._theirs, *self.args)]  # noqa: SLF001 - likewise
        ours, theirs = times_in_turn(works, self.restore)
        lane.check()
        kept = ours <= WORTH * theirs
        LOG.info(
            "whole program: %.1f us against Inductor's %.1f us; kept %s (%s)", ours, theirs, "ours" if kept else "Inductor's", way.name
        )  # fmt: skip
        return kept


def _wide(values: Sequence[Any]) -> list[Any]:
    return [v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]
