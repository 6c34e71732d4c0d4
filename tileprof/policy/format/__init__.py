"""The policy format: documents, expressions, orders and numbers of tiles, and the waits of an edge as arrays."""

from tileprof.policy.format.document import (
    POLICY_VERSION,
    Edge,
    Options,
    Policy,
    PolicyError,
    Range,
    Semaphores,
    Stage,
    WaitTable,
    from_dict,
    load_policy,
    to_dict,
)

__all__ = [
    "POLICY_VERSION",
    "Edge",
    "Options",
    "Policy",
    "PolicyError",
    "Range",
    "Semaphores",
    "Stage",
    "WaitTable",
    "from_dict",
    "load_policy",
    "to_dict",
]
