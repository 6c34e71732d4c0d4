"""Which scheduler a policy is run under when nobody says: the one that its prediction speaks for."""

from __future__ import annotations

from dataclasses import dataclass

from tileprof.errors import UserError
from tileprof.policy.format import Policy
from tileprof.runtime.chain import Chain
from tileprof.runtime.persistent.cost import GRAPH_GAP_US, clusters_on
from tileprof.runtime.persistent.lower import plan_of
from tileprof.runtime.persistent.predict import modelled_stage_us, predicted_us


@dataclass(frozen=True, slots=True)
class Choice:
    """A scheduler by name, and why it."""

    scheduler: str
    reason: str


def choose(policy: Policy, chain: Chain, capability: tuple[int, int], sms: int) -> Choice:
    """``persistent`` where that kernel takes the chain and its model expects a gain, ``cusync`` where the policy's own
    prediction does, otherwise stream order.
    """
    if capability != (9, 0):
        return _of_the_policy(policy, f"this GPU has compute capability {capability[0]}.{capability[1]}")
    try:
        plan = plan_of(policy, chain, clusters=clusters_on(sms))
    except UserError as error:
        return _of_the_policy(policy, str(error))
    alone_us = modelled_stage_us(plan, GRAPH_GAP_US)
    gain = 1 - predicted_us(plan, alone_us, GRAPH_GAP_US) / sum(alone_us)
    if gain > 0:
        return Choice("persistent", f"modelled {100 * gain:.1f}% faster than its stages one after the other")
    return Choice("persistent-stages", f"modelled to gain nothing by overlap ({100 * gain:.1f}%)")


def _of_the_policy(policy: Policy, reason: str) -> Choice:
    gain = policy.prediction.get("gain_percent")
    if gain is None:
        return Choice("graph", f"{reason}; and the policy holds no prediction, so that stream order is safe")
    expected = f"the policy's prediction is {gain:+g}% against stream order"
    return Choice("cusync" if gain > 0 else "graph", f"{reason}; {expected}")
