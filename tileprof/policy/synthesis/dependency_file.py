"""Dependencies written by hand: a second way to a policy, with or without a trace.

After cuSyncGen's language (Jangda et al., CGO 2024, section IV-A): grids of tiles, and which tiles of one a tile of
another needs. A file of lines, ``#`` starts a comment::

    tileprof dependencies 1
    grid up    24 x 4                        # a stage of 24 x 4 tiles; stages run in this order
    grid down  48 x 4           launch 13    # the launch of a trace that it stands for, if any
    dep down on up(0..23, y)                 # tile (x, y, z) of down needs the tiles (0, y) to (23, y) of up

and, for the halo of a convolution and for Q, K and V side by side::

    dep conv2 on conv1(max(0, x - 1)..min(48, x + 1), 0..3)
    dep scores on qkv(x..x + 16 step 8, y)

Each axis of the producer takes an expression in x, y and z of the consumer's tile, or two with ``..`` between them
(both ends belong to it; from a greater to a smaller one is empty) and perhaps ``step N``; axes left out are 0.
Expressions are those of `tileprof.policy.format.expression`. Several ``dep`` lines between two grids add up. A tile
outside a grid is an error, not a clipped window.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.arrays.grids import places
from tileprof.arrays.ragged import owners
from tileprof.errors import UserError
from tileprof.policy.format import Edge, Policy, Range, Semaphores, Stage
from tileprof.policy.format.expression import parse
from tileprof.policy.format.lowering import lower
from tileprof.policy.synthesis.semaphore_groupings import edge_for, groupings
from tileprof.policy.verification.relation_graph import graph_of_waits
from tileprof.policy.verification.verifier import verify

VERSION: Final = 1
_MOST_CHARACTERS: Final = 1_000_000
_MOST_TILES: Final = 50_000_000
"""Tiles of a grid, and dependencies of a line: a relation is worked out tile by tile."""

_TILE = ("x", "y", "z")
_NAME = r"[A-Za-z_][A-Za-z0-9_.-]{0,99}"
_GRID = re.compile(rf"grid\s+({_NAME})\s+(\d+(?:\s*x\s*\d+)*)(?:\s+launch\s+(\d{{1,9}}))?", re.ASCII)
_DEP = re.compile(rf"dep\s+({_NAME})\s+on\s+({_NAME})\s*\((.*)\)", re.ASCII)


class DependencyError(UserError):
    """A file of dependencies that breaks the language, or names a tile that does not exist."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Stages in order, and for each line of dependencies an edge that waits for every tile by its own semaphore."""

    stages: tuple[Stage, ...]
    semaphores: tuple[Semaphores, ...]
    edges: tuple[Edge, ...]

    def policy(self) -> Policy:
        """Return the policy with the fewest semaphores that waits for these tiles and no others."""
        needs = graph_of_waits(Policy(self.stages, self.semaphores, self.edges))
        policy = Policy(self.stages, (), (), guard={"renamed": True})
        links = needs.links.sort_values(["consumer", "producer"], ascending=[True, False])
        columns = (links[name].tolist() for name in ("producer", "consumer", "block"))
        for producer, consumer, block in zip(*columns, strict=True):
            pair = producer, consumer
            missing = verify(policy, needs, range(len(self.stages))).missing
            if ((missing["producer"] == pair[0]) & (missing["consumer"] == pair[1])).any():
                policy = _with(policy, pair, needs.blocks[block])
        return replace(policy, notes=("from dependencies written by hand, not from a trace",))


def load_dependencies(path: Path | str) -> Policy:
    """Return the policy of a file; raises `DependencyError` naming the file, the line and what is wrong with it."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except OSError as error:
        raise DependencyError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DependencyError(f"{path} is not a text file: {error}") from None
    if len(text) > _MOST_CHARACTERS:
        raise DependencyError(f"{path} is longer than {_MOST_CHARACTERS:,} characters; dependencies are not")
    try:
        return parse_dependencies(text).policy()
    except UserError as error:
        raise DependencyError(f"{path}: {error}") from None


def parse_dependencies(text: str) -> Dependencies:
    """Return the dependencies in ``text``; raises `DependencyError` naming the line."""
    stages: list[Stage] = []
    semaphores: list[Semaphores] = []
    edges: list[Edge] = []
    has_header = False
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        try:
            if not has_header:
                _check_version(words)
                has_header = True
            elif words.startswith("grid"):
                stages.append(_grid(words, stages))
            else:
                array, edge = _dep(words, stages)
                edges.append(replace(edge, semaphores=len(semaphores)))
                semaphores.append(array)
        except UserError as error:
            raise DependencyError(f"line {number}: {error}") from None
    if not has_header or not edges:
        raise DependencyError(
            "it holds no dependencies; the first line is `tileprof dependencies 1`, then grid and dep lines"
        )
    return Dependencies(tuple(stages), tuple(semaphores), tuple(edges))


def _check_version(words: str) -> None:
    match = re.fullmatch(r"tileprof dependencies (\d{1,9})", words)
    if match is None:
        raise DependencyError(
            f"a file of dependencies begins with `tileprof dependencies {VERSION}`, not {words[:60]!r}"
        )
    if int(match[1]) != VERSION:
        raise DependencyError(f"dependencies of version {match[1]}; this tileprof reads version {VERSION}")


def _grid(words: str, stages: list[Stage]) -> Stage:
    match = _GRID.fullmatch(words)
    sizes = [] if match is None else [word.strip() for word in match[2].split("x")]
    if match is None or len(sizes) > 3 or max(map(len, sizes)) > 10:
        raise DependencyError(
            f"{words[:80]!r} is not a grid; write for example: grid up 24 x 4, or grid up 24 x 4 launch 12"
        )
    x, y, z = (*(int(s) for s in sizes), 1, 1)[:3]
    if not 0 < x * y * z <= _MOST_TILES:
        raise DependencyError(f"a grid of {x} x {y} x {z} tiles; a grid has 1 to {_MOST_TILES:,}")
    if match[1] in {stage.name for stage in stages}:
        raise DependencyError(f"there are two grids named {match[1]}")
    return Stage(match[1], (x, y, z), None if match[3] is None else int(match[3]))


def _dep(words: str, stages: list[Stage]) -> tuple[Semaphores, Edge]:
    match = _DEP.fullmatch(words)
    if match is None:
        raise DependencyError(
            f"{words[:80]!r} is neither a grid nor a dependency; write for example: dep down on up(0..23, y)"
        )
    numbers = {stage.name: n for n, stage in enumerate(stages)}
    for name in match.group(1, 2):
        if name not in numbers:
            grids = ", ".join(numbers) or "none yet"
            raise DependencyError(f"there is no grid {name} above this line; known: {grids}")
    consumer, producer = numbers[match[1]], numbers[match[2]]
    if producer >= consumer:
        raise DependencyError(f"{match[1]} cannot depend on {match[2]}: stages run in the order of their grid lines")
    texts = _split(match[3])
    if len(texts) > 3:
        raise DependencyError(f"{match[2]} is given {len(texts)} axes; a grid has at most three")
    u, v, w = (Range.parse(text) for text in (*texts, "0", "0")[:3])
    x, y, z = (parse(name, _TILE) for name in _TILE)
    array = Semaphores(producer, stages[producer].grid, (x, y, z))
    edge = Edge(producer, consumer, ("RAW",), "tile", 0, (u, v, w), parse("1", _TILE))
    _check_tiles(stages, array, edge)
    return array, edge


def _split(text: str) -> list[str]:
    """Split at the commas outside parentheses: ``min(3, y)`` is one axis."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _check_tiles(stages: list[Stage], array: Semaphores, edge: Edge) -> None:
    try:
        waits = lower(Policy(tuple(stages), (array,), (edge,)))[0]
    except UserError as error:
        message = str(error).replace("edge 0, awaited by stage", "needed by grid")
        raise DependencyError(message) from None
    if len(waits.semaphore) == 0:
        names = [stages[number].name for number in (edge.consumer, edge.producer)]
        raise DependencyError(
            f"no tile of {names[0]} needs any of {names[1]} by this line; `..` goes from the smaller to the greater"
        )
    if len(waits.semaphore) > _MOST_TILES:
        raise DependencyError(f"{len(waits.semaphore):,} dependencies; at most {_MOST_TILES:,} are worked out")


def _with(policy: Policy, pair: tuple[int, int], block: EdgeBlock) -> Policy:
    """Return the policy with an edge whose waits are exactly ``block``, on as few semaphores as that takes."""
    grids = [policy.stages[stage].grid for stage in pair]
    producer, consumer = places(grids[0]), places(grids[1])
    owner = owners(block.indptr)
    best: tuple[Semaphores, Edge] | None = None
    for grouping in groupings(grids[0], producer[block.parent], owner):
        if best is not None and grouping.count >= best[0].count:
            continue
        array, edge = edge_for(block, grouping, producer, consumer, pair, ("RAW",))
        if _awaited_posts(Policy(policy.stages, (array,), (replace(edge, semaphores=0),))) == block.count:
            best = array, edge
    assert best is not None, "one semaphore per tile is always exact"
    array, edge = best
    arrays = policy.semaphores if array in policy.semaphores else (*policy.semaphores, array)
    placed = replace(edge, semaphores=arrays.index(array))
    return replace(policy, semaphores=arrays, edges=(*policy.edges, placed))


def _awaited_posts(policy: Policy) -> int:
    waits = lower(policy)[0]
    return int(waits.posts[waits.semaphore].sum())
