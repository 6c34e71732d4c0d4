"""Whether blocks that wait can keep the blocks that they wait for off the device.

With a wait kernel a stage is dispatched after its producers, and no block waits for one that is dispatched later. Without one, a device
may dispatch blocks of the consumers first, of several consumers at once and in the worst distribution over the SMs; a block that waits
keeps its resources. The program hangs where the blocks of some stages, the first unfinished one among them, find no room on any SM,
because blocks occupy it that wait for those stages, directly or through others. Which stages these can be is found from the other side:
a stage that finds room whatever waits for it and for the others is none of them, and what waits for it alone does not wait for ever.

Resources are those of the trace's launches on the trace's device; what a policy says of occupancies is not consulted. Each block is taken to
need at least what was recorded, and at least 1/e of an SM where the recorder saw that only e of them reside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.machine import Machine, product, rounded
from tileprof.arrays import I64
from tileprof.arrays.ragged import owners
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import Waits, lower

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

F64 = NDArray[np.float64]

_SUB_PARTITIONS: Final = 4
"""Of an SM; a block is taken to use all of them evenly, as blocks of a multiple of 4 warps do."""
_MOST_MIXTURES: Final = 20_000
"""Mixtures of blocks on one SM that are enumerated; beyond, a coarser bound is used."""
_MOST_KINDS: Final = 3
_MOST_CONSTRAINTS: Final = 60
_MOST_STEPS: Final = 20_000
"""Of the search for a distribution of blocks over SMs; beyond, there is taken to be one."""
_NEGLIGIBLE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Demands:
    """Resources of the stages' blocks on one SM: ``held`` int64 ``[stages, resources]``, at least what a block takes, ``capacity``
    ``[resources]`` of an SM, and per stage the ``cluster`` size and ``blocks`` of the launch. ``exact``: ``held`` is no overestimate.
    """

    held: I64
    capacity: I64
    cluster: I64
    blocks: I64
    exact: NDArray[np.bool_]


def blocked_producers(
    policy: Policy, graph: TileGraph, launches: Sequence[int], lowered: Sequence[Waits] | None = None
) -> tuple[str, ...]:
    """A sentence per producer whose blocks the waiting ones could keep off the trace's device, without a wait kernel.

    ``lowered``: the waits of the policy where the caller has them already.
    """
    edges = lower(policy) if lowered is None else lowered
    demands = _demands(graph, launches)
    sms = int(graph.device.sms)
    producers = sorted({waits.edge.producer for waits in edges})
    everything = _waiting_tiles(policy, edges, set(producers))
    sentences = []
    for first in producers:
        waiting, kept_out = everything, {n for n in producers if n >= first}
        if not _finds_no_room(demands, first, waiting, sms):
            continue
        while first in kept_out:
            waiting = _waiting_tiles(policy, edges, kept_out)
            finding_room = {n for n in kept_out if not _finds_no_room(demands, n, waiting, sms)}
            if not finding_room:
                stages = np.flatnonzero(waiting)
                names = ", ".join(policy.stages[stage].name for stage in stages)
                sentences.append(
                    f"without a wait kernel {int(_blocks(demands, waiting).sum())} blocks of {names} can fill the device of {sms} SMs "
                    f"before {policy.stages[first].name} starts, and wait for ever"
                )
                break
            kept_out -= finding_room
    return tuple(sentences)


def _blocks(demands: Demands, waiting: I64) -> I64:
    return np.asarray(np.minimum(waiting * demands.cluster, demands.blocks), dtype=np.int64)


def _finds_no_room(demands: Demands, producer: int, waiting: I64, sms: int) -> bool:
    """Whether waiting tiles (``[stages]``) can keep all blocks of a stage off the device. May say yes in vain."""
    stages = np.flatnonzero(waiting)
    # A cluster starts only where all of its blocks find SMs of one group, at worst as many groups as clusters fit side by side.
    enough = -(-sms // int(demands.cluster[producer]))
    return bool(len(stages)) and _can_occupy(demands, producer, stages, _blocks(demands, waiting)[stages], enough)


def _demands(graph: TileGraph, launches: Sequence[int]) -> Demands:
    frame = graph.launches.iloc[list(launches)]
    device = graph.device
    capacity = Machine(device).capacity
    threads = product(frame, "block")
    warps = rounded(threads, device.warp_size) // device.warp_size
    spread = rounded(warps, _SUB_PARTITIONS)
    registers = np.maximum(frame["registers"].to_numpy(np.int64), 0)
    per_warp = rounded(registers * device.warp_size, device.register_allocation_unit)
    shared = frame["shared_bytes"].to_numpy(np.int64) + device.shared_bytes_reserved
    held = np.stack(
        [
            np.ones_like(threads),
            spread * device.warp_size,
            spread * per_warp,
            rounded(shared, device.shared_allocation_bytes),
        ],
        axis=1,
    )
    resident = np.maximum(frame["blocks_per_sm"].to_numpy(np.int64), 1)
    fitting = (capacity // np.maximum(held, 1)).min(axis=1)
    share = -(-capacity // resident[:, None])
    # Fewer reside than the recorded numbers allow: something unrecorded is scarce, and may be any of the resources.
    unexplained = (resident < fitting) | (registers == 0)
    held = np.where(unexplained[:, None], np.maximum(held, share), held)
    exact = ~unexplained & (resident == fitting) & (warps % _SUB_PARTITIONS == 0)
    return Demands(
        np.minimum(held, capacity).astype(np.int64), capacity, product(frame, "cluster"), product(frame, "grid"), exact
    )


def _waiting_tiles(policy: Policy, edges: Sequence[Waits], absent: set[int]) -> I64:
    """``[stages]``: how many tiles wait for ever where no tile of the ``absent`` stages runs and all others find room."""
    done = [np.ones(stage.tiles, bool) for stage in policy.stages]
    count = np.zeros(len(policy.stages), np.int64)
    for stage in range(len(policy.stages)):
        for waits in edges:
            if waits.edge.consumer == stage:
                ended = done[waits.edge.producer] & (waits.edge.producer not in absent)
                posted = np.bincount(waits.of[ended], minlength=len(waits.posts))
                done[stage][owners(waits.indptr)[posted[waits.semaphore] < waits.value]] = False
        count[stage] = int((~done[stage]).sum())
    return count


def _can_occupy(demands: Demands, producer: int, stages: I64, blocks: I64, enough: int) -> bool:
    """Whether so many blocks of the stages can leave no room for a block of the producer on ``enough`` SMs. May say yes in vain."""
    occupied = demands.capacity - demands.held[producer] + 1  # of a resource, from which on the producer finds no room
    kinds, kind = np.unique(demands.held[stages], axis=0, return_inverse=True)
    count = np.bincount(kind.ravel(), blocks, len(kinds)).astype(np.int64)
    exact = np.array([demands.exact[stages[kind.ravel() == k]].all() for k in range(len(kinds))])
    if int(count.sum()) < enough or float(count @ (kinds / occupied).max(axis=1)) < enough - _NEGLIGIBLE:
        return False
    mixtures = _mixtures(kinds, demands.capacity, occupied, count) if exact.all() else None
    if mixtures is None:
        return True
    weights = _weights(mixtures, count)
    return float(weights @ count) >= enough - _NEGLIGIBLE and _distribution_exists(mixtures, count, weights, enough)


def _mixtures(kinds: I64, capacity: I64, occupied: I64, count: I64) -> I64 | None:
    """``[mixtures, kinds]``: blocks of each kind that reside on one SM together and leave no room for the producer, none of them in
    vain. None where there are too many.
    """
    most = np.minimum((capacity // np.maximum(kinds, 1)).min(axis=1), count)
    if int(np.prod(most + 1, dtype=np.float64)) > _MOST_MIXTURES:
        return None
    grid = np.stack(np.meshgrid(*(np.arange(m + 1) for m in most), indexing="ij"), axis=-1).reshape(-1, len(kinds))
    held = grid @ kinds
    grid = grid[(held <= capacity).all(axis=1) & (held >= occupied).any(axis=1)]
    grid = grid[np.argsort(grid.sum(axis=1), kind="stable")]
    kept: list[I64] = []
    for mixture in grid:
        if not any((mixture >= other).all() for other in kept):
            kept.append(mixture)
    return np.array(kept, np.int64).reshape(len(kept), len(kinds))


def _weights(mixtures: I64, count: I64) -> F64:
    """Weights of the kinds by which every mixture weighs at least 1 and ``count`` blocks together as little as possible.

    They are the dual of the linear programme "on how many SMs can these blocks be so distributed", so that as many SMs as all blocks
    weigh are never exceeded. An optimum lies where as many constraints hold exactly as there are kinds. With many kinds every block
    weighs 1: every mixture has a block.
    """
    kinds = mixtures.shape[1]
    if len(mixtures) == 0:
        return np.zeros(kinds)
    constraints = np.concatenate([mixtures.astype(float), np.eye(kinds)])
    sides = np.concatenate([np.ones(len(mixtures)), np.zeros(kinds)])
    if kinds > _MOST_KINDS or len(constraints) > _MOST_CONSTRAINTS:
        return np.ones(kinds)
    chosen = np.array(list(combinations(range(len(constraints)), kinds)))
    chosen = chosen[np.abs(np.linalg.det(constraints[chosen])) > _NEGLIGIBLE]
    weights = np.linalg.solve(constraints[chosen], sides[chosen][:, :, None])[:, :, 0]
    allowed = weights[(weights @ constraints.T >= sides - _NEGLIGIBLE).all(axis=1)]
    best: F64 = allowed[np.argmin(allowed @ count)]
    return best


def _distribution_exists(mixtures: I64, count: I64, weights: F64, enough: int) -> bool:
    """Whether ``count`` blocks make ``enough`` of the mixtures, in whole blocks; True where the search would take too long."""
    steps = 0

    def fill(left: I64, first: int, empty: int) -> bool:
        nonlocal steps
        steps += 1
        if empty == 0 or steps > _MOST_STEPS:
            return True
        if float(left @ weights) < empty - _NEGLIGIBLE or first == len(mixtures):
            return False
        mixture = mixtures[first]
        times = min(empty, int((left[mixture > 0] // mixture[mixture > 0]).min()))
        return any(fill(left - n * mixture, first + 1, empty - n) for n in range(times, -1, -1))

    return fill(count, 0, enough)
