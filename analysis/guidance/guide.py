"""A verdict on a program, and the actions that are worth their effort, ranked: `guide(report, simulator)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.analysis.guidance.chains import DEVICE_TO_HOST, Chain, chains
from tileprof.analysis.guidance.shares import by_module, by_operator
from tileprof.analysis.guidance.values import Action, Basis, Effort, Guidance, Verdict
from tileprof.analysis.guidance.whole_schedules import (
    APART,
    SPREAD,
    in_a_graph,
    meaningful,
    simulated_times,
    whole_schedules,
)
from tileprof.analysis.reporting.gains import direct_and_known
from tileprof.analysis.reporting.independence import independence
from tileprof.analysis.reporting.opportunities import pair_opportunity
from tileprof.analysis.times_and_counts import counted, duration, signed_percent
from tileprof.shell_words import shell_word

if TYPE_CHECKING:
    from tileprof.analysis.reporting.report import Report
    from tileprof.analysis.simulate import Simulator

WORTH: Final = 0.005
"""Share of the program that an action must save to be named."""

MOST_ACTIONS: Final = 8
_MOST_CHAINS: Final = 4
"""Chains of launches that one action names."""

MOST_PAIRS: Final = 6
"""Kinds of pairs that are simulated; `tileprof simulate --advice` tries more."""

_AFTER_WORK: Final[dict[Effort, float]] = {"minutes": 1.0, "hours": 0.9, "days": 0.75}
"""Factors of a saving by the work that it takes, when actions are ranked."""

_AFTER_A_GRAPH: Final = ("out-of-order", "dependent-launch", "compile", "fuse", "synchronise")
"""Kinds of actions whose savings leave out what a CUDA graph saves anyway: the gaps between launches."""

SLOW_HOST_NS: Final = 20_000
"""Mean gap of a launch from which on the host is late: about ten times what launching takes."""

_LAUNCH_BOUND, _NARROW, _FULL_RATE, _TAIL = 0.25, 0.5, 0.6, 0.25
"""Least shares for which a program is called launch-bound (no kernel runs), made of small kernels (launches that fill
less than half of the GPU), bound by DRAM or arithmetic (time that these need at full rate), tail-bound (slots without a
tile).
"""


def guide(report: Report, simulator: Simulator, times: dict[str, float] | None = None) -> Guidance:
    """Return verdict, schedules and actions of the program of ``report``; ``simulator`` is of the same graph
    and machine, and ``times`` what `simulated_times` says of it, where it has been asked before.
    """
    times = meaningful(simulated_times(simulator) if times is None else times, report)
    options = _Actions(report, simulator, times)
    graph_first = _limit(report, simulator.narrow)[0] == "launch-bound"
    ranked = sorted(options.all(), key=lambda action: _rank(action, graph_first=graph_first))
    actions = tuple(a for a in ranked if a.saves_share >= WORTH)[:MOST_ACTIONS]
    launches = simulator.graph.launches
    return Guidance(
        verdict=_verdict(report, simulator.narrow, actions),
        schedules=whole_schedules(report, times),
        actions=actions,
        operators=by_operator(report, launches) if len(launches) else (),
        modules=by_module(report, launches) if len(launches) else (),
    )


def _rank(action: Action, *, graph_first: bool) -> tuple[bool, bool, bool, float]:
    """Return the key by which actions are sorted: recording a warm step comes first, then the CUDA graph of a
    launch-bound program, because other savings are beyond it; estimates come before upper bounds; then saving per work.
    """
    graph = graph_first and action.kind == "cuda-graph"
    return action.kind != "warm-up", not graph, action.basis == "at most", -action.saves_ns * _AFTER_WORK[action.effort]


def host_is_late(report: Report) -> bool:
    """Return whether a measured program mostly waits for its host, as first calls do while they load and compile."""
    p = report.program
    return "measured" in p.timing and p.gap_ns >= max(p.recorded_ns / 2, SLOW_HOST_NS * p.launches, 1.0)


def _verdict(report: Report, narrow: float, actions: tuple[Action, ...]) -> Verdict:
    kind, fact = _limit(report, narrow)
    if not report.program.launches:
        return Verdict(kind, fact, 0.0, 0.0)
    if not actions:
        rest = "no action here saves 0.5% of it"
        return Verdict(kind, f"{kind}: {fact}; {rest}", 0.0, 0.0)
    first = actions[0]
    if first.kind == "warm-up":
        rest = "record a warm step: call the program once before tileprof.capture()"
        return Verdict(kind, f"{kind}: {fact}; {rest}", first.saves_ns, first.saves_share)
    saves = f"{first.title} saves {first.saving} ({signed_percent(first.saves_share)})"
    return Verdict(kind, f"{kind}: {fact}; {saves}", first.saves_ns, first.saves_share)


def _limit(report: Report, narrow: float) -> tuple[str, str]:
    """Return what limits the program, and the numbers that say so."""
    p, bounds = report.program, report.bounds
    if not p.launches:
        return "empty", "nothing that runs on a GPU was recorded"
    if p.recorded_ns <= 0:
        return "untimed", "the trace holds no times"
    gap = p.gap_ns / p.recorded_ns
    small = f"{narrow:.0%} of the launches fill less than half of the GPU"
    if host_is_late(report):
        return (
            "host-bound",
            f"the GPU waits for the host {gap:.0%} of the time, {duration(p.gap_ns / p.launches)} per launch",
        )
    if gap >= _LAUNCH_BOUND:
        more = f", and {small}" if narrow >= _NARROW else ""
        return "launch-bound", f"for {gap:.0%} of the time no kernel runs{more}"
    if narrow >= _NARROW:
        return "small kernels", f"{small}, and for {gap:.0%} of the time no kernel runs"
    for name, word in (("DRAM", "bandwidth-bound"), ("compute", "compute-bound")):
        share = bounds.ns.get(name, 0.0) / p.recorded_ns
        if share >= _FULL_RATE and report.dependencies_known:
            rate = "moving every byte once" if name == "DRAM" else "the arithmetic"
            return word, f"{rate} at full rate takes {share:.0%} of the time, which no schedule shortens"
    if p.idle >= _TAIL:
        return "tail-bound", f"{p.idle:.0%} of the slot-time has no tile while launches run, mostly in last waves"
    return "well filled", f"tiles fill {1 - p.idle:.0%} of the slot-time while launches run"


class _Actions:
    """All actions that a report and some simulated times lead to, unsorted."""

    def __init__(self, report: Report, simulator: Simulator, times: dict[str, float]) -> None:
        self._report, self._simulator, self._times = report, simulator, times
        self._graph = simulator.graph
        self._launches = simulator.graph.launches
        self._recorded_ns = report.program.recorded_ns
        self._trace = shell_word(report.source.path)
        self._graphed = self._graph_ns() < self._recorded_ns
        self._pytorch = bool(self._launches["op"].astype(str).str.startswith("aten::").any())

    def all(self) -> Iterator[Action]:
        if not self._report.program.launches or self._recorded_ns <= 0:
            return
        if host_is_late(self._report):
            yield self._warm_up()
        yield from self._cuda_graph()
        if self._report.dependencies_known:
            yield from self._out_of_order()
            yield from self._dependent_launch()
            yield from self._compile_backend()
            yield from self._fuse()
            yield from self._synchronise()
        yield from self._tile_shapes()

    def _action(
        self,
        kind: str,
        title: str,
        saves_ns: float,
        basis: Basis,
        effort: Effort,
        reason: str,
        command: str,
        launches: tuple[int, ...] = (),
        graph: str = "a CUDA graph",
    ) -> Action:
        share = saves_ns / self._recorded_ns
        counted_after = self._graphed and kind in _AFTER_A_GRAPH
        beyond = graph if counted_after else ""
        return Action(kind, title, saves_ns, share, basis, effort, reason, command, launches, beyond)

    def _out_of_order(self) -> Iterator[Action]:
        """Yield independent launches over several streams, or as branches of a graph, by ``tileprof run --scheduler
        acs``.
        """
        apart_ns, spread_ns = self._times.get(APART, np.inf), self._times.get(SPREAD, np.inf)
        independent = independence(self._simulator.program) if apart_ns < 0.98 * self._graph_ns() else None
        if independent is None:
            return
        p = self._report.program
        reason = (
            f"{independent.share:.0%} of {counted(p.launches, 'launch')} need not wait for the launch before them, "
            f"and of {independent.window} launches in a row {independent.width:.1f} on average could run at the same "
            f"time; on several streams, issued by one thread, the program takes {duration(spread_ns)}, as a graph with "
            f"branches {duration(apart_ns)}; needs a GPU"
        )
        way = "acs-graph" if apart_ns < spread_ns else "acs"
        command = f"tileprof run --scheduler {way} -- {' '.join(map(shell_word, self._report.source.command))}"
        saves_ns = self._graph_ns() - min(apart_ns, spread_ns)
        yield self._action(
            "out-of-order",
            "issuing independent launches out of order",
            saves_ns,
            "simulated",
            "minutes",
            reason,
            command,
        )

    def _graph_ns(self) -> float:
        """Time of the program once it is in a CUDA graph, or as recorded where that is no slower."""
        return min(self._recorded_ns, self._times.get("graph", self._recorded_ns))

    def _warm_up(self) -> Action:
        gap_ns = self._report.program.gap_ns
        return self._action(
            "warm-up",
            "recording a warm step",
            gap_ns,
            "at most",
            "minutes",
            "first calls load and compile while the GPU waits; that time counts as saved in everything below",
            "with tileprof.capture(): model(x)  # after one call outside of it",
        )

    def _cuda_graph(self) -> Iterator[Action]:
        p = self._report.program
        device = self._simulator.machine.device
        if "graph" in self._times:
            saves_ns, basis = self._recorded_ns - self._times["graph"], "simulated"
        else:
            shorter = max(device.launch_gap_ns - device.graph_gap_ns, 0.0) * (p.launches - 1)
            saves_ns, basis = min(shorter, p.gap_ns), "estimated"
        reason = f"{counted(p.launches, 'launch')}, no kernel runs for {duration(p.gap_ns)}"
        apart_ns = self._times.get(APART, np.inf)
        if apart_ns < 0.98 * self._graph_ns():
            reason += (
                "; captured on several streams, so that independent launches run side by side, it takes "
                f"{duration(apart_ns)}"
            )
        if copies := self._copies_to_host_in_between():
            reason += (
                f"; in between, values are copied to the host {counted(copies, 'time')}: where the program waits for "
                "one, a graph ends, and several graphs save less"
            )
        code = (
            'torch.compile(model, mode="reduce-overhead")' if self._pytorch else "cudaStreamBeginCapture(stream, mode)"
        )
        yield self._action(
            "cuda-graph",
            "a CUDA graph",
            saves_ns,
            "simulated" if basis == "simulated" else "estimated",
            "minutes",
            reason,
            code,
        )

    def _copies_to_host_in_between(self) -> int:
        """Return how many copies to the host other launches follow; what only ends a program splits no graph."""
        to_host = (self._launches["kernel"].astype(str) == DEVICE_TO_HOST).to_numpy(bool)
        kernels = np.flatnonzero(~to_host)
        return int(to_host[: kernels[-1]].sum()) if len(kernels) else 0

    def _dependent_launch(self) -> Iterator[Action]:
        if "pdl" in self._times:
            gap_ns = self._simulator.machine.device.graph_gap_ns
            yield self._action(
                "dependent-launch",
                "programmatic dependent launch in the graph",
                self._graph_ns() - self._times["pdl"],
                "simulated",
                "hours",
                f"{duration(gap_ns)} remain before each launch in a graph; measure a pair first: on an H200, "
                "waits at entry made some slower",
                f"tileprof simulate --scheduler {in_a_graph(self._simulator)} {self._trace}",
            )

    def _compile_backend(self) -> Iterator[Action]:
        if self._pytorch and "persistent" in self._times:
            graph_ns, pdl_ns = self._graph_ns(), self._times.get("pdl", np.inf)
            dependent = self._graphed and pdl_ns < 0.99 * graph_ns  # then it is a row of its own in the table
            before = pdl_ns if dependent else graph_ns
            yield self._action(
                "compile",
                'torch.compile(model, backend="tileprof")',
                before - self._times["persistent"],
                "simulated",
                "minutes",
                "one persistent kernel whose tiles wait for tiles leaves no gaps; simulated as if the backend took "
                "every launch",
                'torch.compile(model, backend="tileprof")',
                graph="a CUDA graph with dependent launch" if dependent else "a CUDA graph",
            )

    def _fuse(self) -> Iterator[Action]:
        """Yield one action for what a compiler does at once; without PyTorch each chain is work of its own."""
        fusible = chains(self._graph, self._simulator.machine.device.graph_gap_ns)
        if self._pytorch and fusible:
            yield self._fusion(fusible)
        elif not self._pytorch:
            for chain in fusible:
                yield self._fusion([chain])

    def _fusion(self, fusible: list[Chain]) -> Action:
        largest, more = fusible[0], len(fusible) - 1
        others = f" and {counted(more, 'more kind')} of chains" if more else ""
        count = largest.last - largest.first + 1
        reason = (
            f"each tile of these {count} launches needs the same tile before it and nothing else of the chain; fused, "
            "the chain takes as long as its longest launch"
        )
        if more:
            rest = "; ".join(
                f"{c.operators} ({duration(c.saves_ns)}{_times(c.times)})" for c in fusible[1:_MOST_CHAINS]
            )
            reason += f"; {duration(largest.saves_ns)} of it here, then {rest}"
        return self._action(
            "fuse",
            f"fusing {largest.operators} {_at(largest.first, largest.last, largest.times, largest.module)}{others}",
            sum(chain.saves_ns for chain in fusible),
            "estimated",
            "minutes" if self._pytorch else "hours",
            reason,
            "torch.compile(model)" if self._pytorch else f"tileprof view {self._trace}",
            tuple(range(largest.first, largest.last + 1)),
        )

    def _synchronise(self) -> Iterator[Action]:
        groups = self._report.groups
        rows = groups[direct_and_known(groups) & (groups["overlap_ns"].to_numpy(np.float64) > 0)]
        for row in rows.head(MOST_PAIRS).to_dict("records"):
            if self._report.program.tiles > 0 and (opportunity := pair_opportunity(row, self._simulator)):
                if opportunity.scheduler == "pdl":
                    continue  # the whole program's dependent launch is an action of its own
                pair = (int(row["producers"][0]), int(row["consumers"][0]))
                names = " → ".join(name.removeprefix("aten::") for name in opportunity.names)
                yield self._action(
                    "synchronise",
                    f"synchronising the tiles of launches {pair[0]} → {pair[1]} ({names}){_times(opportunity.times)}",
                    opportunity.saves_ns,
                    "simulated",
                    "days",
                    opportunity.because,
                    f"tileprof export --format json --pair {pair[0]}:{pair[1]} -o policy {self._trace}",
                    pair,
                )

    def _tile_shapes(self) -> Iterator[Action]:
        """Yield launches of a few waves whose last one is nearly empty; only kernels whose tile shape is a choice."""
        waves = self._report.launch_waves
        alone = waves["alone_ns"].to_numpy(np.float64)
        whole = waves["waves"].to_numpy(np.float64)
        rounded = 1.0 - waves["last_wave"].to_numpy(np.float64)
        last_wave_ns = np.where(whole >= 2, alone * rounded / np.maximum(whole, 1.0), 0.0)
        facts = self._launches
        names = facts["op"].astype(str).str.replace("aten::", "").where(facts["op"] != "", facts["kernel"].astype(str))
        families = facts["module"].astype(str).str.replace(r"\d+", "*", regex=True)
        alike: dict[tuple[int, str, str], list[int]] = {}
        for i, key in enumerate(zip(facts["footprint"].tolist(), names.tolist(), families.tolist(), strict=True)):
            alike.setdefault(key, []).append(i)
        for (_, name, module), members in alike.items():
            saves_ns, first = float(last_wave_ns[members].sum()), members[0]
            if saves_ns < WORTH * self._recorded_ns:
                continue
            yield self._action(
                "tile-shape",
                f"another tile shape for {name} {_at(first, first, len(members), module)}",
                saves_ns,
                "at most",
                "minutes" if self._pytorch else "hours",
                f"{counted(int(whole[first]), 'wave')}, the last one {1 - rounded[first]:.0%} full",
                'torch.compile(model, mode="max-autotune")' if self._pytorch else f"tileprof view {self._trace}",
                (first,),
            )


def _at(first: int, last: int, times: int, module: str) -> str:
    launches = f"launch {first}" if first == last else f"launches {first} to {last}"
    where = f" in {module}" if module else ""
    return f"({launches}{where}{_times(times)})"


def _times(times: int) -> str:
    return f", \N{MULTIPLICATION SIGN}{times}" if times > 1 else ""
