"""Gains that schedulers' authors published, beside tileprof's simulation of programs like theirs.

Published values are means and bests as the papers print them, on the authors' simulators. Simulated values are those of
the programs of this folder, on a GPU with the same number of SMs and the same launch costs. The papers do not say how
long a tile takes alone and how much tiles slow each other down: each comparison is made under several assumptions, and
its result is the range of the means. Nothing is fitted to a gain.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from tileprof.analysis.bounds import Machine
from tileprof.analysis.dependencies.graph import TileGraph, build_graph
from tileprof.analysis.simulate.duration_models import life_model
from tileprof.analysis.simulate.schedulers import scheduler
from tileprof.analysis.simulate.simulator import Simulator
from tileprof.analysis.simulate.spawning import Spawned, Spawning, Spawns, compare
from tileprof.analysis.workloads import applications, nested, tasks
from tileprof.devices import get
from tileprof.trace import load

NEAR = 1.5
"""A published mean within this factor of the simulated range counts as near."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A published mean beside simulated gains: ``ours`` maps an assumption to simulated gains by program; ``best`` is
    None where the paper gives none; ``why`` names the known differences between the programs.
    """

    scheduler: str
    programs: str
    mean: float
    best: float | None
    ours: Mapping[str, Mapping[str, float]]
    why: str

    @property
    def means(self) -> tuple[float, float]:
        """The lowest and the highest of the simulated (geometric) means."""
        means = [geometric_mean(gains.values()) for gains in self.ours.values()]
        return min(means), max(means)

    @property
    def most(self) -> float:
        """The best simulated gain."""
        return max(max(gains.values()) for gains in self.ours.values())

    @property
    def ratio(self) -> float:
        """The nearest simulated mean over the published mean; 1 if the latter lies in the simulated range."""
        low, high = self.means
        return low / self.mean if self.mean < low else min(high / self.mean, 1.0)

    @property
    def inside(self) -> bool:
        """The published mean lies in the simulated range."""
        return self.ratio == 1.0

    @property
    def apart(self) -> float:
        """The factor between the published mean and the nearest end of the simulated range; 1 inside."""
        return max(self.ratio, 1 / self.ratio)

    @property
    def near(self) -> bool:
        """The published mean is within a factor of `NEAR` of the nearest end of the simulated range, or inside."""
        return self.apart <= NEAR

    @property
    def same_direction(self) -> bool | None:
        """All simulated means are gains (or losses) like the published one; None if that is 1, without a direction."""
        if self.mean == 1.0:
            return None
        return all((mean > 1.0) == (self.mean > 1.0) and mean != 1.0 for mean in self.means)

    @property
    def verdict(self) -> str:
        """A sentence about direction and size."""
        low, high = self.means
        towards = {None: "published without a direction", True: "same direction", False: "not the same direction"}
        if self.inside:
            size = "the published mean lies in the simulated range"
        else:
            how = "above" if self.ratio > 1 else "below"
            size = f"simulated means are {how} it by a factor of {self.apart:.2f}"
        return f"{towards[self.same_direction]}; {size}" + (
            "" if self.same_direction else f" ({low:.2f}x to {high:.2f}x)"
        )


AMPERE_SMS, LAUNCH_NS = 46, 3600.0
"""The RTX 3070 that ACS was simulated on, and its 5,000 cycles of launch at 1.4 GHz in Accel-Sim's configuration of it.
"""
LIVES = {
    "tiles last as alone": "recorded",
    "tiles last twice as long on a full SM": "co-residency-scaled:sensitivity=1",
}
_ACS = {
    "rigid bodies": (("acs-hw", 1.92, 2.19), ("acs-sw", 1.66, 1.87)),
    "gated networks": (("acs-hw", 1.30, 1.39), ("acs-sw", 1.05, None)),
    "static networks": (("acs-hw", 1.31, None), ("acs-sw", 1.16, None)),
}
"""Figures from the paper's text. No mean is printed for the hardware version on rigid bodies: 1.92 is what the mean of
1.56 over 12 programs leaves to 5 of them, with 1.30 over 3 dynamic and 1.31 over 4 static networks.
"""
_ACS_WHY = {
    "rigid bodies": "sizes and dependencies of launches are assumed, and only full SMs slow tiles down",
    "gated networks": "the paper runs InstaNAS, dynamic routing and conditional convolutions; durations of launches "
    "are assumed",
    "static networks": "the paper runs NASNet, AmoebaNet, SqueezeNet and a random-wired network; cells, sizes and "
    "durations of launches are assumed",
}


def acs(environments: Sequence[str] = tuple(tasks.BODIES), seeds: int = 3) -> list[Comparison]:
    """Durvasula et al., arXiv:2401.12377: kernels out of order from a window of 32."""
    static = (tasks.searched, tasks.squeezed, tasks.random_wired)
    with tempfile.TemporaryDirectory() as folder:
        graphs = {
            "rigid bodies": {
                name: _graph(tasks.rigid_bodies, folder, environment=name, device="L4") for name in environments
            },
            "gated networks": {f"seed {s}": _graph(tasks.gated, folder, seed=s, device="L4") for s in range(seeds)},
            "static networks": {
                f"{make.__name__} {s}": _graph(make, folder, seed=s, device="L4")
                for make in static
                for s in range(seeds)
            },
        }
        simulators = {kind: _under_lives(of_kind) for kind, of_kind in graphs.items()}
        return [
            Comparison(name, kind, mean, best, _gains(simulators[kind], f"gap_ns={LAUNCH_NS}", name), _ACS_WHY[kind])
            for kind, published in _ACS.items()
            for name, mean, best in published
        ]


def _gains(simulators: Mapping[str, Mapping[str, Simulator]], launch: str, name: str) -> dict[str, dict[str, float]]:
    """Over stream order with the same cost of a launch."""
    return {
        label: {of: gain(s, f"stream:{launch}", f"{name}:{launch}") for of, s in by_name.items()}
        for label, by_name in simulators.items()
    }


def _graph(make: Callable[..., Path], folder: str, **options: object) -> TileGraph:
    name = "-".join([make.__name__, *map(str, options.values())])
    return build_graph(load(make(Path(folder) / f"{name}.tileprof", **options)))


def _under_lives(graphs: Mapping[str, TileGraph]) -> dict[str, dict[str, Simulator]]:
    machine = Machine(get("L4"), AMPERE_SMS)  # 1,536 threads per SM, as the RTX 3070
    return {
        label: {of: Simulator(graph, machine, life_model(model)) for of, graph in graphs.items()}
        for label, model in LIVES.items()
    }


def gain(simulator: Simulator, baseline: str, name: str) -> float:
    """How many times as fast one scheduler is as another."""
    return simulator.run(scheduler(baseline)).time_ns / simulator.run(scheduler(name)).time_ns


PASCAL_SMS, PASCAL_LAUNCH_NS = 28, 5000.0
"""The Titan X that BlockMaestro was simulated on, and its launch."""


def blockmaestro(names: Sequence[str] = tuple(applications.APPLICATIONS)) -> list[Comparison]:
    """Abdolrashidi et al., ISCA 2021: the next kernel launched ahead and its blocks held back until their parents have
    ended.
    """
    rows = (("a kernel ahead", 1.5176, 2.92, ""), ("two ahead, consumer first", 1.8028, None, ",window=3,priority=1"))
    machine, launch = Machine(get("V100"), PASCAL_SMS), f"gap_ns={PASCAL_LAUNCH_NS}"
    baseline = f"stream:{launch}"
    with tempfile.TemporaryDirectory() as folder:
        graphs = {name: _graph(applications.application, folder, name=name, device="V100") for name in names}
        simulators = {name: Simulator(graph, machine) for name, graph in graphs.items()}
        return [
            Comparison(
                "blockmaestro",
                f"12 applications, {label}",
                mean,
                best,
                {"": {n: gain(s, baseline, f"blockmaestro:{launch}{options}") for n, s in simulators.items()}},
                "durations of blocks are assumed; where launches are short, a launch ahead hides all that the next "
                "one does not need",
            )
            for label, mean, best, options in rows
        ]


TILE_NS = (5_000.0, 10_000.0, 20_000.0)


def wireframe(side: int = 64) -> list[Comparison]:
    """Abdolrashidi et al., MICRO 2017: a task graph in hardware; a wavefront of 4,096 tasks (as BlockMaestro's authors
    ran it again).
    """
    ours = {}
    with tempfile.TemporaryDirectory() as folder:
        for ns in TILE_NS:
            graph = _graph(tasks.wavefront, folder, side=side, tile_ns=ns, spread=0.2, device="V100")
            simulator = Simulator(graph, Machine(get("V100"), PASCAL_SMS))
            value = gain(simulator, f"stream:gap_ns={PASCAL_LAUNCH_NS}", "wireframe")
            ours[f"tiles of {ns / 1e3:g} us"] = {"wavefront": value}
    why = (
        "the shorter a tile, the larger the share of launches in stream order; the paper has six programs, and its "
        "baseline launches from the GPU"
    )
    return [Comparison("wireframe", "wavefronts", 1.4507, 1.6520, ours, why)]


ITEMS = {
    "100 cycles per item": (0.5, Spawning()),
    "200 cycles per item": (1.0, Spawning()),
    "400 cycles per item": (2.0, Spawning()),
    "200 cycles, launches all until a child has ended": (1.0, Spawning(prior=0)),
}
"""How much longer an item takes, and what the rule does without history, which the paper does not say.
"""


def spawn(scale: int = 16) -> list[Comparison]:
    """Tang et al., HPCA 2017: SPAWN's rule over flat, over dynamic parallelism as written, and against the best static
    threshold (of which the paper says that it comes near). ``scale``: 2 to that many vertices of the Kronecker graph,
    four times as many otherwise.
    """
    works = [make(scale if make in (nested.bfs, nested.sssp) else scale + 2, 0) for make in nested.BENCHMARKS]
    rows = {label: {w.name: compare(_slower(w, by), options) for w in works} for label, (by, options) in ITEMS.items()}

    def over(place: int) -> dict[str, dict[str, float]]:
        return {stated: {n: _over(rules, place) for n, rules in by_name.items()} for stated, by_name in rows.items()}

    why = "8 of the paper's 13 programs, on generated inputs; durations of items are assumed"
    return [
        Comparison("spawn", "over flat", 1.69, None, over(0), why),
        Comparison("spawn", "over dynamic parallelism as written", 1.57, None, over(2), why),
        Comparison("spawn", "over the best static threshold", 1.0, None, over(3), why),
    ]


def _slower(work: Spawns, by: float) -> Spawns:
    return work._replace(item_ns=work.item_ns * by)


def _over(rules: Sequence[Spawned], place: int) -> float:
    return rules[place].time_ns / next(r.time_ns for r in rules if r.policy == "spawn")
