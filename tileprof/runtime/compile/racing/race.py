"""A compiled program: Inductor's, or the one with our kernels, whichever the first call finds right and faster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import fx

from tileprof.runtime.compile.racing.compare_results import difference, in_float32, times_in_turn
from tileprof.runtime.compile.racing.region_program import Traced, Way
from tileprof.runtime.compile.racing.report import Report
from tileprof.runtime.compile.racing.runners import NotNowError, RegionError
from tileprof.runtime.compile.racing.verdict_cache import Verdict, keep

LOG: Final = logging.getLogger("tileprof.runtime.compile")

WORTH: Final = 0.96
"""Our way is kept where its time is at most so much of Inductor's. Two captures of the same two programs differ by up
to 4%: BERT's chains took 0.975 of Inductor's time in a race, and 1.018 of it in a benchmark afterwards.
"""

_ROOM: Final = 3
"""Copies in float32 of all that a program is given, for which there must be memory before results are compared with
float32.
"""


class Program:
    """The program that `torch.compile` gets. Inductor's program runs until a call has decided, and in captures for
    which no runner is ready.

    ``ways``: makes the ways that may win, best first; a later one is made where those before it have lost. ``theirs``
    makes Inductor's program, at its first use.
    """

    def __init__(
        self,
        graph: Traced,
        plain: fx.GraphModule,
        ways: Sequence[Callable[[], Way]],
        inductor_program: Callable[..., Any],
        device: torch.device,
        report: Report,
        race: Race | None,
    ) -> None:
        self._graph, self._plain, self._ways, self._inductor_program = graph, plain, ways, inductor_program
        self._device, self.report, self._race = device, report, race
        self._deciding = threading.Lock()
        self._decided = False
        self._later = race is not None and race.later and race.earlier_verdict is None
        self._way: Way | None = None
        self._warnings_given: set[str] = set()

    def __call__(self, *args: Any) -> Any:
        if not self._decided:
            if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                if self._way is None:
                    self._tell_once(
                        "nothing can be measured during a capture: Inductor's program runs, and the next call decides"
                    )
                    return self._inductor_program(*args)
            else:
                with self._deciding:
                    if not self._decided:
                        return self._decide(args)
        return self._run(args)

    def _run(self, args: tuple[Any, ...]) -> Any:
        way = self._way
        if way is None:
            return self._inductor_program(*args)
        try:
            return way(*args)
        except NotNowError as reason:
            self._tell_once(f"{way.name}: Inductor's program runs in this call: {reason}")
        except RegionError as error:
            self._give_up(str(error))
        return self._inductor_program(*args)

    def _give_up(self, reason: str) -> None:
        LOG.warning("whole program: Inductor's from now on: %s", reason)
        self._way, self._decided = None, True
        self.report.winner, self.report.reason = "", reason

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self._warnings_given:
            self._warnings_given.add(sentence)
            LOG.info(sentence)

    def _decide(self, args: tuple[Any, ...]) -> Any:
        """Race, and the results of this call. What the program updates in place is updated once, whatever ran."""
        call = _Call(args, self._graph.changed(args))
        if self._later:
            self._later = False
            if self._run_unraced(call):
                call.restore()
                return self._run(args)
        race = _Run(call, self._inductor_program, self._plain, self._device, self.report, self._race)
        self._way = None
        for make in self._ways:
            verdict = race.run(make)
            if verdict is None:
                break
            self._decided = True
            if verdict is not False:
                self._way, self.report.winner, self.report.reason = verdict, verdict.name, ""
                break
        if self._decided:
            self._ways = ()  # what has lost gives its memory back
            if self._race is not None:
                race.write_down(self._way)
        call.restore()
        return self._run(args)

    def _run_unraced(self, call: _Call) -> bool:
        """Return whether the first way is right, which then runs until the next call has raced it."""
        make, *others = self._ways
        way = _Run(call, self._inductor_program, self._plain, self._device, self.report, None).run(make)
        if not isinstance(way, Way):
            return False
        LOG.info(
            "whole program: %s runs for now; the next call outside of a capture compiles Inductor's, and races",
            way.name,
        )
        self._way, self._ways = way, (lambda: way, *others)
        return True


class _Call:
    """Inputs, and the tensors among what they lead to that a call updates in place, which can be put back."""

    def __init__(self, args: tuple[Any, ...], changed: Sequence[Any]) -> None:
        self.args, self._changed = args, changed
        self._before = [t.clone() for t in changed]

    def restore(self) -> None:
        for tensor, saved in zip(self._changed, self._before, strict=True):
            tensor.copy_(saved)

    def results(self, run: Callable[..., Any]) -> list[Any]:
        """Return what a program returns and what it makes of the tensors that it updates."""
        self.restore()
        result = run(*self.args)
        results = list(result) if isinstance(result, tuple | list) else [result]
        return [*results, *(t.clone() for t in self._changed)]


@dataclass(frozen=True, slots=True)
class Race:
    """The race of a program against Inductor's.

    ``key``: under which the verdict is kept for later processes. ``earlier_verdict``: that of an earlier process, with
    which nothing need be timed.
    """

    key: str | None
    earlier_verdict: Verdict | None = None
    later: bool = False
    """The race is the second call's, so that the first need not wait for Inductor."""


class _Run:
    """One call's ways against Inductor's program, or without a race, or after an earlier one, against PyTorch's
    results.
    """

    def __init__(
        self,
        call: _Call,
        inductor_program: Callable[..., Any],
        plain: fx.GraphModule,
        device: torch.device,
        report: Report,
        race: Race | None,
    ) -> None:
        self._call, self._inductor_program, self._plain, self._device = call, inductor_program, plain, device
        self._report, self._race = report, race
        self._measured = race is not None and race.earlier_verdict is None
        self._reference: list[Any] | None = None
        self._failed = False
        if race is not None and race.earlier_verdict is not None:
            LOG.info("whole program: measured before: %s", race.earlier_verdict.sentence)
            report.ours_us, report.inductor_us = race.earlier_verdict.ours_us, race.earlier_verdict.inductor_us

    def run(self, make: Callable[[], Way]) -> Way | Literal[False] | None:
        """Return the way, if it is kept. None: these inputs cannot tell, another call may."""
        try:
            way = make()
            results = self._call.results(way)
            with way.lanes.use() as lane:
                lane.check()
            right = self._right(way, results)
            if not right:
                return right
            return way if not self._measured or self._faster(way) else False
        except (RegionError, NotNowError) as error:
            return self._reject(str(error))
        except Exception as error:  # noqa: BLE001 - Inductor's program is there, whatever is raised
            return self._reject(f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}")

    def _reject(self, reason: str) -> Literal[False]:
        LOG.warning("whole program: Inductor's: %s", reason)
        self._report.reason, self._failed = reason, True
        return False

    def _right(self, way: Way, results: list[Any]) -> bool | None:
        if self._reference is None:
            self._reference = self._call.results(self._inductor_program if self._measured else self._plain)
        far = difference(results, self._reference)
        if far.error is None:
            LOG.info("whole program: Inductor's for now: results that are all zero, or not finite, cannot be compared")
            return None
        if far.passes:
            return True
        exact = self._in_float32()
        if exact is not None:
            way_difference, other = (difference(_wide(r[: len(exact)]), exact) for r in (results, self._reference))
            if way_difference.error is not None and other.error is not None:
                LOG.info("%s: %.1e from float32, Inductor's %.1e", way.name, way_difference.error, other.error)
                if way_difference.error <= max(far.tolerance, other.error):
                    return True
        return self._reject(f"results of {way.name} differ by {far.error:.1e}")

    def _in_float32(self) -> list[Any] | None:
        size = sum(4 * a.numel() for a in self._call.args if isinstance(a, torch.Tensor))
        if self._device.type == "cuda" and _ROOM * size > torch.cuda.mem_get_info(self._device)[0]:
            return None
        self._call.restore()
        return in_float32(self._plain, self._call.args)

    def _faster(self, way: Way) -> bool:
        with way.lanes.use() as lane:  # which the captures of the race do not take over
            works = [partial(way.in_lane, lane, self._call.args), partial(self._inductor_program, *self._call.args)]
            ours_us, inductor_us = times_in_turn(works, self._call.restore)
            lane.check()
        faster = ours_us <= WORTH * inductor_us
        LOG.info(
            "whole program: %.1f us against Inductor's %.1f us; kept %s (%s)",
            ours_us,
            inductor_us,
            "tileprof's" if faster else "Inductor's",
            way.name,
        )
        self._report.ours_us, self._report.inductor_us = ours_us, inductor_us
        self._report.reason = "" if faster else f"{way.name}: {ours_us:.1f} us against Inductor's {inductor_us:.1f} us"
        return faster

    def write_down(self, winner: Way | None) -> None:
        """Keep the verdict for later processes: of times alone, since what has failed may have failed by chance."""
        ours_us, inductor_us = self._report.ours_us, self._report.inductor_us
        if (
            self._measured
            and not self._failed
            and ours_us is not None
            and inductor_us is not None
            and self._race is not None
        ):
            keep(self._race.key, Verdict("" if winner is None else winner.name, ours_us, inductor_us))


def _wide(values: Sequence[Any]) -> list[Any]:
    return [v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]
