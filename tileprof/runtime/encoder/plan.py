"""Tiles of a program for the blocks of one launch.

Products become tiles whose sums are stored with their epilogue, or, where a residual or a norm follows or k is cut, in
parts that an end of rows adds up and normalises. Each block has a list of tasks in order of stages. `faults` says
whether a plan can be run: every element that a task reads of a matrix is written, once, by tasks of earlier stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tileprof.errors import UserError
from tileprof.runtime.encoder.program import HEAD, Attention, Epilogue, Matrix, Norm, Product, Program

ROWS: Final = 32
K_CHUNK: Final = 64
MOST_SPLITS: Final = 4
MOST_ROW_COLUMNS: Final = 1024
"""Columns of rows that are ended or normalised: four per thread of a block."""

WIDTHS: Final = (32, 48, 64, 80, 96, 112)
"""Columns of a product's tile that the kernel can be compiled for; multiples of 32 where weights are not K-major."""


@dataclass(frozen=True, slots=True)
class Tiled:
    """A product of ``source`` in tiles of ``width`` columns and ``splits`` parts of k. ``parts``: sums are stored in
    float32, for a `Finish`.
    """

    product: Product
    source: Matrix
    width: int
    splits: int
    parts: bool

    @property
    def name(self) -> str:
        return self.product.name


@dataclass(frozen=True, slots=True)
class Finish:
    """Ends of rows: epilogue(the sum of a product's parts + bias) + residual, stored in ``out``; its norm in
    ``normed``, if any.
    """

    name: str
    rows: int
    columns: int
    splits: int
    rows_of_task: int
    bias: str | None
    epilogue: Epilogue
    residual: Matrix | None
    out: Matrix | None
    norm: Norm | None
    normed: str | None


StagePlan = Tiled | Attention | Finish

Box = tuple[str, int, int, int, int]
"""A matrix' name, then rows and columns: first and behind the last."""


@dataclass(frozen=True, slots=True)
class Task:
    """A tile of stage ``stage`` for one block. ``part``: first of k, first row of the sequence, or rows; as in
    tables.cuh.
    """

    stage: int
    row: int
    column: int
    part: int


@dataclass(frozen=True, slots=True)
class TaskBoxes:
    """Parts of matrices that one task reads and writes."""

    reads: tuple[Box, ...]
    writes: tuple[Box, ...]


@dataclass(frozen=True)
class Plan:
    """``blocks[b]``: numbers of the tasks of block b, in order. ``sizes``: rows, columns and bytes per element of each
    matrix between stages.
    """

    program: Program
    cluster: int
    activation_columns: int
    width: int
    stages: tuple[StagePlan, ...]
    tasks: tuple[Task, ...]
    blocks: tuple[tuple[int, ...], ...]
    sizes: dict[str, tuple[int, int, int]]


def plan_of(program: Program, blocks: int, cluster: int, width: int | None = None, splits: int | None = None) -> Plan:
    """Return tiles for ``blocks`` blocks in clusters of ``cluster``; ``width`` and ``splits``, of products that may be
    cut, if not the best by `_cost`.

    Raises `UserError` where the kernel cannot take the program.
    """
    plan = plan_without_tasks(program, blocks, cluster, width, splits)
    tasks: list[Task] = []
    lists: list[list[int]] = [[] for _ in range(blocks // cluster * cluster)]
    at = 0
    for number, stage in enumerate(plan.stages):
        at = _deal(number, stage, cluster, at, tasks, lists)
    return replace(plan, tasks=tuple(tasks), blocks=tuple(map(tuple, lists)))


def plan_without_tasks(
    program: Program, blocks: int, cluster: int, width: int | None = None, splits: int | None = None
) -> Plan:
    """Return what `plan_of` decides before it gives tasks to blocks: enough to compile the kernel.

    Raises `UserError`.
    """
    clusters, columns = blocks // cluster, activation_columns(program)
    cut = _Cut(clusters, cluster, columns, splits)
    stage_width = width or min(_widths(program), key=lambda w: sum(cut.cost(p, w) for p in program.products()))
    stages = tuple(_plan_stages(program, stage_width, cut, clusters * cluster))
    return Plan(program, cluster, columns, stage_width, stages, (), (), _sizes(program, stages))


def cluster_for(program: Program) -> int:
    """Return blocks that share weights, each a tile of rows: two, unless one of them would have none in the last group
    of rows.
    """
    tiles = max(-(-product.rows // ROWS) for product in program.products())
    return 1 if tiles % 2 else 2


def _widths(program: Program) -> Iterator[int]:
    products = program.products()
    if any(product.columns % 32 for product in products if not product.k_major):
        raise UserError(f"{program.name}: weights that are not K-major have columns that 32 does not divide")
    k_major = all(product.k_major for product in products)
    return (width for width in WIDTHS if k_major or width % 32 == 0)


def activation_columns(program: Program) -> int:
    """Return columns of activations that shared memory holds at a time.

    Raises `UserError` for rows that are wider than that.
    """
    if any(product.columns > MOST_ROW_COLUMNS for product in program.products() if product.residual is not None):
        raise UserError(f"{program.name}: rows of more than {MOST_ROW_COLUMNS} columns are normalised or added up")
    return min(MOST_ROW_COLUMNS, *(product.depth for product in program.products()))


@dataclass(frozen=True, slots=True)
class _Cut:
    """The costs of cutting products into parts of k. Times in microseconds, roughly as measured: a round's loads and
    multiplications, and what each part adds behind.
    """

    clusters: int
    cluster: int
    columns: int
    fixed_splits: int | None

    def splits(self, product: Product, width: int) -> int:
        if product.residual is None:
            return 1
        fitting = [s for s in range(1, MOST_SPLITS + 1) if product.depth % (s * K_CHUNK) == 0]
        if self.fixed_splits is not None:
            return max(s for s in fitting if s <= self.fixed_splits)
        return min(fitting, key=lambda s: self._time(product, width, s))

    def cost(self, product: Product, width: int) -> float:
        return self._time(product, width, self.splits(product, width))

    def _time(self, product: Product, width: int, splits: int) -> float:
        tiles = -(-product.rows // (ROWS * self.cluster)) * -(-product.columns // width) * splits
        passes = product.depth / splits / 768
        return -(-tiles // self.clusters) * (1.5 + passes * (1.2 + 0.019 * width)) + 0.1 * splits


def _plan_stages(program: Program, width: int, cut: _Cut, blocks: int) -> Iterator[StagePlan]:
    norms = _norms(program)
    plain = program.read_plain()
    complete_tensors: set[str] = set()
    for stage in program.stages:
        if isinstance(stage, Attention):
            yield stage
            continue
        source = stage.activations
        if stage.norm is not None:
            norm, normed = norms[source.tensor]
            if source.tensor not in complete_tensors:
                complete_tensors.add(source.tensor)
                yield Finish(
                    f"norm of {source.tensor}",
                    stage.rows,
                    stage.depth,
                    0,
                    -(-stage.rows // blocks),
                    None,
                    "none",
                    source,
                    None,
                    norm,
                    normed,
                )
            source = Matrix(normed, stage.depth)
        later = norms.get(stage.out.tensor)
        parts = later is not None or stage.residual is not None
        splits = cut.splits(stage, width) if parts else 1
        yield Tiled(stage, source, width, splits, parts)
        if parts:
            complete_tensors.add(stage.out.tensor)
            out = stage.out if stage.out.tensor in plain else None
            yield Finish(
                stage.name,
                stage.rows,
                stage.columns,
                splits,
                -(-stage.rows // blocks),
                stage.bias,
                stage.epilogue,
                stage.residual,
                out,
                *(later or (None, None)),
            )


def _norms(program: Program) -> dict[str, tuple[Norm, str]]:
    """Return the norm of each matrix that is normalised, and the name of the result.

    Raises `UserError` where it is normalised in two ways.
    """
    norms: dict[str, tuple[Norm, str]] = {}
    for product in program.products():
        if (norm := product.norm) is None:
            continue
        name = product.activations.tensor
        earlier = norms.get(name)
        if product.activations.column or (earlier and replace(earlier[0], output=None) != replace(norm, output=None)):
            raise UserError(f"{program.name}: {name} is normalised in two ways, or in part")
        output_name = norm.output or (earlier[0].output if earlier else None)
        norms[name] = replace(norm, output=output_name), output_name or f"{name} normed"
    if program.last is not None:
        matrix, norm = program.last
        if matrix.column or matrix.tensor in norms or norm.output is None:
            raise UserError(f"{program.name}: {matrix.tensor} is normalised in two ways, or in part")
        norms[matrix.tensor] = norm, norm.output
    return norms


def _sizes(program: Program, stages: tuple[StagePlan, ...]) -> dict[str, tuple[int, int, int]]:
    outside = {name for name, _, _ in program.outputs}
    sizes: dict[str, tuple[int, int, int]] = {}
    for stage in stages:
        match stage:
            case Tiled(product, _, _, splits, True):
                sizes[parts_of(product.name)] = splits * product.rows, product.columns, 4
            case Tiled(product):
                sizes[product.out.tensor] = product.rows, product.out.pitch, 2
            case Attention():
                sizes[stage.out.tensor] = stage.rows, stage.out.pitch, 2
            case Finish():
                if stage.out is not None:
                    sizes[stage.out.tensor] = stage.rows, stage.out.pitch, 2
                if stage.normed is not None:
                    sizes[stage.normed] = stage.rows, stage.columns, 2
    return {name: size for name, size in sizes.items() if name not in outside}


def _deal(number: int, stage: StagePlan, cluster: int, at: int, tasks: list[Task], lists: list[list[int]]) -> int:
    """Give a stage's tasks to blocks in turn, from number ``at`` on, where the stage before has ended; returns where
    this one ends.
    """
    match stage:
        case Tiled(product, _, width, splits):
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
        case Finish():
            step = stage.rows_of_task
            each = [Task(number, row, 0, min(step, stage.rows - row)) for row in range(0, stage.rows, step)]
    for task in each:
        lists[at].append(len(tasks))
        tasks.append(task)
        at = (at + 1) % len(lists)
    return -(-at // cluster) * cluster % len(lists)


def touches(stage: StagePlan, task: Task) -> TaskBoxes:
    """Return what a task reads of matrices and what it writes; parts of k follow each other as rows."""
    match stage:
        case Tiled(product, source, width, splits, parts):
            rows = min(task.row, product.rows), min(task.row + ROWS, product.rows)
            columns = task.column, min(task.column + width, product.columns)
            share = product.depth // splits
            read = source.tensor, *rows, source.column + task.part, source.column + task.part + share
            if not parts:
                return TaskBoxes((read,), (_box(product.out, rows, columns),))
            first = task.part // share * product.rows
            return TaskBoxes((read,), ((parts_of(product.name), first + rows[0], first + rows[1], *columns),))
        case Attention():
            rows = task.row, min(task.row + ROWS, task.part + stage.length)
            keys = task.part, rows[1] if stage.causal else task.part + stage.length
            head, key_head = _columns(task.column), _columns(task.column // (stage.heads // stage.key_heads))
            reads = _box(stage.query, rows, head), _box(stage.key, keys, key_head), _box(stage.value, keys, key_head)
            return TaskBoxes(reads, (_box(stage.out, rows, head),))
        case Finish():
            rows, columns = (task.row, task.row + task.part), (0, stage.columns)
            firsts = [part * stage.rows for part in range(stage.splits)]
            parts_read = tuple((parts_of(stage.name), first + rows[0], first + rows[1], *columns) for first in firsts)
            residual = () if stage.residual is None else (_box(stage.residual, rows, columns),)
            out = () if stage.out is None else (_box(stage.out, rows, columns),)
            normed = () if stage.normed is None else ((stage.normed, *rows, *columns),)
            return TaskBoxes((*parts_read, *residual), (*out, *normed))


def parts_of(product: str) -> str:
    """Return the name of the matrix of a product's parts of k."""
    return f"{product} parts"


def _columns(head: int) -> tuple[int, int]:
    return head * HEAD, (head + 1) * HEAD


def _box(matrix: Matrix, rows: tuple[int, int], columns: tuple[int, int]) -> Box:
    return matrix.tensor, *rows, matrix.column + columns[0], matrix.column + columns[1]


def faults(plan: Plan) -> list[str]:
    """Return why a plan must not be run; empty where it may.

    Then no run can deadlock or differ: blocks take stages in order, a task reads elements that tasks of earlier stages
    write, and since a block waits for each element itself, it sees the one value that this run writes there. Every
    element of a matrix is written once, so that all of a set is absent again when its run begins.
    """
    problems = []
    for number, block in enumerate(plan.blocks):
        stages = [plan.tasks[task].stage for task in block]
        if stages != sorted(stages):
            problems.append(f"block {number} does not take stages in order")
    if sorted(task for block in plan.blocks for task in block) != list(range(len(plan.tasks))):
        problems.append("a task is not dealt to one block")
    write_counts = {name: np.zeros((rows, columns), np.int64) for name, (rows, columns, _) in plan.sizes.items()}
    first_read: dict[Box, int] = {}  # by stage: many tasks read the same
    for task in plan.tasks:
        task_touches = touches(plan.stages[task.stage], task)
        for read in task_touches.reads:
            first_read[read] = min(task.stage, first_read.get(read, task.stage))
        for name, row, row_end, column, column_end in task_touches.writes:
            if name in write_counts:
                box = write_counts[name][row:row_end, column:column_end]
                if box.any():
                    problems.append(f"{name} is written twice in rows {row} to {row_end} (stage {task.stage})")
                box[:] = task.stage + 1
    for (name, row, row_end, column, column_end), stage in first_read.items():
        if name not in write_counts:
            continue
        box = write_counts[name][row:row_end, column:column_end]
        whole = box.shape == (row_end - row, column_end - column)
        if not whole or (box.size and not 0 < box.min() <= box.max() <= stage):
            problems.append(f"stage {stage} reads {name} in rows {row} to {row_end}, which no earlier stage writes")
    problems += [f"{name} is not written everywhere" for name, boxes in write_counts.items() if not boxes.all()]
    return problems


def without_task(plan: Plan, number: int) -> Plan:
    """Return the plan with a task that no block takes; for tests."""
    return replace(plan, blocks=tuple(tuple(task for task in block if task != number) for block in plan.blocks))
