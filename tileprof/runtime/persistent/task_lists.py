"""Lowers a policy to the task lists of clusters."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tileprof.arrays import I64
from tileprof.arrays.ragged import owners
from tileprof.errors import UserError
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import Waits, lower
from tileprof.runtime.chain import Chain
from tileprof.runtime.persistent.cost import chain_us, task_us
from tileprof.runtime.persistent.plan import I32, K_BLOCK, SPLITS, Plan, StagePlan, arranged, arrangements, with_cuts
from tileprof.runtime.persistent.supported import attends, stage_plans
from tileprof.runtime.persistent.tile_choice import preferred
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.gemm import Gemm

Piece = tuple[int, int, int]
"""Stage, tile, and 1 for the early task of a tile whose k is cut."""


def plan_of(
    policy: Policy,
    chain: Chain,
    *,
    clusters: Callable[[int], int] | int,
    split: int | None = None,
    abreast: Sequence[bool] | None = None,
    cuts: bool = True,
) -> Plan:
    """Return the tasks of every cluster for a policy.

    ``clusters``: how many fit the device, given the blocks of each.

    ``split``: blocks of a cluster; None: what the model of `cost` likes best. ``abreast``: with a split, the stages in
    which they share no k; None: those whose tiles are too wide for one block. ``cuts``: k may be cut in two tasks. A
    cluster takes its tasks in stage order and a tile waits for earlier stages only, so that no order of stages or tiles
    can deadlock while all clusters are resident. Raises `UserError` where the kernel cannot run the chain.
    """
    stages = stage_plans(chain)
    fitting = clusters if callable(clusters) else (lambda _: clusters)
    blocks_per_cluster, arrangement = _best_split(stages, fitting) if split is None else (split, None)
    if blocks_per_cluster != 1 and attends(chain.operators):
        raise UserError("tiles of attention are not shared by several blocks; take clusters of one")
    if stages[0].pair and blocks_per_cluster != 2:
        raise UserError(
            f"tiles of {stages[0].operator.tile[0]} rows take clusters of two blocks, not {blocks_per_cluster}"
        )
    if (
        blocks_per_cluster not in SPLITS
        or blocks_per_cluster > min(stage.k_blocks for stage in stages)
        or fitting(blocks_per_cluster) < 1
    ):
        raise UserError(
            f"clusters of {blocks_per_cluster} blocks do not share a tile here: {', '.join(map(str, SPLITS))} are "
            f"possible, at most as many as a stage has blocks of {K_BLOCK} along k, and only what fits the device"
        )
    arrangement = arrangement or arranged(
        stages, abreast or [stage.abreast > 1 for stage in stages], blocks_per_cluster
    )
    if arrangement is None:
        widths = ", ".join(str(stage.operator.tile[1]) for stage in stages)
        raise UserError(f"the {blocks_per_cluster} blocks of a cluster cannot take tiles of {widths} columns abreast")
    stages = (
        with_cuts(arrangement, fitting(blocks_per_cluster))
        if cuts
        else tuple(replace(stage, cut=0) for stage in arrangement)
    )
    orders = [
        _order(plan) if stage.order is None else np.asarray(stage.order, np.int64)
        for stage, plan in zip(policy.stages, stages, strict=True)
    ]
    lowered = lower(policy)
    arrays = sorted({w.edge.semaphores for w in lowered})
    counts = [policy.semaphores[a].count for a in arrays]
    first = dict(zip(arrays, np.cumsum([0, *counts]).tolist(), strict=False))
    base = np.cumsum([0, *(stage.tiles for stage in policy.stages)])
    waits, posts = _waits(lowered, chain, stages, first, base, blocks_per_cluster), _posts(lowered, policy, first, base)
    links = _Links(*_csr(waits[:, [0, 3]], base[-1]), *_csr(posts, base[-1]), sum(counts))
    lists = _task_lists(stages, orders, blocks_per_cluster, fitting(blocks_per_cluster), links)
    return _assembled(stages, blocks_per_cluster, lists, base, waits, posts, sum(counts))


def _order(stage: StagePlan) -> I64:
    """Return tiles in order of their numbers; those of attention row by row, as what they read is computed; those of
    pairs by two rows of tiles at a time, column by column, so that
    memory gives the weights half as often.
    """
    gx, gy, _ = stage.operator.grid
    tile = np.arange(stage.operator.tiles, dtype=np.int64)
    if isinstance(stage.operator, Attention):
        return np.lexsort((tile // gy, tile % gy))
    if not stage.pair or stage.operator.rows_along != "y":
        return tile
    x, y = tile % gx, tile // gx % gy
    return np.lexsort((y, x, y // 2))


def without_waits(plan: Plan) -> Plan:
    """Return the plan with nothing to wait for, which is wrong: its time shows what the dependency costs."""
    return replace(plan, wait_ptr=np.zeros_like(plan.wait_ptr), waits=plan.waits[:0])


def plans_by_stage(plan: Plan, clusters: int) -> list[Plan]:
    """Return the same kernel and the same tiles, one launch per stage, without waits or posts.

    ``clusters``: how many fit the device.
    """
    begin = np.repeat(plan.task_ptr[:-1], np.diff(plan.task_ptr))
    turn = np.argsort(np.arange(len(plan.tasks)) - begin, kind="stable")  # near enough the order in which they begin
    no_rows = np.empty((0, 6), np.int64)
    base = np.cumsum([0, *(stage.operator.tiles for stage in plan.stages)])
    plans = []
    for number in range(len(plan.stages)):
        orders = [np.empty(0, np.int64)] * len(plan.stages)
        of_stage = (plan.tasks[turn, 0] == number) & (plan.early[turn] == 0)
        orders[number] = plan.tasks[turn][of_stage, 3].astype(np.int64)
        lists = _task_lists(plan.stages, orders, plan.split, clusters, None)
        plans.append(_assembled(plan.stages, plan.split, lists, base, no_rows, no_rows[:, :2], 0))
    return plans


def _best_split(stages: Sequence[StagePlan], clusters: Callable[[int], int]) -> tuple[int, tuple[StagePlan, ...]]:
    """Return the blocks of a cluster, and how they share tiles."""
    most = min(stage.k_blocks for stage in stages)
    splits = (1,) if attends(stage.operator for stage in stages) else (2,) if stages[0].pair else SPLITS
    fitting = [(s, clusters(s)) for s in splits if s <= most]
    priced = [
        (preferred(chain_us(arrangement, s, n), s), s, arrangement)
        for s, n in fitting
        if n > 0
        for arrangement in arrangements(stages, s)
    ]
    if not priced:
        raise UserError("no cluster of the persistent kernel fits this device")
    return min(priced, key=lambda f: f[0])[1:]


@dataclass(frozen=True, slots=True)
class _Links:
    """Semaphores that each tile awaits and posts, as CSR over the tiles of all stages."""

    wait_ptr: list[int]
    waits: list[int]
    post_ptr: list[int]
    posts: list[int]
    semaphores: int


def _csr(rows: I64, tiles: int) -> tuple[list[int], list[int]]:
    """Return ``rows`` (tile, semaphore) as CSR."""
    order = np.argsort(rows[:, 0], kind="stable")
    return np.searchsorted(rows[order, 0], np.arange(tiles + 1)).tolist(), rows[order, 1].tolist()


def _task_lists(
    stages: Sequence[StagePlan], orders: Sequence[I64], split: int, clusters: int, links: _Links | None
) -> list[list[Piece]]:
    """Return the tasks of every cluster.

    In stage order and the stage's own, each tile goes to the cluster that is free first by the model; of equals to the
    lowest. A cluster that has to wait for what its tile awaits is free so much later: idle clusters do not collect the
    tiles of a stage that cannot begin.
    """
    clusters = min(clusters, sum(len(o) * (2 if s.cut else 1) for o, s in zip(orders, stages, strict=True)))
    free = [(0.0, cluster) for cluster in range(clusters)]
    lists: list[list[Piece]] = [[] for _ in range(clusters)]
    post_ends = [0.0] * (links.semaphores if links else 0)
    node = 0
    for number, (stage, order) in enumerate(zip(stages, orders, strict=True)):
        lives = task_us(stage, split).tolist()
        rows = _rows(number, stage, np.arange(stage.operator.tiles))[:, 1].tolist()
        parts = (1, 0) if stage.cut else (0,)  # all early ones first: late ones wait for them
        for early, tile in ((early, tile) for early in parts for tile in order.tolist()):
            begin, cluster = free[0]
            at = node + tile
            if links:
                begin = max([begin, *(post_ends[m] for m in links.waits[links.wait_ptr[at] : links.wait_ptr[at + 1]])])
            end = round(begin + lives[rows[tile]], 6)  # equal sums stay equal
            if links and not early:
                for semaphore in links.posts[links.post_ptr[at] : links.post_ptr[at + 1]]:
                    post_ends[semaphore] = max(post_ends[semaphore], end)
            heapq.heapreplace(free, (end, cluster))
            lists[cluster].append((number, tile, early))
        node += stage.operator.tiles
    return lists


def _assembled(
    stages: Sequence[StagePlan],
    split: int,
    lists: list[list[Piece]],
    base: I64,
    waits: I64,
    posts: I64,
    semaphores: int,
) -> Plan:
    """Put ``waits`` (tile of all stages, and the columns of `Plan.waits`) and ``posts`` (tile, semaphore) into the
    order of the tasks.
    """
    flat = np.array([task for tasks in lists for task in tasks], np.int64).reshape(-1, 3)
    early = flat[:, 2] == 1
    place = np.zeros(base[-1], np.int64)  # the task that finishes each tile
    first = np.full(base[-1], -1)  # and its early one, if there is one
    place[base[flat[~early, 0]] + flat[~early, 1]] = np.flatnonzero(~early)
    first[base[flat[early, 0]] + flat[early, 1]] = np.flatnonzero(early)
    tasks = np.empty((len(flat), 4), np.int64)
    for number, stage in enumerate(stages):
        of_stage = flat[:, 0] == number
        tasks[of_stage] = _rows(number, stage, flat[of_stage, 1])
    more = waits[first[waits[:, 0]] >= 0]  # of early tasks: those of the same tile
    waits, posts = np.concatenate([waits, more]), posts.copy()
    whole = len(waits) - len(more)
    waits[:whole, 0], waits[whole:, 0], posts[:, 0] = place[waits[:whole, 0]], first[more[:, 0]], place[posts[:, 0]]
    waits = waits[np.lexsort((waits[:, 3], waits[:, 2], waits[:, 1], waits[:, 0]))]
    posts = posts[np.argsort(posts[:, 0], kind="stable")]
    ends = np.arange(len(flat) + 1)
    wait_ptr, post_ptr = np.searchsorted(waits[:, 0], ends), np.searchsorted(posts[:, 0], ends)
    task_ptr = np.cumsum([0, *(len(tasks) for tasks in lists)])
    return Plan(
        split,
        len(lists),
        tuple(stages),
        _i32(task_ptr),
        _i32(tasks),
        _i32(wait_ptr),
        _i32(waits[:, 1:]),
        _i32(post_ptr),
        _i32(posts[:, 1]),
        semaphores,
        _i32(early),
    )


def _i32(values: I64) -> I32:
    return np.ascontiguousarray(values, np.int32)


def _rows(number: int, stage: StagePlan, tile: I64) -> I64:
    """Return rows of `Plan.tasks`."""
    operator = stage.operator
    gx, gy, _ = operator.grid
    x, y = tile % gx, tile // gx % gy
    if isinstance(operator, Attention):
        x = tile // (gx * gy)  # heads
    down, across = (y, x) if operator.rows_along == "y" else (x, y)
    return np.stack([np.full(len(tile), number), down, across, tile], axis=1)


def _waits(
    lowered: Sequence[Waits], chain: Chain, stages: Sequence[StagePlan], first: dict[int, int], base: I64, split: int
) -> I64:
    """Return tile of all stages, and the columns of `Plan.waits`."""
    columns: list[I64] = []
    for waits in lowered:
        consumer, array = waits.edge.consumer, waits.edge.semaphores
        tile = owners(waits.indptr)
        whole = stages[consumer].k_blocks
        posts = waits.posts[waits.semaphore]
        reach = _reach(chain, waits)
        if reach is None:
            k_from, k_to = np.zeros(len(tile), np.int64), np.full(len(tile), whole)
        else:  # a value that some posters need not have reached says nothing about who they are
            full = (waits.value >= posts) & (posts > 0)
            k_from = np.where(full, reach[0][waits.semaphore], 0)
            k_to = np.where(full, reach[1][waits.semaphore], whole)
        semaphore, value = first[array] + waits.semaphore, split * waits.value
        rows = np.stack([base[consumer] + tile, k_from, k_to, semaphore, value, split * posts], axis=1)
        columns.append(rows[waits.value > 0])
    return np.concatenate(columns) if columns else np.empty((0, 6), np.int64)


def _reach(chain: Chain, waits: Waits) -> tuple[I64, I64] | None:
    """Return the k-blocks of the consumer that the tiles which post a semaphore write, by semaphore; None: a wait is
    for more than these.

    Only where the consumer meets the earlier stages in nothing but its activations, and only this producer writes
    those: otherwise the wait may stand, perhaps through other tiles, for a residual, for memory that is written again,
    or for another stage's part of the activations.
    """
    consumer, producer = chain.operators[waits.edge.consumer], chain.operators[waits.edge.producer]
    if not isinstance(consumer, Gemm) or not isinstance(producer, Gemm) or consumer.a != producer.out:
        return None
    earlier = chain.operators[: waits.edge.consumer]
    others = {v.tensor for role, v in consumer.views().items() if role != "a"}
    outputs = [o.out.tensor for o in earlier]
    tensors = {v.tensor for o in earlier for v in o.views().values()}
    if others & set(outputs) or consumer.out.tensor in tensors or outputs.count(consumer.a.tensor) != 1:
        return None
    gx, gy, _ = producer.grid
    tile = np.arange(producer.tiles)
    across = tile % gx if producer.rows_along == "y" else tile // gx % gy
    width, inner = producer.tile[1], producer.out.shape[-1]
    low = across * width // K_BLOCK
    high = -(-np.minimum((across + 1) * width, inner) // K_BLOCK)
    semaphores = len(waits.posts)
    k_from, k_to = np.full(semaphores, -(-inner // K_BLOCK)), np.zeros(semaphores, np.int64)
    np.minimum.at(k_from, waits.of, low)
    np.maximum.at(k_to, waits.of, high)
    return k_from, k_to


def _posts(lowered: Sequence[Waits], policy: Policy, first: dict[int, int], base: I64) -> I64:
    """Return tile of all stages, semaphore."""
    posters = {w.edge.semaphores: w.of for w in lowered}
    rows = [
        np.stack([base[policy.semaphores[a].producer] + np.arange(len(of)), first[a] + of], axis=1)
        for a, of in posters.items()
    ]
    return np.concatenate(rows) if rows else np.empty((0, 2), np.int64)
