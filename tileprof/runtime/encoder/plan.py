"""Tiles of a program for the blocks of one launch: tasks in order, semaphores that they post, and those that they wait for.

A semaphore stands for 32 rows of a stage's result (where k is cut, for a tile of them): every task that writes into these rows posts it once. A task waits for the semaphores of
all rows that it reads, as `touches` says which those are, less what others of its waits imply.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

from tileprof.errors import UserError
from tileprof.runtime.encoder.program import HEAD, Attention, Product, Program

ROWS: Final = 32
K_CHUNK: Final = 64
MOST_WAITS: Final = 64
MOST_POSTS: Final = 4
MOST_SPLITS: Final = 4
WIDTHS: Final = (16, 32, 48, 64, 80, 96, 112)
"""Columns of a product's tile that the kernel can be compiled for."""


@dataclass(frozen=True, slots=True)
class Sum:
    """What a product left in parts of k, added up: ``width`` columns and ``part_rows`` rows per task."""

    product: Product
    splits: int
    width: int
    part_rows: int


@dataclass(frozen=True, slots=True)
class Tiled:
    """A product with its tile's columns and in how many parts k is cut."""

    product: Product
    width: int
    splits: int = 1


Planned = Tiled | Attention | Sum

Box = tuple[str, int, int, int, int]
"""A tensor's name, then rows and columns: first and behind the last."""


@dataclass(frozen=True, slots=True)
class Task:
    """A tile of stage ``stage`` for one block. ``part``: first of k, first row of the sequence, or rows; as in tables.cuh."""

    stage: int
    row: int
    column: int
    part: int


@dataclass(frozen=True, slots=True)
class Touches:
    reads: tuple[Box, ...]
    writes: tuple[Box, ...]


@dataclass(frozen=True)
class Plan:
    """``blocks[b]``: numbers of the tasks of block b, in order. ``waits`` and ``posts``: of each task, semaphores' numbers."""

    program: Program
    cluster: int
    activation_columns: int
    width: int
    stages: tuple[Planned, ...]
    tasks: tuple[Task, ...]
    blocks: tuple[tuple[int, ...], ...]
    waits: tuple[tuple[int, ...], ...]
    posts: tuple[tuple[int, ...], ...]
    semaphores: int

    @cached_property
    def post_counts(self) -> tuple[int, ...]:
        """How often each semaphore is posted in a run."""
        counts = [0] * self.semaphores
        for posted in self.posts:
            for semaphore in posted:
                counts[semaphore] += 1
        return tuple(counts)


def plan_of(program: Program, blocks: int, cluster: int, splits: int | None = None, width: int | None = None) -> Plan:
    """Tiles for so many blocks in clusters of ``cluster``. ``splits``: in how many parts products of more k than shared memory holds are cut; ``width``: of tiles.

    Raises `UserError` where the kernel cannot take the program.
    """
    depth, clusters = activation_columns(program), blocks // cluster
    chosen = width or min(WIDTHS, key=lambda w: _cost(program, clusters, cluster, depth, w, splits))
    stages = tuple(_planned(program, depth, chosen, splits))
    tasks: list[Task] = []
    lists: list[list[int]] = [[] for _ in range(clusters * cluster)]
    at = 0
    for number, stage in enumerate(stages):
        at = _deal(number, stage, cluster, at, tasks, lists)
    posts, names = _posts(stages, tasks)
    waits = _waits(stages, tasks, posts, names)
    if max(map(len, waits), default=0) > MOST_WAITS:
        raise UserError(f"{program.name}: a tile waits for more than {MOST_WAITS} semaphores; there are too many rows")
    return Plan(
        program, cluster, depth, chosen, stages, tuple(tasks), tuple(map(tuple, lists)), waits, posts, len(names)
    )


def activation_columns(program: Program) -> int:
    """Columns of activations that shared memory holds at a time: rows that are normalised must fit."""
    normed = [s.depth for s in program.stages if isinstance(s, Product) and s.norm is not None]
    least = max(normed, default=512)
    if least > 1024:
        raise UserError(f"{program.name}: rows of {least} columns are normalised, and shared memory holds 1024")
    return -(-least // K_CHUNK) * K_CHUNK


def _planned(program: Program, depth: int, width: int, splits: int | None) -> Iterator[Planned]:
    for stage in program.stages:
        if isinstance(stage, Attention):
            yield stage
            continue
        cut = _splits(stage, depth, splits)
        yield Tiled(stage, width, cut)
        if cut > 1:
            yield Sum(stage, cut, width, -(-ROWS // cut // 8) * 8)


def _cost(program: Program, clusters: int, cluster: int, depth: int, width: int, splits: int | None) -> float:
    """Microseconds of the products, roughly: rounds of loads and multiplications, as measured at 768 columns. Weights that are not K-major meet bank conflicts in every second width."""
    total = 0.0
    for stage in program.stages:
        if isinstance(stage, Product):
            cut = _splits(stage, depth, splits)
            tiles = -(-stage.rows // (ROWS * cluster)) * -(-stage.columns // width) * cut * _siblings(program, stage)
            conflicts = 1.0 if stage.k_major or width // 16 % 2 else 1.1
            each = stage.depth / cut / 768 * (1.3 + 0.019 * width * conflicts) + 1.0
            total += -(-tiles // clusters) * each / _siblings(program, stage)
    return total


def _siblings(program: Program, stage: Product) -> int:
    """Products of the same rows, itself counted, that run at the same time: a model's three of queries, keys and values."""
    return sum(isinstance(s, Product) and s.activations == stage.activations for s in program.stages)


def _splits(stage: Product, depth: int, asked: int | None) -> int:
    """In how many parts k is cut: as many as make them fit into shared memory."""
    if stage.depth <= depth or stage.norm is not None:
        return 1
    most = asked if asked is not None else min(MOST_SPLITS, -(-stage.depth // depth))
    return max((cut for cut in range(1, most + 1) if stage.depth % (cut * K_CHUNK) == 0), default=1)


def _deal(number: int, stage: Planned, cluster: int, at: int, tasks: list[Task], lists: list[list[int]]) -> int:
    """Give a stage's tasks to blocks in turn, from number ``at`` on, where the stage before has ended; returns where this one ends."""
    match stage:
        case Tiled(product, width, splits):
            share = product.depth // splits
            for group in range(0, product.rows, ROWS * cluster):
                for column in range(0, product.columns, width):
                    for part in range(0, product.depth, share):
                        for rank in range(cluster):
                            lists[(at + rank) % len(lists)].append(len(tasks))
                            tasks.append(Task(number, group + ROWS * rank, column, part))
                        at = (at + cluster) % len(lists)
            return at
        case Attention():
            each = [
                Task(number, row, head, begin)
                for head in range(stage.heads)
                for begin in range(0, stage.rows, stage.length)
                for row in range(begin, begin + stage.length, ROWS)
            ]
        case Sum(product, _, width, part_rows):
            each = [
                Task(number, row, column, min(part_rows, tile + ROWS - row))
                for column in range(0, product.columns, width)
                for tile in range(0, product.rows, ROWS)
                for row in range(tile, min(tile + ROWS, product.rows), part_rows)
            ]
    for task in each:
        lists[at].append(len(tasks))
        tasks.append(task)
        at = (at + 1) % len(lists)
    return -(-at // cluster) * cluster % len(lists)


def touches(stage: Planned, task: Task) -> Touches:
    """What a task reads of matrices and what it writes. Parameters, which no stage writes, are left out."""
    match stage:
        case Tiled(product, width, splits):
            return _product_touches(product, width, splits, task)
        case Attention():
            rows = task.row, min(task.row + ROWS, task.part + stage.length)
            keys = task.part, rows[1] if stage.causal else task.part + stage.length
            key_head = task.column // (stage.heads // stage.key_heads)
            return Touches(
                (
                    (stage.query.tensor, *rows, *_head(stage.query.column, task.column)),
                    (stage.key.tensor, *keys, *_head(stage.key.column, key_head)),
                    (stage.value.tensor, *keys, *_head(stage.value.column, key_head)),
                ),
                ((stage.out.tensor, *rows, *_head(stage.out.column, task.column)),),
            )
        case Sum(product, splits, width, _):
            rows = task.row, min(task.row + task.part, product.rows)
            columns = task.column, min(task.column + width, product.columns)
            parts = tuple((partials_of(product, part), *rows, *columns) for part in range(splits))
            return Touches((*parts, *_residual(product, rows, columns)), (_moved(product, rows, columns),))


def _product_touches(product: Product, width: int, splits: int, task: Task) -> Touches:
    rows = min(task.row, product.rows), min(task.row + ROWS, product.rows)
    columns = task.column, min(task.column + width, product.columns)
    share, source = product.depth // splits, product.activations
    read = source.tensor, *rows, source.column + task.part, source.column + task.part + share
    if splits > 1:
        return Touches((read,), ((partials_of(product, task.part // share), *rows, *columns),))
    writes = [_moved(product, rows, columns)]
    if product.norm is not None and product.norm.kept is not None:
        kept = norm_share(product, width)
        begin = task.column // width * kept
        writes.append((product.norm.kept, *rows, min(begin, product.depth), min(begin + kept, product.depth)))
    return Touches((read, *_residual(product, rows, columns)), tuple(writes))


def norm_share(product: Product, width: int) -> int:
    """Columns of the normalised rows that each tile stores."""
    tiles = -(-product.columns // width)
    return -(-product.depth // tiles // 8) * 8


def partials_of(product: Product, part: int) -> str:
    return f"{product.name} part {part}"


def _head(column: int, head: int) -> tuple[int, int]:
    return column + head * HEAD, column + (head + 1) * HEAD


def _moved(product: Product, rows: tuple[int, int], columns: tuple[int, int]) -> Box:
    return product.out.tensor, *rows, product.out.column + columns[0], product.out.column + columns[1]


def _residual(product: Product, rows: tuple[int, int], columns: tuple[int, int]) -> tuple[Box, ...]:
    if (source := product.residual) is None:
        return ()
    return ((source.tensor, *rows, source.column + columns[0], source.column + columns[1]),)


Name = tuple[int, int, int]
"""Of a semaphore: stage, 32 rows, and tile of columns where k is cut."""


def _posts(stages: tuple[Planned, ...], tasks: list[Task]) -> tuple[tuple[tuple[int, ...], ...], dict[Name, int]]:
    names: dict[Name, int] = {}
    posts = []
    for task in tasks:
        stage = stages[task.stage]
        rows = {
            row for _, begin, end, _, _ in touches(stage, task).writes if begin < end for row in range(begin // ROWS, -(-end // ROWS))
        }  # fmt: skip
        column = task.column if isinstance(stage, Tiled) and stage.splits > 1 else 0
        posts.append(tuple(names.setdefault((task.stage, row, column), len(names)) for row in sorted(rows)))
    if max(map(len, posts), default=0) > MOST_POSTS:
        raise UserError(f"a tile posts more than {MOST_POSTS} semaphores")
    return tuple(posts), names


def _waits(
    stages: tuple[Planned, ...], tasks: list[Task], posts: tuple[tuple[int, ...], ...], names: dict[Name, int]
) -> tuple[tuple[int, ...], ...]:
    """For each task the semaphores of the last stage that wrote what it reads, less those that the others imply."""
    writers: dict[str, list[tuple[int, Name, Box]]] = {}
    by_number = list(names)
    for task, posted in zip(tasks, posts, strict=True):
        for box in touches(stages[task.stage], task).writes:
            for semaphore in posted:
                writers.setdefault(box[0], []).append((semaphore, by_number[semaphore], box))
    implied = [0] * len(names)  # by semaphore: all that is posted once it is, as bits
    pending: dict[int, int] = {}
    waits: list[tuple[int, ...]] = []
    stage_now = 0
    cache: dict[tuple[int, Box], frozenset[int]] = {}
    for number, task in enumerate(tasks):
        if task.stage != stage_now:
            for semaphore, bits in pending.items():
                implied[semaphore] |= bits
            pending, stage_now = {}, task.stage
        wanted: set[int] = set()
        for box in touches(stages[task.stage], task).reads:
            key = task.stage, box
            if key not in cache:
                cache[key] = frozenset(
                    semaphore for semaphore, name, wrote in writers.get(box[0], ()) if name[0] < task.stage and overlap(box, wrote)
                )  # fmt: skip
            wanted |= cache[key]
        kept = _least(wanted, implied)
        waits.append(kept)
        bits = 0
        for semaphore in kept:
            bits |= implied[semaphore] | 1 << semaphore
        for semaphore in posts[number]:
            pending[semaphore] = pending.get(semaphore, 0) | bits
    return tuple(waits)


def _least(wanted: set[int], implied: list[int]) -> tuple[int, ...]:
    """Semaphores that no other of them implies; a later one never follows from an earlier one."""
    kept, bits = [], 0
    for semaphore in sorted(wanted, reverse=True):
        if not bits >> semaphore & 1:
            kept.append(semaphore)
            bits |= implied[semaphore]
    return tuple(sorted(kept))


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes have an element in common."""
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and a[3] < b[4] and b[3] < a[4]


def without_wait(plan: Plan, task: int, position: int) -> Plan:
    """The plan less one wait of a task; for tests."""
    waits = list(plan.waits)
    waits[task] = tuple(s for i, s in enumerate(waits[task]) if i != position)
    return replace(plan, waits=tuple(waits))


def hazards(plan: Plan) -> list[tuple[int, int, str]]:
    """Pairs of tasks, earlier and later, that touch an element, one of them writing, while no wait orders them; with the tensor's name.

    A task knows what its waits imply: all tasks that post these semaphores, and what those knew. Blocks' own order counts too. Computed from the touches alone.
    """
    known = _knowledge(plan)
    found = []
    by_tensor: dict[str, list[tuple[int, Box, bool]]] = {}
    for number, task in enumerate(plan.tasks):
        touched = touches(plan.stages[task.stage], task)
        for boxes, writes in ((touched.reads, False), (touched.writes, True)):
            for box in boxes:
                for earlier, other, wrote in by_tensor.get(box[0], ()):
                    if (writes or wrote) and earlier != number and overlap(box, other) and not known[number] >> earlier & 1:
                        found.append((earlier, number, box[0]))
        for box in touched.reads:
            by_tensor.setdefault(box[0], []).append((number, box, False))
        for box in touched.writes:
            by_tensor.setdefault(box[0], []).append((number, box, True))
    return found


def _knowledge(plan: Plan) -> list[int]:
    """Of each task, as bits, the tasks that are over when it begins to read."""
    before = {later: earlier for tasks in plan.blocks for earlier, later in pairwise(tasks)}
    posters: list[int] = [0] * plan.semaphores
    told: list[int] = [0] * plan.semaphores
    known: list[int] = []
    for number, posted in enumerate(plan.posts):
        bits = 0
        for semaphore in plan.waits[number]:
            bits |= posters[semaphore] | told[semaphore]
        if (earlier := before.get(number)) is not None:
            bits |= known[earlier] | 1 << earlier
        known.append(bits)
        for semaphore in posted:
            posters[semaphore] |= 1 << number
            told[semaphore] |= bits
    return known
