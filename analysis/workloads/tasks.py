"""Task graphs, written as traces: tiles with addresses and made-up durations, which every command reads.

Those after ACS (Durvasula et al., arXiv:2401.12377) take from its text what runs (Brax's environments, networks wired
at random or chosen by their input), that kernels are of a few to 200 blocks, and the share of the GPU that they hold
when run one after the other (34% and 39%: `TILES` are such that a GPU of 46 SMs with 3.6 us between kernels comes
near). How long a kernel takes is assumed.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np

from tileprof.analysis.workloads.task_graph import Program
from tileprof.devices import get
from tileprof.errors import UserError

TILES = (32, 320)
"""Fewest and most tiles of a launch; sizes are drawn evenly on a logarithmic scale."""

BODIES = {"ant": (9, 8), "cheetah": (7, 6), "grasp": (20, 19), "humanoid": (11, 10), "walker2d": (7, 6)}
"""Rigid bodies, and joints between them, of environments like Brax's."""


def wavefront(
    path: str | PathLike[str], side: int = 32, *, tile_ns: float = 5000.0, spread: float = 0.5, seed: int = 0,
    device: str = "H200",
    force: bool = False,
) -> Path:  # fmt: skip
    """Return a square of cells, each after its upper and its left neighbour (Smith-Waterman, SOR, Wireframe's running
    example): a launch a diagonal.

    Tiles last ``tile_ns``, more or less by up to that share. Raises UserError for parameters out of range.
    """
    _check("wavefront", side=(side, 1), tile_ns=(tile_ns, 0.0))
    if not 0 <= spread < 1:
        raise UserError(f"wavefront: spread is {spread:g}, expected 0 to less than 1, a share of tile_ns")
    program = Program(path, get(device), f"wavefront {side}", force)
    random = np.random.default_rng(seed)
    before = program.buffer(1, "input")
    for number in range(2 * side - 1):
        tiles = min(number + 1, 2 * side - 1 - number)
        ns = np.rint(tile_ns * (1 + spread * random.uniform(-1, 1, tiles)))
        before = program.diagonal(before, number, side, ns)
    return program.close()


def random_wired(
    path: str | PathLike[str], nodes: int = 32, *, stages: int = 3, tiles: tuple[int, int] = TILES,
    tile_ns: float = 15_000.0,
    seed: int = 0, device: str = "H200", force: bool = False,
) -> Path:  # fmt: skip
    """Return a network wired at random (Xie et al., "Exploring Randomly Wired Neural Networks for Image Recognition",
    2019): in every stage a ring of nodes with its four nearest, three quarters of the links moved at random, each
    directed from the earlier node to the later. A node is three launches, a weighted sum of all its inputs, a depthwise
    and a pointwise convolution; a stage ends with the mean of all nodes that no other reads. Raises UserError for
    parameters out of range.
    """
    _check("random-wired", tiles, nodes=(nodes, 3), stages=(stages, 1), tile_ns=(tile_ns, 0.0))
    program = Program(path, get(device), f"random-wired {nodes}", force)
    random = np.random.default_rng(seed)
    source = program.buffer(_tiles(random, tiles), "input")
    for _ in range(stages):
        outputs: list[int] = []
        unread: set[int] = set()
        for inputs in _small_world(nodes, random):
            size = _tiles(random, tiles)
            read = [outputs[u] for u in sorted(inputs)] or [source]
            unread -= inputs
            summed = program.same(read, size, tile_ns / 2, "weighted sum")
            depthwise = program.same([summed], size, tile_ns, "depthwise convolution")
            unread.add(len(outputs))
            outputs.append(program.whole([depthwise], size, tile_ns, "pointwise convolution"))
        source = program.same([outputs[u] for u in sorted(unread)], _tiles(random, tiles), tile_ns / 2, "mean")
    return program.close()


def _small_world(nodes: int, random: np.random.Generator) -> list[set[int]]:
    """Return earlier nodes that each node reads (Watts and Strogatz)."""
    inputs: list[set[int]] = [set() for _ in range(nodes)]
    for v in range(nodes):
        for step in (1, 2):
            u = (v + step) % nodes if random.random() >= 0.75 else int(random.integers(nodes))
            if u != v:
                inputs[max(u, v)].add(min(u, v))
    return inputs


def searched(
    path: str | PathLike[str], cells: int = 12, *, pairs: int = 5, tiles: tuple[int, int] = TILES,
    tile_ns: float = 15_000.0,
    seed: int = 0, device: str = "H200", force: bool = False,
) -> Path:  # fmt: skip
    """Return a network of cells as architecture search finds them, after NASNet (Zoph et al., arXiv:1707.07012) and
    AmoebaNet: a cell reads the two cells before it; each of its ``pairs`` adds up two operations, each on one of these
    two or on an earlier pair (one time in five), and the cell ends with what no pair has read, put together. An
    operation is a separable convolution, four launches one after the other, a pooling, one, or nothing, drawn once for
    all cells, as there. Raises UserError for parameters out of range.
    """
    _check("searched", tiles, cells=(cells, 1), pairs=(pairs, 1), tile_ns=(tile_ns, 0.0))
    program = Program(path, get(device), f"searched {cells}", force)
    random = np.random.default_rng(seed)
    operation_pairs = [
        [(int(random.choice((4, 1, 0), p=(0.6, 0.25, 0.15))), _operand(random, pair)) for _ in range(2)]
        for pair in range(pairs)
    ]
    outputs = [program.buffer(_tiles(random, tiles), "input")] * 2
    for _ in range(cells):
        size = _tiles(random, tiles)
        values, unread = outputs[-2:], set(range(2, 2 + pairs))
        for operations in operation_pairs:
            ends = []
            for launches, operand in operations:
                unread.discard(operand)
                ends.append(_separable(program, values[operand], launches, size, tile_ns))
            values = [*values, program.same(ends, size, tile_ns / 3, "sum")]
        outputs.append(program.same([values[k] for k in sorted(unread)], size, tile_ns / 3, "concatenate"))
    return program.close()


def _operand(random: np.random.Generator, pair: int) -> int:
    """Return the operand of a cell's operation: one of the two cells before, or an earlier pair."""
    return int(random.integers(2, 2 + pair)) if pair and random.random() < 0.2 else int(random.integers(2))


def _separable(program: Program, source: int, launches: int, tiles: int, tile_ns: float) -> int:
    for k in range(launches):
        if k % 2:
            source = program.whole([source], tiles, tile_ns, "pointwise convolution")
        else:
            source = program.same([source], tiles, tile_ns / 2, "depthwise convolution" if launches > 1 else "pooling")
    return source


def squeezed(
    path: str | PathLike[str], modules: int = 8, *, tiles: tuple[int, int] = TILES, tile_ns: float = 15_000.0,
    seed: int = 0,
    device: str = "H200", force: bool = False,
) -> Path:  # fmt: skip
    """Return SqueezeNet (Iandola et al., arXiv:1602.07360): ``modules`` of a squeezing convolution, two expanding ones
    that need only that, and what puts these together. Raises UserError for parameters out of range.
    """
    _check("squeezed", tiles, modules=(modules, 1), tile_ns=(tile_ns, 0.0))
    program = Program(path, get(device), f"squeezed {modules}", force)
    random = np.random.default_rng(seed)
    source = program.buffer(_tiles(random, tiles), "input")
    for _ in range(modules):
        size = _tiles(random, tiles)
        squeeze = program.whole([source], size, tile_ns / 2, "squeeze")
        both = [program.whole([squeeze], size, ns, "expand") for ns in (tile_ns / 2, tile_ns)]
        source = program.same(both, size, tile_ns / 3, "concatenate")
    return program.close()


def gated(
    path: str | PathLike[str], cells: int = 17, *, branches: int = 5, keep: float = 0.4, tiles: tuple[int, int] = TILES,
    tile_ns: float = 15_000.0, seed: int = 0, device: str = "H200", force: bool = False,
) -> Path:  # fmt: skip
    """Return a network that its input chooses, after InstaNAS (Cheng et al., arXiv:1811.10201): a controller of three
    launches says which of the ``branches`` of each cell run, each with probability ``keep``; a branch is an inverted
    bottleneck, three launches one after the other, and a cell ends with their sum. A cell of which nothing runs is
    skipped. The controller has decided before the first cell is issued, as there. Raises UserError for parameters out
    of range.
    """
    _check("gated", tiles, cells=(cells, 1), branches=(branches, 1), tile_ns=(tile_ns, 0.0))
    if not 0 < keep <= 1:
        raise UserError(f"gated: keep is {keep:g}, expected more than 0 and at most 1, a probability")
    program = Program(path, get(device), f"gated {cells}", force)
    random = np.random.default_rng(seed)
    source = program.buffer(_tiles(random, tiles), "input")
    controller = source
    for _ in range(3):
        controller = program.whole([controller], tiles[0], tile_ns / 2, "controller")
    for _ in range(cells):
        outputs = []
        for _ in range(int((random.random(branches) < keep).sum())):
            size = _tiles(random, tiles)
            wide = program.whole([source], size, tile_ns, "expand")
            depthwise = program.same([wide], size, tile_ns, "depthwise convolution")
            outputs.append(program.whole([depthwise], size, tile_ns, "project"))
        if outputs:
            source = program.same([source, *outputs], _tiles(random, tiles), tile_ns / 2, "sum")
    return program.close()


def rigid_bodies(
    path: str | PathLike[str], environment: str = "ant", *, steps: int = 6, contacts: float = 0.5, tiles: tuple[int,
    int] = TILES,
    tile_ns: float = 15_000.0, seed: int = 0, device: str = "H200", force: bool = False,
) -> Path:  # fmt: skip
    """Return steps of a batch of rigid-body simulations, as Brax's that ACS was made for: a launch for each joint,
    which reads its two bodies; two for each pair of bodies (or body and ground) that may touch in this step, which the
    input decides (``contacts`` for each body on average), one that finds the contact and one that answers it; and one
    for each body that adds up what its joints and contacts do to it and moves it. A tile is a part of the batch, so
    tiles depend on tiles of the same part.

    ``environment`` is one of `BODIES`. Raises UserError for parameters out of range.
    """
    if environment not in BODIES:
        raise UserError(f"there is no environment {environment!r}; there are {', '.join(BODIES)}")
    _check("rigid-bodies", tiles, steps=(steps, 1), contacts=(contacts, 0.0), tile_ns=(tile_ns, 0.0))
    program = Program(path, get(device), f"rigid-bodies {environment}", force)
    random = np.random.default_rng(seed)
    bodies, joints = BODIES[environment]
    size = {name: _tiles(random, tiles) for name in ("find", "answer", *(f"joint {j}" for j in range(joints)))}
    moves = [_tiles(random, tiles) for _ in range(bodies)]
    joined = [(j + 1, int(random.integers(j + 1))) for j in range(joints)]  # a tree: each body hangs on an earlier one
    state = [program.buffer(moves[b], "input") for b in range(bodies)]
    for _ in range(steps):
        acts: list[list[int]] = [[] for _ in range(bodies)]
        for j, pair in enumerate(joined):
            acting = program.same([state[b] for b in pair], size[f"joint {j}"], tile_ns, "joint")
            for b in pair:
                acts[b].append(acting)
        for _ in range(int(random.poisson(contacts * bodies))):
            touching = random.choice(bodies, 2, replace=False)
            pair = tuple(touching.tolist()) if random.random() < 0.5 else (int(touching[0]),)  # half with the ground
            contact = program.same([state[b] for b in pair], size["find"], tile_ns, "find contact")
            answer = program.same([contact, *(state[b] for b in pair)], size["answer"], tile_ns, "answer contact")
            for b in pair:
                acts[b].append(answer)
        state = [program.same([state[b], *acts[b]], moves[b], tile_ns / 2, "move") for b in range(bodies)]
    return program.close()


def _tiles(random: np.random.Generator, between: tuple[int, int]) -> int:
    low, high = between
    return round(float(np.exp(random.uniform(np.log(low), np.log(high)))))


def _check(workload: str, tiles: tuple[int, int] = TILES, **limits: tuple[float, float]) -> None:
    """Raises UserError for values below their least, and for sizes that are no range."""
    for name, (value, least) in limits.items():
        if not least <= value < np.inf:
            raise UserError(f"{workload}: {name} is {value:g}, expected at least {least:g}")
    if not 1 <= tiles[0] <= tiles[1]:
        raise UserError(f"{workload}: tiles is {tiles[0]} to {tiles[1]}, expected at least 1 and then no fewer")
