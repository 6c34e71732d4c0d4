"""Programmatic dependent launch, pair by pair: when to trigger, what the consumer can do before it waits, what that is
worth.

A consumer that waits (``griddepcontrol.wait``) before its first access to what its producer touched may be triggered
from the producer's entry on: the wait ends when the whole producer has ended and its stores are visible. A consumer
that does not wait must not be triggered before the last store that it needs: `Trigger.last_store` of each tile's work,
for the last tile `Trigger.last_store_ns` after the producer has begun; and even then CUDA makes the stores visible
through the wait alone (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA,
``griddepcontrol``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.list_schedule import alone
from tileprof.analysis.simulate.scheduler import Program
from tileprof.analysis.simulate.schedulers import SCHEDULERS
from tileprof.analysis.simulate.schedulers.pdl import Pdl

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.blocks import EdgeBlock
    from tileprof.analysis.simulate.simulator import Simulator

MOST_KINDS = 200
"""Kinds of pairs that are simulated, those of the longest launches first."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Neighbours in a stream, ``times`` alike; times in ns.

    ``last_store``: share of a producer tile's work after which it writes nothing more that the consumer needs, the most
    over all tiles; None where no recorder saw it (then its end is the earliest safe point); ``last_store_ns``: when the
    last tile is there, from the producer's begin, its tiles in dispatch order; ``producer_ns``: when its last tile
    ends. ``prologue``: share of a consumer tile's work before it first needs anything that an earlier launch touches,
    the least over all tiles; None where unknown (then it must wait at entry); ``prologue_ns``: the same of a mean tile.
    ``saves_ns``: the pair under ``pdl``, triggered at entry, against a CUDA graph, over all ``times``. ``dependent``:
    whether the consumer needs the producer at all.
    """

    producer: int
    consumer: int
    times: int
    names: tuple[str, str]
    dependent: bool
    last_store: float | None
    last_store_ns: float
    producer_ns: float
    prologue: float | None
    prologue_ns: float
    saves_ns: float

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def triggers(simulator: Simulator) -> list[Trigger]:
    """Return one `Trigger` for each kind of neighbours in a stream, what saves most first; pairs of equal footprints,
    dependencies and prologue are of one kind.
    """
    graph, program = simulator.graph, simulator.program
    footprints = program.launches["footprint"].tolist()
    blocks = _blocks(simulator)
    kinds: dict[tuple[int, int, tuple[int, ...], float | None], list[tuple[int, int]]] = {}
    for consumer, producer in enumerate(program.stream_predecessor()):
        if producer >= 0:
            between = tuple(sorted(blocks.get((producer, consumer), ())))
            key = (
                footprints[producer],
                footprints[consumer],
                between,
                _prologue(program, graph.blocks, consumer, blocks),
            )
            kinds.setdefault(key, []).append((producer, consumer))
    took = program.launches["duration_ns"].to_numpy(np.float64)
    longest = sorted(kinds.items(), key=lambda kind: -float(took[list(kind[1][0])].sum()) * len(kind[1]))
    of_kinds = [_trigger(simulator, program, key[2], key[3], pairs) for key, pairs in longest[:MOST_KINDS]]
    return sorted(of_kinds, key=lambda trigger: -trigger.saves_ns)


def _blocks(simulator: Simulator) -> dict[tuple[int, int], set[int]]:
    """Return, by pair, the relations between its tiles, recycled memory aside."""
    links = simulator.graph.links
    blocks_of_pair: dict[tuple[int, int], set[int]] = {}
    columns = (links[name].tolist() for name in ("producer", "consumer", "block", "reuse"))
    for producer, consumer, block, reuse in zip(*columns, strict=True):
        if not reuse:
            blocks_of_pair.setdefault((producer, consumer), set()).add(block)
    return blocks_of_pair


def _prologue(
    program: Program, blocks: list[EdgeBlock], consumer: int, of_pair: dict[tuple[int, int], set[int]]
) -> float | None:
    """Return the prologue; None where some need has no recorded time."""
    numbers = {b for parent in program.parents[consumer] for b in of_pair.get((parent, consumer), ())}
    if any(np.isnan(blocks[b].first).any() for b in numbers):
        return None
    return Pdl().prologue_of(program, consumer)


def _trigger(
    simulator: Simulator,
    program: Program,
    numbers: tuple[int, ...],
    prologue: float | None,
    pairs: list[tuple[int, int]],
) -> Trigger:
    producer, consumer = pairs[0]
    graph = simulator.graph
    counts = np.diff(graph.tile_base)
    slots = int(simulator.machine.slots(program.launches)[producer])
    life = simulator.recorded.of(producer, int(counts[producer]))
    ends = alone(life, slots)
    last, at_ns = _last_store([graph.blocks[b] for b in numbers], life, ends)
    # Alone, the pair does not know what else the consumer needs.
    waits = Pdl(prologue=prologue or 0.0)
    graph_ns, pdl_ns = (simulator.run(s, launches=[producer, consumer]).time_ns for s in (SCHEDULERS["graph"], waits))
    mean_ns = float(simulator.recorded.of(consumer, int(counts[consumer])).mean()) if counts[consumer] else 0.0
    rows = (program.launches.iloc[i] for i in (producer, consumer))
    names = [f"{row['op'] or row['kernel']} {row['module']}".strip() for row in rows]
    return Trigger(
        producer, consumer, len(pairs), (names[0], names[1]), bool(numbers), last, at_ns,
        float(ends.max(initial=0.0)), prologue,
        (prologue or 0.0) * mean_ns, (graph_ns - pdl_ns) * len(pairs),
    )  # fmt: skip


def _last_store(
    blocks: list[EdgeBlock], life: NDArray[np.float64], ends: NDArray[np.float64]
) -> tuple[float | None, float]:
    """Return the latest share of a tile's work, and when the last tile is there."""
    share, at_ns, complete = 0.0, 0.0, True
    for block in blocks:
        last = np.nan_to_num(block.last, nan=1.0).astype(np.float64)
        complete = complete and not bool(np.isnan(block.last).any())
        share = max(share, float(last.max(initial=0.0)))
        at_ns = max(at_ns, float((ends[block.parent] - (1.0 - last) * life[block.parent]).max(initial=0.0)))
    return (share if complete else None), at_ns
