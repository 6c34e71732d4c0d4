"""A graph of ATen operations run with kernels of this package in the place of some of its regions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from tileprof.runtime.compile.racing.ahead import Ahead
from tileprof.runtime.compile.racing.runners import Lane, Lanes
from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.partition import partitioned
from tileprof.runtime.compile.regions.region import Region
from tileprof.runtime.compile.regions.region_op import running
from tileprof.runtime.compile.tracing import traced
from tileprof.runtime.programs.timeline import observer

_NOW: Final = threading.local()


class Traced:
    """A graph of Dynamo as ATen operations, and what AOTAutograd puts around it. Calls run whatever `inside` says on
    this thread.
    """

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> None:
        self.module: fx.GraphModule | None = None
        self.outside = traced(module, inputs, self._keep)
        if self.module is None:
            raise RuntimeError("AOTAutograd handed over no inference graph")

    def _keep(self, module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        self.module = module

        def run(args: list[Any]) -> Any:
            return _NOW.inside(args)

        run._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001 - how AOTAutograd is told
        return run

    @property
    def placeholders(self) -> list[fx.Node]:
        assert self.module is not None
        return [n for n in self.module.graph.nodes if n.op == "placeholder"]

    def run(self, inside: Callable[[list[Any]], Any], args: Sequence[Any]) -> Any:
        """Return what the graph returns if ``inside`` computes it from the values of its placeholders."""
        with _inside(inside):
            return self.outside(*args)

    def changed(self, args: Sequence[Any]) -> list[Any]:
        """Return the tensors that a call changes in place. Nothing is computed."""
        at = {node: number for number, node in enumerate(self.placeholders)}
        assert self.module is not None
        numbers = [at[into] for _, into, _ in aten.copies_into(self.module.graph)]
        try:
            self.run(_hand_over, args)
        except _HandedOverError as handed:
            return [handed.args[0][number] for number in numbers]
        raise AssertionError("the graph ran without its inside")


class _HandedOverError(Exception):
    """Carries the values of the placeholders out of AOTAutograd's wrapper."""


def _hand_over(args: list[Any]) -> Any:
    raise _HandedOverError(list(args))


@contextmanager
def _inside(inside: Callable[[list[Any]], Any]) -> Iterator[None]:
    before = getattr(_NOW, "inside", None)
    _NOW.inside = inside
    try:
        yield
    finally:
        _NOW.inside = before


@dataclass(frozen=True, slots=True)
class _Folded:
    """Positions, among the values of the placeholders, of the weights that a region keeps copies of."""

    key: str
    at: tuple[int, ...]


def names_of(regions: Sequence[Region]) -> str:
    """Return regions in words, equal ones counted."""
    regions_by_name = Counter(region.name for region in regions)
    return ", ".join(name if count == 1 else f"{count} times {name}" for name, count in regions_by_name.items())


class Way:
    """The graph with some regions by runners and the rest by ``compiler``."""

    def __init__(
        self,
        graph: Traced,
        regions: Sequence[Region],
        device: torch.device,
        compiler: Callable[[fx.GraphModule, list[Any]], Callable[..., Any]],
        ahead: Ahead | None = None,
    ) -> None:
        assert graph.module is not None
        self.regions = tuple(regions)
        self._graph, self._device = graph, device
        module, by_key = partitioned(graph.module, regions)
        self._compiled = compiler(module, [n.meta.get("val") for n in graph.placeholders])
        self.lanes, self._by_key = Lanes(by_key, device, ahead), by_key
        at = {node: number for number, node in enumerate(graph.placeholders)}
        self._folded = [
            _Folded(key, tuple(at[region.inputs[n]] for n in region.folded)) for key, region in by_key.items()
        ]

    @property
    def name(self) -> str:
        """The regions in words, equal ones counted."""
        return names_of(self.regions)

    def __call__(self, *args: Any) -> Any:
        """Return what the graph returns. Raises `NotNowError` and `RegionError`."""
        return self._graph.run(self._run, args)

    def in_lane(self, lane: Lane, args: Sequence[Any]) -> Any:
        """Return what the graph returns, by the runners of a lane, whatever the stream."""
        return self._graph.run(lambda values: self._run_in(lane, values), args)

    def _run(self, values: list[Any]) -> Any:
        with self.lanes.use() as lane:
            return self._run_in(lane, values)

    def _run_in(self, lane: Lane, values: list[Any]) -> Any:
        self._follow(lane, values)
        watch = observer()

        def call(key: str, read: list[Any], updated: list[Any]) -> Sequence[Any]:
            if watch is not None:
                watch(self._by_key[key], self._device, lane.inputs(key, read, updated))
            return lane.call(key, read, updated)

        with running(call):
            return self._compiled(*values)

    def _follow(self, lane: Lane, values: Sequence[Any]) -> None:
        for folded in self._folded:
            lane.follow(folded.key, self._device, [values[n] for n in folded.at])
