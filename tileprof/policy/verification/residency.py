"""Checks that blocks that wait cannot keep the blocks that they wait for off the device.

With a wait kernel a stage is dispatched after its producers, and no block waits for one that is dispatched later.
Without one, a device may dispatch blocks of the consumers first, of several consumers at once and in the worst
distribution over the SMs; a block that waits keeps its resources. The program hangs where the blocks of some stages,
the first unfinished one among them, find no room on any SM, because blocks occupy it that wait for those stages,
directly or through others. Which stages these can be is found from the other side: a stage that finds room whatever
waits for it and for the others is none of them, and what waits for it alone does not wait forever. Every
set of the stages that are left is tried, since one distribution of blocks must leave no room for any stage of the set.

Resources are those of the trace's launches on the trace's device; what a policy says of occupancies is not consulted.
Each block is taken to need at least what was recorded, and at least 1/e of an SM where the recorder saw that only e of
them reside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.machine import Machine, rounded
from tileprof.arrays import I64
from tileprof.arrays.ragged import owners
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import Waits, lower

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

F64 = NDArray[np.float64]

_NEEDED_COLUMNS: Final = (
    *(f"{what}_{axis}" for what in ("block", "cluster", "grid") for axis in "xyz"),
    "registers",
    "shared_bytes",
    "blocks_per_sm",
)
_SUB_PARTITIONS: Final = 4
"""Sub-partitions of an SM; a block is taken to use all of them evenly, as blocks of a multiple of 4 warps do."""
_MOST_MIXTURES: Final = 20_000
"""Mixtures of blocks on one SM that are enumerated; beyond, a coarser bound is used."""
_MOST_KINDS: Final = 3
_MOST_CONSTRAINTS: Final = 60
_MOST_OTHERS: Final = 8
"""Stages that are kept out beside the first one and of which every set is tried; beyond, all are taken to be kept out
together.
"""
_MOST_STEPS: Final = 20_000
"""Most steps of the search for a distribution of blocks over SMs; beyond, one is taken to exist."""
_NEGLIGIBLE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Demands:
    """Resources of the stages' blocks on one SM.

    ``block_resources``: int64 ``[stages, resources]``, at least what a block takes. ``capacity``: ``[resources]`` of an
    SM. ``cluster`` and ``blocks``: ``[stages]`` cluster size and blocks of the launch. ``exact``: ``[stages]`` whether
    ``block_resources`` is not an overestimate.
    """

    block_resources: I64
    capacity: I64
    cluster: I64
    blocks: I64
    exact: NDArray[np.bool_]


def blocked_producers(
    policy: Policy, graph: TileGraph, launches: Sequence[int], lowered: Sequence[Waits] | None = None
) -> tuple[str, ...]:
    """Return a sentence per producer whose blocks the waiting ones could keep off the trace's device, without a wait
    kernel.

    ``lowered``: the waits of the policy where the caller has them already.
    """
    edges = lower(policy) if lowered is None else lowered
    demands = _demands(graph, launches)
    sms = int(graph.device.sms)
    producers = sorted({waits.edge.producer for waits in edges})
    waiting_tiles = _waiting_tiles(policy, edges, set(producers))
    sentences = []
    for first in producers:
        if not _find_no_room(demands, (first,), waiting_tiles, sms):
            continue
        kept_out = _kept_out_one_by_one(policy, edges, demands, {n for n in producers if n >= first}, sms)
        waiting = _blocks_together(policy, edges, demands, first, kept_out, sms) if first in kept_out else None
        if waiting is not None:
            stages = (int(stage) for stage in np.flatnonzero(waiting))
            names = ", ".join(f"launch {launches[n]} ({policy.stages[n].name})" for n in stages)
            cluster = int(demands.cluster[first])
            what = f"a cluster of {cluster} blocks" if cluster > 1 else "a block"
            sentences.append(
                f"without a wait kernel {int(_blocks(demands, waiting).sum())} blocks of {names} can start first, "
                f"leave no room on {sms} SMs for {what} of launch "
                f"{launches[first]} ({policy.stages[first].name}), and wait forever"
            )
    return tuple(sentences)


def _kept_out_one_by_one(
    policy: Policy, edges: Sequence[Waits], demands: Demands, producers: set[int], sms: int
) -> set[int]:
    """Return the largest set of stages each of which, taken alone, finds no room beside what waits for the set."""
    kept_out = set(producers)
    while kept_out:
        waiting = _waiting_tiles(policy, edges, kept_out)
        equal: dict[tuple[bytes, int], set[int]] = {}  # the answer depends on a stage's resources alone
        for n in kept_out:
            equal.setdefault((demands.block_resources[n].tobytes(), int(demands.cluster[n])), set()).add(n)
        rooms = (same for same in equal.values() if not _find_no_room(demands, (min(same),), waiting, sms))
        finding_room = set().union(*rooms)
        if not finding_room:
            break
        kept_out -= finding_room
    return kept_out


def _blocks_together(
    policy: Policy, edges: Sequence[Waits], demands: Demands, first: int, kept_out: set[int], sms: int
) -> I64 | None:
    """Return tiles by stage that can wait while the stages of some set, ``first`` and others of ``kept_out``, find no
    room together; None where no set has such tiles: each distribution of the blocks then leaves room for one of its
    stages.
    """
    others = sorted(kept_out - {first})
    if len(others) > _MOST_OTHERS:
        return _waiting_tiles(policy, edges, kept_out)
    for size in range(len(others) + 1):
        for some in combinations(others, size):
            waiting = _waiting_tiles(policy, edges, {first, *some})
            if _find_no_room(demands, (first, *some), waiting, sms):
                return waiting
    return None


def _blocks(demands: Demands, waiting: I64) -> I64:
    return np.asarray(np.minimum(waiting * demands.cluster, demands.blocks), dtype=np.int64)


def _find_no_room(demands: Demands, producers: tuple[int, ...], waiting: I64, sms: int) -> bool:
    """Return whether waiting tiles (``[stages]``) can keep all blocks of all these stages off the device at once. May
    say yes in vain.
    """
    stages = np.flatnonzero(waiting)
    if not len(stages):
        return False
    # A cluster starts only where all of its blocks find SMs of one group, at worst as many groups as clusters fit side
    # by side: which SMs those are differs by stage, so that clusters are compared with each stage alone.
    clusters = demands.cluster[list(producers)]
    groups = [(n,) for n in producers] if int(clusters.max()) > 1 else [producers]
    blocks = _blocks(demands, waiting)[stages]
    return all(_can_occupy(demands, n, stages, blocks, -(-sms // int(demands.cluster[n[0]]))) for n in groups)


def _demands(graph: TileGraph, launches: Sequence[int]) -> Demands:
    column = {str(name): graph.launches[name].to_numpy()[list(launches)] for name in _NEEDED_COLUMNS}
    device = graph.device
    capacity = Machine(device).capacity
    threads, cluster, grid = (_product(column, what) for what in ("block", "cluster", "grid"))
    warps = rounded(threads, device.warp_size) // device.warp_size
    spread = rounded(warps, _SUB_PARTITIONS)
    registers = np.maximum(column["registers"].astype(np.int64), 0)
    per_warp = rounded(registers * device.warp_size, device.register_allocation_unit)
    shared = column["shared_bytes"].astype(np.int64) + device.shared_bytes_reserved
    resources = np.stack(
        [
            np.ones_like(threads),
            spread * device.warp_size,
            spread * per_warp,
            rounded(shared, device.shared_allocation_bytes),
        ],
        axis=1,
    )
    resident = np.maximum(column["blocks_per_sm"].astype(np.int64), 1)
    fitting = (capacity // np.maximum(resources, 1)).min(axis=1)
    share = -(-capacity // resident[:, None])
    # Fewer reside than the recorded numbers allow: something unrecorded is scarce, and may be any of the resources.
    unexplained = (resident < fitting) | (registers == 0)
    resources = np.where(unexplained[:, None], np.maximum(resources, share), resources)
    exact = ~unexplained & (resident == fitting) & (warps % _SUB_PARTITIONS == 0)
    return Demands(np.minimum(resources, capacity).astype(np.int64), capacity, cluster, grid, exact)


def _product(column: Mapping[str, NDArray[Any]], what: str) -> I64:
    """Return ``[stages]`` number of blocks of a grid or cluster, threads of a block; at least one."""
    x, y, z = (np.maximum(column[f"{what}_{axis}"].astype(np.int64), 1) for axis in "xyz")
    return np.asarray(x * y * z, dtype=np.int64)


def _waiting_tiles(policy: Policy, edges: Sequence[Waits], absent: set[int]) -> I64:
    """Return ``[stages]``: how many tiles wait forever where no tile of the ``absent`` stages runs and all others find
    room.
    """
    completed = [np.ones(stage.tiles, bool) for stage in policy.stages]
    for waits in sorted(edges, key=lambda waits: waits.edge.consumer):
        can_post = completed[waits.edge.producer] & (waits.edge.producer not in absent)
        post_counts = np.bincount(waits.of[can_post], minlength=len(waits.posts))
        completed[waits.edge.consumer][owners(waits.indptr)[post_counts[waits.semaphore] < waits.value]] = False
    return np.array([np.count_nonzero(~tiles) for tiles in completed], np.int64)


def _can_occupy(demands: Demands, producers: tuple[int, ...], stages: I64, blocks: I64, enough: int) -> bool:
    """Return whether the given numbers of blocks of the stages can leave no room for a block of any of the producers on
    each of ``enough`` SMs. May return True wrongly.
    """
    # Per producer and resource: what must be taken of it for the producer to find no room.
    occupied = demands.capacity - demands.block_resources[list(producers)] + 1
    kinds, kind = np.unique(demands.block_resources[stages], axis=0, return_inverse=True)
    count = np.bincount(kind.ravel(), blocks, len(kinds)).astype(np.int64)
    exact = np.array([demands.exact[stages[kind.ravel() == k]].all() for k in range(len(kinds))])
    most = min(float(count @ (kinds / each).max(axis=1)) for each in occupied)
    if int(count.sum()) < enough or most < enough - _NEGLIGIBLE:
        return False
    mixtures = _mixtures(kinds, demands.capacity, occupied, count) if exact.all() else None
    if mixtures is None:
        return True
    weights = _weights(mixtures, count)
    return float(weights @ count) >= enough - _NEGLIGIBLE and _distribution_exists(mixtures, count, weights, enough)


def _mixtures(kinds: I64, capacity: I64, occupied: I64, count: I64) -> I64 | None:
    """Return ``[mixtures, kinds]``: blocks of each kind that reside on one SM together and leave no room for any
    producer, none of them in vain. None where there are too many. ``occupied``: ``[producers, resources]``.
    """
    most = np.minimum((capacity // np.maximum(kinds, 1)).min(axis=1), count)
    if int(np.prod(most + 1, dtype=np.float64)) > _MOST_MIXTURES:
        return None
    shape = tuple((most + 1).tolist())
    grid = np.indices(shape).reshape(len(kinds), -1).T
    demand = grid @ kinds
    shut = np.logical_and.reduce([(demand >= each).any(axis=1) for each in occupied]).reshape(shape)
    # More blocks leave no more room, so that a mixture has one in vain if one block less leaves no room either.
    redundant = np.zeros(shape, bool)
    for axis in range(len(kinds)):
        more, less = ((*[slice(None)] * axis, part) for part in (slice(1, None), slice(None, -1)))
        redundant[more] |= shut[less]
    grid = grid[(demand <= capacity).all(axis=1) & (shut & ~redundant).ravel()]
    return np.asarray(grid[np.argsort(grid.sum(axis=1), kind="stable")], np.int64)


def _weights(mixtures: I64, count: I64) -> F64:
    """Return weights of the kinds by which every mixture weighs at least 1 and ``count`` blocks together as little as
    possible.

    They are the dual of the linear programme "on how many SMs can these blocks be so distributed", so that as many SMs
    as all blocks weigh are never exceeded. An optimum lies where as many constraints hold exactly as there are kinds.
    With many kinds every block weighs 1: every mixture has a block.
    """
    kinds = mixtures.shape[1]
    if len(mixtures) == 0:
        return np.zeros(kinds)
    constraints = np.concatenate([mixtures.astype(float), np.eye(kinds)])
    sides = np.concatenate([np.ones(len(mixtures)), np.zeros(kinds)])
    if kinds > _MOST_KINDS or len(constraints) > _MOST_CONSTRAINTS:
        return np.ones(kinds)
    combinations_of_sides = np.array(list(combinations(range(len(constraints)), kinds)))
    combinations_of_sides = combinations_of_sides[
        np.abs(np.linalg.det(constraints[combinations_of_sides])) > _NEGLIGIBLE
    ]
    weights = np.linalg.solve(constraints[combinations_of_sides], sides[combinations_of_sides][:, :, None])[:, :, 0]
    feasible_weights = weights[(weights @ constraints.T >= sides - _NEGLIGIBLE).all(axis=1)]
    best: F64 = feasible_weights[np.argmin(feasible_weights @ count)]
    return best


def _distribution_exists(mixtures: I64, count: I64, weights: F64, enough: int) -> bool:
    """Return whether ``count`` blocks make ``enough`` of the mixtures, in whole blocks; True where the search would
    take too long.
    """
    steps = 0

    def fill(remaining: I64, first: int, empty: int) -> bool:
        nonlocal steps
        steps += 1
        if empty == 0 or steps > _MOST_STEPS:
            return True
        if float(remaining @ weights) < empty - _NEGLIGIBLE or first == len(mixtures):
            return False
        mixture = mixtures[first]
        times = min(empty, int((remaining[mixture > 0] // mixture[mixture > 0]).min()))
        return any(fill(remaining - n * mixture, first + 1, empty - n) for n in range(times, -1, -1))

    return fill(count, 0, enough)
