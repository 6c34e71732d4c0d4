"""Epilogues of a sum before it is stored: bias, activation or gate, and a residual that is added or multiplied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional

from tileprof.errors import UserError


def _gelu_tanh(value: Any) -> Any:
    return functional.gelu(value, approximate="tanh")


ACTIVATIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "none": lambda value: value,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": functional.silu,
}
"""Epilogues by their names in a policy, and `GATE`, which is not a function of one element."""

GATE: Final = "silu_gate"
"""silu of the left half of the columns times the right half; the result is half as wide."""


COMBINATIONS: Final = ("add", "multiply")
"""The ways to combine a residual with the result; ``multiply`` is the second product of a gated layer, whose gate
another stage has computed.
"""


def check(epilogue: str, combine: str = "add") -> None:
    """Raise `UserError` for an epilogue or a combination that no kernel has."""
    if combine not in COMBINATIONS:
        raise UserError(f"a residual is combined by {' or '.join(COMBINATIONS)}, not by {combine!r:.40}")
    if epilogue not in {*ACTIVATIONS, GATE}:
        raise UserError(f"there is no epilogue {epilogue!r}; known: {', '.join([*ACTIVATIONS, GATE])}")


def normalised(value: Any, mean: Any, var: Any, scale: Any, shift: Any, epsilon: float) -> Any:
    """Apply batch norm by running averages of the last dimension's channels."""
    return (value - mean) * (var + epsilon).rsqrt() * scale + shift


def apply(epilogue: str, value: Any) -> Any:
    """Return the activation of a whole row or of a tile that holds both halves side by side."""
    if epilogue == GATE:
        gate, up = value.chunk(2, dim=-1)
        return functional.silu(gate) * up
    return ACTIVATIONS[epilogue](value)


def finish(value: Any, epilogue: str, bias: Any, residual: Any, combine: str = "add") -> Any:
    """Apply bias, activation, residual, in this order."""
    value = value if bias is None else value + bias
    value = apply(epilogue, value)
    if residual is None:
        return value
    return value * residual if combine == "multiply" else value + residual
