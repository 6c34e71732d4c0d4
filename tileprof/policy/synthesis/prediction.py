"""Predicts the gain of a policy: its waits in place of the recorded dependencies, dispatched in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tileprof.analysis.bounds.bounder import Bounder
from tileprof.analysis.bounds.list_schedule import alone
from tileprof.analysis.bounds.problem import problem
from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.analysis.dependencies.graph import HAZARDS, TileGraph
from tileprof.analysis.inorder import Costs, in_order
from tileprof.arrays import I64
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import lower
from tileprof.policy.format.tile_numbers import tile_numbers
from tileprof.policy.format.tile_orders import places
from tileprof.policy.verification.awaited_tiles import wait_block

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Prediction:
    """Modelled times in nanoseconds: the stages in stream order, and under the policy."""

    stream_ns: float
    policy_ns: float

    @property
    def gain(self) -> float:
        """Share of the stream time that the policy saves; negative where it loses."""
        return 1.0 - self.policy_ns / self.stream_ns if self.stream_ns > 0 else 0.0


class Predictor:
    """Predictions on one graph; durations and occupancies are worked out once."""

    def __init__(self, graph: TileGraph, costs: Costs | None = None) -> None:
        self.graph = graph
        self.costs = costs or Costs()
        self._bounder = Bounder(graph)
        self._alone_ns: dict[int, float] = {}

    def __call__(self, policy: Policy, launches: Sequence[int]) -> Prediction:
        """Predict the times of a policy for the grids of ``launches``, which are its stages in order."""
        numbers = [tile_numbers(self.graph, launch) for launch in launches]
        links: list[tuple[int, int]] = []
        blocks: list[EdgeBlock] = []
        for waits in lower(policy):
            producer, consumer = waits.edge.producer, waits.edge.consumer
            block = wait_block(waits, numbers[producer], numbers[consumer])
            if block is not None:
                links.append((launches[producer], launches[consumer]))
                blocks.append(block)
        p = problem(self._with(links, blocks), self._bounder.durations, list(launches), reuse=True)
        launch_numbers = np.asarray(launches)
        orders = [_order(stage.order, number) for stage, number in zip(policy.stages, numbers, strict=True)]
        ends = in_order(p, self._bounder.units[launch_numbers], self._bounder.capacity, self.costs, orders=orders)
        return Prediction(self.stream_ns(launches), float(ends.max(initial=0.0)))

    def exact_ns(
        self, launches: Sequence[int], *, renamed: bool, orders: Sequence[tuple[int, ...] | None] | None = None
    ) -> float:
        """Return the stages with a wait for every recorded dependency and for nothing else; ``renamed`` leaves recycled
        memory out.

        ``orders`` are those of the stages, as in a policy; None is ascending.
        """
        p = problem(self.graph, self._bounder.durations, list(launches), reuse=not renamed)
        launch_numbers = np.asarray(launches)
        per_launch = orders or [None] * len(launches)
        dispatch = [_order(o, tile_numbers(self.graph, n)) for o, n in zip(per_launch, launches, strict=True)]
        ends = in_order(p, self._bounder.units[launch_numbers], self._bounder.capacity, self.costs, orders=dispatch)
        return float(ends.max(initial=0.0))

    def stream_ns(self, launches: Sequence[int]) -> float:
        """Return one launch after the other, each alone on the device, with the gap that launches of a CUDA
        graph have.
        """
        alone_ns = sum(self._launch_alone_ns(launch) for launch in launches)
        return alone_ns + (len(launches) - 1) * float(self.graph.device.graph_gap_ns)

    def _launch_alone_ns(self, launch: int) -> float:
        if launch not in self._alone_ns:
            base = self.graph.tile_base
            durations = self._bounder.durations.of(launch, int(base[launch + 1] - base[launch]))
            self._alone_ns[launch] = float(alone(durations, int(self._bounder.slots[launch])).max(initial=0.0))
        return self._alone_ns[launch]

    def _with(self, links: list[tuple[int, int]], blocks: list[EdgeBlock]) -> TileGraph:
        """Return the graph with these dependencies alone, from producers to consumers: one per block."""
        producer, consumer = np.array(links, np.int64).reshape(-1, 2).T
        table = {
            "producer": producer,
            "consumer": consumer,
            "hazard": pd.Categorical(["RAW"] * len(links), categories=list(HAZARDS)),
            "reuse": np.zeros(len(links), bool),
            "block": np.arange(len(links)),
        }
        return replace(self.graph, links=pd.DataFrame(table), blocks=blocks)


def _order(order: tuple[int, ...] | None, numbers: I64) -> I64 | None:
    """Return trace tiles in the policy's order; its own is that of tile numbers."""
    if order is None:
        return np.argsort(numbers, kind="stable").astype(np.int64)
    return np.argsort(places(order)[numbers], kind="stable").astype(np.int64)
