"""Chooses the tiles that the persistent kernel would take for stages, and models what it saves over their launches in a
row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tileprof.errors import UserError
from tileprof.policy.format import Policy
from tileprof.runtime.chain import Chain
from tileprof.runtime.persistent.cost import GRAPH_GAP_US, clusters_on
from tileprof.runtime.persistent.predict import modelled
from tileprof.runtime.persistent.task_lists import plan_of
from tileprof.runtime.persistent.tile_choice import tilings


@dataclass(frozen=True, slots=True)
class Suited:
    """Tiles ``[rows, columns]`` by stage, and modelled microseconds: one launch per stage, and all in one launch."""

    names: tuple[str, ...]
    tiles: tuple[tuple[int, int], ...]
    alone_us: float
    together_us: float


def suited(policy: Policy, sms: int, *, thorough: bool = False) -> Suited | None:
    """Return the best tiles of the model for the policy's stages on a device of ``sms`` SMs with compute capability
    9.0.

    The policy needs stages with operators alone. ``thorough``: every number of blocks and height is planned with its
    waits, not the one that the cost model likes best. None where the persistent kernel does not take them.
    """
    try:
        chain = Chain.of_policy(policy)
        candidates = tilings(chain, clusters_on(sms))
    except UserError:
        return None
    if not thorough:
        candidates = [min(candidates, key=lambda each: each[:2])]
    fits = [fit for _, _, tiled in candidates if (fit := _plan_of(tiled, sms)) is not None]
    return min(fits, key=lambda fit: fit.together_us, default=None)


def _plan_of(chain: Chain, sms: int) -> Suited | None:
    clusters = clusters_on(sms)
    try:
        plan = plan_of(chain.policy(), chain, clusters=clusters)
    except UserError:
        return None
    model = modelled(plan, GRAPH_GAP_US)
    tiles = tuple((o.tile[0], o.tile[1]) for o in (stage.operator for stage in plan.stages))
    names = tuple(operator.NAME for operator in chain.operators)
    return Suited(names, tiles, model.alone_us, model.together_us)


def modelled_us(policy: Policy, sms: int) -> float | None:
    """Return microseconds of the policy in one launch of the persistent kernel, by its model; None where it takes no
    such policy.
    """
    try:
        plan = plan_of(policy, Chain.of_policy(policy), clusters=clusters_on(sms))
    except UserError:
        return None
    return modelled(plan, GRAPH_GAP_US).together_us


def with_exact_waits(policy: Policy) -> Policy:
    """Return the same stages with the semaphores and waits that their operators' own tiles ask for."""
    exact = Chain.of_policy(policy).policy()
    return replace(policy, semaphores=exact.semaphores, edges=exact.edges)
