"""Decides whether a policy without a wait kernel can hang on a device: an adversary dispatches blocks, and the dispatch
that it chooses is run.

This is independent of the verifier. It computes resources from the launches, tries all sets of stages that could be
kept out, and distributes blocks over the SMs by search.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, combinations, product

import numpy as np

from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import Waits, lower

Vector = tuple[int, ...]
Tile = tuple[int, int]


def hangs(policy: Policy, graph: TileGraph) -> bool:
    """Return whether the device of ``graph`` may dispatch the blocks of all stages so that blocks wait forever.

    Stage n is launch n. Raises AssertionError if the search claims a hang and a run of its dispatch does not hang.
    """
    edge_waits = lower(policy)
    needs, capacity = _needs(graph), _capacity(graph)
    producers = sorted({waits.edge.producer for waits in edge_waits})
    for absent in chain.from_iterable(combinations(producers, n) for n in range(1, len(producers) + 1)):
        waiting = _waiting(policy, edge_waits, set(absent))
        count = tuple(len(tiles) for tiles in waiting)
        plan = _fillings(needs, capacity, count, absent, int(graph.device.sms))
        if plan is not None:
            supply = [iter(tiles) for tiles in waiting]
            first = [[(stage, next(supply[stage])) for stage in sm] for sm in plan]
            is_finished = _run(policy, edge_waits, needs, capacity, first)
            assert not is_finished, f"the dispatch {first} was to hang, and ends"
            return True
    return False


def _capacity(graph: TileGraph) -> Vector:
    gpu = graph.device
    return gpu.blocks_per_sm, gpu.threads_per_sm, gpu.registers_per_sm, gpu.shared_bytes_per_sm


def _needs(graph: TileGraph) -> list[Vector]:
    """Return block slots, threads, registers and bytes of shared memory per block of each launch.

    Threads must be a multiple of 128.
    """
    gpu = graph.device
    matches = []
    columns = (graph.launches[name].tolist() for name in ("block_x", "registers", "shared_bytes"))
    for threads, registers, shared in zip(*columns, strict=True):
        assert threads % (4 * gpu.warp_size) == 0
        unit, piece = gpu.register_allocation_unit, gpu.shared_allocation_bytes
        per_warp = -(-registers * gpu.warp_size // unit) * unit
        bytes_ = -(-(shared + gpu.shared_bytes_reserved) // piece) * piece
        matches.append((1, int(threads), int(per_warp * threads // gpu.warp_size), int(bytes_)))
    return matches


def _waiting(policy: Policy, edge_waits: list[Waits], absent: set[int]) -> list[list[int]]:
    """Return, by stage, the tiles that wait forever if no tile of the ``absent`` stages runs and all others have
    room.
    """
    is_done = [np.zeros(stage.tiles, bool) for stage in policy.stages]
    waiting: list[list[int]] = []
    for number, stage in enumerate(policy.stages):
        may = np.ones(stage.tiles, bool)
        for waits in (w for w in edge_waits if w.edge.consumer == number):
            post_counts = np.bincount(waits.of[is_done[waits.edge.producer]], minlength=len(waits.posts))
            for tile in range(stage.tiles):
                rows = slice(waits.indptr[tile], waits.indptr[tile + 1])
                may[tile] &= bool((post_counts[waits.semaphore[rows]] >= waits.value[rows]).all())
        waiting.append(np.flatnonzero(~may).tolist())
        if number not in absent:
            is_done[number] = may
    return waiting


def _fillings(
    needs: list[Vector], capacity: Vector, count: tuple[int, ...], absent: tuple[int, ...], sms: int
) -> list[list[int]] | None:
    """Return the stages of the blocks on each SM that leave no room for a block of any absent stage, or None if there
    are too few blocks.
    """
    mixtures = list(_mixtures(needs, capacity, count, absent))

    @cache
    def fill(left: tuple[int, ...], first: int, empty: int) -> tuple[int, ...] | None:
        if empty == 0:
            return ()
        for number in range(first, len(mixtures)):
            rest = tuple(a - b for a, b in zip(left, mixtures[number], strict=True))
            if min(rest) >= 0:
                more = fill(rest, number, empty - 1)
                if more is not None:
                    return number, *more
        return None

    filling = fill(count, 0, sms) if sum(count) >= sms else None
    if filling is None:
        return None
    return [[stage for stage, blocks in enumerate(mixtures[n]) for _ in range(blocks)] for n in filling]


def _mixtures(
    needs: list[Vector], capacity: Vector, count: tuple[int, ...], absent: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of blocks by stage that fit on an SM together and leave no room; with one block fewer there
    would be room.
    """

    def fits(blocks: tuple[int, ...], *more: int) -> bool:
        together = [sum(n * need[r] for n, need in zip(blocks, needs, strict=True)) for r in range(len(capacity))]
        return all(
            t + sum(needs[m][r] for m in more) <= c for r, (t, c) in enumerate(zip(together, capacity, strict=True))
        )

    def shut(blocks: tuple[int, ...]) -> bool:
        return not any(fits(blocks, stage) for stage in absent)

    most = [
        min(n, *(c // v for c, v in zip(capacity, need, strict=True) if v))
        for n, need in zip(count, needs, strict=True)
    ]
    for blocks in product(*(range(m + 1) for m in most)):
        if fits(blocks) and shut(blocks):
            fewer = (tuple(n - (k == s) for k, n in enumerate(blocks)) for s in range(len(blocks)) if blocks[s])
            if not any(shut(one) for one in fewer):
                yield blocks


def _run(
    policy: Policy, edge_waits: list[Waits], needs: list[Vector], capacity: Vector, first: list[list[Tile]]
) -> bool:
    """Return whether all tiles end if the ``first`` ones are dispatched onto their SMs, and then any that finds
    room.
    """
    room = [np.array(capacity) - sum((np.array(needs[s]) for s, _ in tiles), np.zeros(4, int)) for tiles in first]
    assert all((free >= 0).all() for free in room)
    resident = {tile: sm for sm, tiles in enumerate(first) for tile in tiles}
    waiting_tiles = [
        (s, t) for s, stage in enumerate(policy.stages) for t in range(stage.tiles) if (s, t) not in resident
    ]
    post_counts = [np.zeros(len(waits.posts), int) for waits in edge_waits]
    any_progress = True
    while any_progress:
        any_progress = False
        for stage, tile in list(resident):
            ready = all(
                post_counts[n][waits.semaphore[k]] >= waits.value[k]
                for n, waits in enumerate(edge_waits)
                if waits.edge.consumer == stage
                for k in range(waits.indptr[tile], waits.indptr[tile + 1])
            )
            if ready:
                room[resident.pop((stage, tile))] += needs[stage]
                for n, waits in enumerate(edge_waits):
                    if waits.edge.producer == stage:
                        post_counts[n][waits.of[tile]] += 1
                any_progress = True
        for one in list(waiting_tiles):
            place = next((sm for sm, free in enumerate(room) if (free >= needs[one[0]]).all()), None)
            if place is not None:
                room[place] -= needs[one[0]]
                resident[one] = place
                waiting_tiles.remove(one)
                any_progress = True
    return not resident and not waiting_tiles
