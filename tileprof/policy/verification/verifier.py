"""Is a policy a superset of what the trace says? Tile by tile, through posts, values and orders.

A dependency is covered if the producer tile has surely ended when the consumer tile continues
(`tileprof.policy.verification.guarantees`); any other is *missing*, and a schedule exists in which the consumer reads
too early.

Deadlock: blocks are taken in stage order, within a stage in its tile order, and a tile holds its slot while it waits.
Then the tiles that a tile awaits were taken before it, whatever the number of slots, unless a stage may be dispatched
before its producers (no wait kernel) and can fill the device (`tileprof.policy.verification.residency`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.policy.format import Policy, PolicyError
from tileprof.policy.format.lowering import Waits, lower
from tileprof.policy.format.tile_numbers import grid_of, tile_numbers
from tileprof.policy.verification.guarantees import Guarantees
from tileprof.policy.verification.operand_guard import check_operands
from tileprof.policy.verification.overtaken import overtaken_launches
from tileprof.policy.verification.residency import blocked_producers

if TYPE_CHECKING:
    from tileprof.analysis import EdgeBlock, TileGraph

_MISSING = ["producer", "producer_tile", "consumer", "consumer_tile", "hazard", "reuse", "bytes"]


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on a policy.

    - ``missing``: one row per dependency that is not covered (stages and tile numbers)
    - ``renamable``: the same for dependencies that exist only because memory was recycled, and that do not exist if the
      runtime gives each stage its own memory
    - ``excess``: one row per edge of the policy, with the waits that guarantee nothing that the consumer needs
    - ``never``: sentences on waits that cannot end
    - ``needed``, ``covered``: numbers of dependencies between stages, and of those that are guaranteed
    """

    missing: pd.DataFrame
    renamable: pd.DataFrame
    excess: pd.DataFrame
    never: tuple[str, ...]
    needed: int
    covered: int

    @property
    def sound(self) -> bool:
        """Whether every dependency is waited for and every wait ends."""
        return self.missing.empty and not self.never


def verify(
    policy: Policy, graph: TileGraph, launches: Sequence[int] | None = None, *, excess: bool = True
) -> Verification:
    """Check ``policy`` against a tile graph; ``launches`` binds stages to launches (None: those that the policy names).

    ``excess``: count superfluous waits too; else that table is empty.

    Raises `PolicyError` where the policy is for another shape (grids, or operands of its guard) or its stages are not
    in the trace.
    """
    bound = _bind(policy, graph, launches)
    if graph.source is not None:
        check_operands(policy, graph.source, bound)
    lowered = lower(policy)
    needs = _needs(graph, bound)
    guaranteed = Guarantees(needs)
    for waits in sorted(lowered, key=lambda w: w.edge.consumer):
        guaranteed.add(waits, (waits.edge.producer, waits.edge.consumer))
    parts: dict[str, list[Any]] = {name: [] for name in _MISSING}
    covered = dependencies = 0
    for (i, j), needed_pairs in needs.items():
        for hazard, reuse, parent, child, size in needed_pairs:
            guaranteed_rows = guaranteed.holds(i, j, parent, child)
            dependencies += len(parent)
            covered += int(guaranteed_rows.sum())
            uncovered_rows = ~guaranteed_rows
            count = int(uncovered_rows.sum())
            row = (
                np.full(count, i),
                parent[uncovered_rows],
                np.full(count, j),
                child[uncovered_rows],
                [hazard] * count,
            )
            for name, values in zip(_MISSING, (*row, np.full(count, reuse), size[uncovered_rows]), strict=True):
                parts[name].append(values)
    uncovered = {name: np.concatenate(values) if values else np.empty(0, np.int64) for name, values in parts.items()}
    recycled = uncovered["reuse"].astype(bool)
    renamed = bool(policy.guard.get("renamed", False))
    never = (
        *_endless(policy, lowered),
        *_may_deadlock(policy, graph, bound, lowered),
        *_overtaken(graph, bound, renamed=renamed),
    )
    return Verification(
        _rows(uncovered, ~recycled if renamed else np.ones_like(recycled)),
        _rows(uncovered, recycled),
        _excess(lowered if excess else [], needs),
        never,
        dependencies,
        covered,
    )


def _rows(columns: Mapping[str, NDArray[Any]], mask: NDArray[np.bool_]) -> pd.DataFrame:
    return pd.DataFrame({name: values[mask] for name, values in columns.items()})


def _bind(policy: Policy, graph: TileGraph, launches: Sequence[int] | None) -> list[int]:
    stage_launches = [s.launch for s in policy.stages] if launches is None else list(launches)
    if len(stage_launches) != len(policy.stages):
        raise PolicyError(
            f"{len(stage_launches)} launches are named for {len(policy.stages)} stages; name one launch per stage"
        )
    bound: list[int] = []
    for number, (stage, launch) in enumerate(zip(policy.stages, stage_launches, strict=True)):
        if launch is None:
            raise PolicyError(
                f"stage {number} ({stage.name}) names no launch; say which launches the stages are: --launches N,N,…"
            )
        if not 0 <= launch < len(graph.launches):
            raise PolicyError(
                f"stage {number} ({stage.name}) is launch {launch}; the trace has {len(graph.launches)} launches"
            )
        grid = grid_of(graph, launch)
        if grid != stage.grid:
            raise PolicyError(
                f"stage {number} ({stage.name}) has a grid of {_by(stage.grid)} tiles; launch {launch} has "
                f"{_by(grid)}: "
                "the policy is for another shape"
            )
        bound.append(launch)
    if any(a >= b for a, b in pairwise(bound)):
        raise PolicyError(f"stages are launches {bound}; they must be in issue order")
    return bound


def _by(grid: tuple[int, ...]) -> str:
    return " x ".join(map(str, grid))


_Needs = dict[tuple[int, int], list[tuple[str, bool, I64, I64, I64]]]


def _needs(graph: TileGraph, bound: list[int]) -> _Needs:
    """Return dependencies between stages: (hazard, reuse, producer tile, consumer tile, bytes) in policy numbers."""
    stage_of = {launch: number for number, launch in enumerate(bound)}
    links = graph.links
    between = np.isin(links["producer"].to_numpy(), bound) & np.isin(links["consumer"].to_numpy(), bound)
    inside = links if between.all() else links[between]
    numbers = {launch: tile_numbers(graph, launch) for launch in bound}
    needs: _Needs = {}
    columns = (inside[name].tolist() for name in ("producer", "consumer", "hazard", "reuse", "block"))
    for producer, consumer, hazard, reuse, number in zip(*columns, strict=True):
        block: EdgeBlock = graph.blocks[number]
        parent, child, row = block.edges()
        part = (str(hazard), bool(reuse), numbers[producer][parent], numbers[consumer][child], block.bytes[row])
        needs.setdefault((stage_of[producer], stage_of[consumer]), []).append(part)
    return needs


def _endless(policy: Policy, lowered: list[Waits]) -> list[str]:
    sentences = []
    for number, waits in enumerate(lowered):
        beyond = np.flatnonzero(waits.value > waits.posts[waits.semaphore])
        if len(beyond):
            owner, _ = ragged(np.diff(waits.indptr))
            first = beyond[0]
            stage = policy.stages[waits.edge.consumer]
            sentences.append(
                f"edge {number}: {len(beyond)} waits never end; tile {owner[first]} of {stage.name} awaits value "
                f"{waits.value[first]} on semaphore {waits.semaphore[first]}, which "
                f"{waits.posts[waits.semaphore[first]]} tiles post"
            )
    return sentences


def _may_deadlock(policy: Policy, graph: TileGraph, bound: list[int], lowered: list[Waits]) -> tuple[str, ...]:
    """Return why waiting blocks may fill the GPU.

    A policy without a wait kernel relies on which blocks reside together, and is for one device alone.
    """
    if policy.options.wait_kernel or graph.source is None:
        return ()
    device = graph.device
    for name, here in (("device", device.name), ("architecture", device.architecture)):
        verified = policy.guard.get(name, here)
        if verified != here:
            sentence = (
                f"the policy does without a wait kernel because of what resides on {verified!r:.80}; this trace is of "
                f"{here}, "
                "for which `tileprof export` makes another"
            )
            return (sentence,)
    return blocked_producers(policy, graph, bound, lowered)


def _overtaken(graph: TileGraph, bound: list[int], *, renamed: bool) -> list[str]:
    """Return a launch between the stages that depends on one and that a later one depends on would be overtaken."""
    return [
        f"launch {launch} lies between the stages, needs one of them and is needed by another, but is not a stage: add "
        "it to the policy"
        for launch in overtaken_launches(graph, bound, renamed=renamed)
    ]


def _excess(lowered: list[Waits], needs: _Needs) -> pd.DataFrame:
    rows = []
    for number, waits in enumerate(lowered):
        key = waits.edge.producer, waits.edge.consumer
        semaphores = len(waits.posts)
        owner, _ = ragged(np.diff(waits.indptr))
        wait_keys = np.unique(owner * semaphores + waits.semaphore)
        parent, child = _pairs(needs.get(key, []), len(waits.of))
        through = child * semaphores + waits.of[parent]
        place = np.minimum(np.searchsorted(wait_keys, through), max(0, len(wait_keys) - 1))
        is_awaited = wait_keys[place] == through if len(wait_keys) else np.zeros(len(through), bool)
        serving = np.zeros(len(wait_keys), bool)
        serving[place[is_awaited]] = True
        tiles = int(waits.posts[waits.semaphore].sum())
        rows.append((number, *key, len(owner), int((~serving).sum()), tiles, tiles - int(is_awaited.sum())))
    columns = ["edge", "producer", "consumer", "waits", "idle_waits", "awaited_tiles", "excess_tiles"]
    return pd.DataFrame(rows, columns=columns)


def _pairs(parts: list[tuple[str, bool, I64, I64, I64]], width: int) -> tuple[I64, I64]:
    """Return producer and consumer tiles of all dependencies, each pair once whatever its hazards."""
    if len(parts) == 1:
        return parts[0][2], parts[0][3]
    keys = np.unique(np.concatenate([np.empty(0, np.int64), *(c * width + p for _, _, p, c, _ in parts)]))
    return keys % width, keys // width
