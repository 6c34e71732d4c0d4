"""A policy beside the dependencies of its launches: whether it is sound, and what its waits cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from tileprof.errors import UserError
from tileprof.policy.format import Policy, Stage
from tileprof.policy.synthesis.prediction import Predictor
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.operand_guard import remarks
from tileprof.policy.verification.verifier import Verification, verify

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph


@dataclass(frozen=True, slots=True)
class Assessment:
    """The verdict on a policy, with modelled times in microseconds.

    The times are those of the launches in stream order, under the policy (None: it cannot run to its end), and with
    one wait per dependency. ``corrected``: for an unsound policy, a sound one for the same launches, if there is one.
    ``remarks``: sentences on how the policy's guard differs from the trace.
    """

    policy: Policy
    launches: tuple[int, ...]
    verdict: Verification
    stream_us: float
    policy_us: float | None
    exact_us: float
    corrected: Policy | None
    remarks: tuple[str, ...] = ()

    @property
    def excess_us(self) -> float | None:
        """Return what the waits that no dependency asks for cost; negative where fewer, coarser waits are cheaper."""
        return None if self.policy_us is None else self.policy_us - self.exact_us

    def missing(self) -> pd.DataFrame:
        """Return one row per missing dependency: names and grid coordinates of both tiles, hazard, bytes; most bytes
        first.
        """
        return _with_tiles(self.policy, self.verdict.missing)

    def to_json(self, rows: int) -> dict[str, Any]:
        """Return every number as JSON values, and the first ``rows`` missing dependencies."""
        verdict = self.verdict
        missing = self.missing()
        return {
            "schema": "tileprof verify",
            "version": 1,
            "sound": verdict.sound,
            "launches": list(self.launches),
            "dependencies": verdict.needed,
            "covered": verdict.covered,
            "missing_count": len(missing),
            "missing": missing.head(rows).to_dict("records"),
            "never": list(verdict.never),
            "remarks": list(self.remarks),
            "excess": verdict.excess.to_dict("records"),
            "renamable_count": len(verdict.renamable),
            "model_us": {"stream": self.stream_us, "policy": self.policy_us, "exact": self.exact_us},
            "corrected": None if self.corrected is None else self.corrected.prediction,
        }


def assess(policy: Policy, graph: TileGraph, launches: Sequence[int] | None = None) -> Assessment:
    """Verify a policy, and model its time; raises `PolicyError` where it is for another shape or another trace."""
    verdict = verify(policy, graph, launches)
    bound = [int(n) for n in launches] if launches is not None else [int(s.launch or 0) for s in policy.stages]
    predict = Predictor(graph)
    renamed = bool(policy.guard.get("renamed", False))
    modelled = predict(policy, bound)
    return Assessment(
        policy,
        tuple(bound),
        verdict,
        modelled.stream_ns / 1000,
        None if verdict.never else modelled.policy_ns / 1000,
        predict.exact_ns(bound, renamed=renamed) / 1000,
        None if verdict.sound else _sound_policy(graph, bound, predict, renamed=renamed),
        () if graph.source is None else remarks(policy, graph.source, bound),
    )


def _sound_policy(graph: TileGraph, launches: list[int], predict: Predictor, *, renamed: bool) -> Policy | None:
    try:
        return synthesise(graph, launches, renamed=renamed, predictor=predict)
    except UserError:
        return None


def _with_tiles(policy: Policy, missing: pd.DataFrame) -> pd.DataFrame:
    rows = missing.sort_values("bytes", ascending=False, kind="stable")
    by_kind: dict[str, list[Any]] = {}
    for side in ("producer", "consumer"):
        stages = [policy.stages[int(n)] for n in rows[side]]
        tiles = [int(n) for n in rows[f"{side}_tile"]]
        by_kind[side] = [stage.name for stage in stages]
        by_kind[f"{side}_tile"] = [_coordinates(stage, tile) for stage, tile in zip(stages, tiles, strict=True)]
    by_kind["hazard"] = [str(h) for h in rows["hazard"]]
    by_kind["bytes"] = [int(b) for b in rows["bytes"]]
    return pd.DataFrame(by_kind)


def _coordinates(stage: Stage, tile: int) -> list[int]:
    gx, gy, _ = stage.grid
    return [tile % gx, tile // gx % gy, tile // (gx * gy)]
