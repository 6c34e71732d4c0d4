"""The scheduler of a policy where the user names none: the one with the best prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tileprof.errors import UserError
from tileprof.policy.format import Policy
from tileprof.runtime.chain import Chain
from tileprof.runtime.persistent.cost import GRAPH_GAP_US
from tileprof.runtime.persistent.plan import Plan
from tileprof.runtime.persistent.predict import modelled
from tileprof.runtime.persistent.task_lists import plan_of


@dataclass(frozen=True, slots=True)
class Choice:
    """A scheduler by name and the reason for it; for the persistent kernel, the plan that was judged."""

    scheduler: str
    reason: str
    plan: Plan | None = None


def choose(policy: Policy, chain: Chain, capability: tuple[int, int], clusters: Callable[[int], int]) -> Choice:
    """Return ``persistent`` where that kernel takes the chain and its model expects a gain, ``cusync`` where the
    policy's own prediction does, otherwise stream order.

    ``clusters``: how many clusters of a number of blocks the GPU holds at a time.
    """
    if capability != (9, 0):
        return _by_prediction(policy, f"this GPU has compute capability {capability[0]}.{capability[1]}")
    try:
        plan = plan_of(policy, chain, clusters=clusters)
    except UserError as error:
        return _by_prediction(policy, str(error))
    model = modelled(plan, GRAPH_GAP_US)
    gain = 1 - model.together_us / model.alone_us
    if gain > 0:
        return Choice("persistent", f"modelled {100 * gain:.1f}% faster than its stages one after the other", plan)
    return Choice("persistent-stages", f"modelled to gain nothing by overlap ({100 * gain:.1f}%)", plan)


def _by_prediction(policy: Policy, reason: str) -> Choice:
    gain = policy.prediction.get("gain_percent")
    if gain is None:
        return Choice("graph", f"{reason}; and the policy holds no prediction, so that stream order is safe")
    expected = f"the policy's prediction is {gain:+g}% against stream order"
    return Choice("cusync" if gain > 0 else "graph", f"{reason}; {expected}")
