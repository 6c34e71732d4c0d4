"""A symbolic policy as a callable: each call takes the policy of the size that its tensors have."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

from tileprof.errors import UserError
from tileprof.policy.format import Policy
from tileprof.policy.format.symbolic import SymbolicPolicy
from tileprof.runtime.chain import Chain

MOST_KEPT: Final = 16
"""Sizes whose pipelines are kept; the one that was used least recently goes first."""


class SizedPipeline:
    """Pipelines of one policy file, one for each size that comes up.

    ``inputs`` are those of the recorded size. Calls take the inputs by name or position and return what the pipeline of
    their size returns; ``make`` makes it of that size's policy at the first such call, which a GPU's compiles. A size
    outside the guard runs in stream order by plain PyTorch, with a warning, as does whatever else does not fit.
    """

    def __init__(self, policy: SymbolicPolicy, make: Callable[[Policy], Any]) -> None:
        self.policy, self._make = policy, make
        recorded = policy.at()
        operator = Chain.of_policy(recorded).operators[0]
        role = "a" if "a" in operator.views() else "x"
        self._sized = operator.views()[role].tensor
        self._pipelines = {policy.recorded: make(recorded)}
        self.inputs, self.outputs = self._recorded.inputs, self._recorded.outputs

    @property
    def _recorded(self) -> Any:
        return self._pipelines[self.policy.recorded]

    def at(self, size: int) -> Any:
        """Return the pipeline of a size; raises `UserError` for one outside the guard."""
        if size not in self._pipelines:
            pipeline = self._make(self.policy.at(size))
            if len(self._pipelines) == MOST_KEPT:
                del self._pipelines[next(n for n in self._pipelines if n != self.policy.recorded)]
            self._pipelines[size] = pipeline
        elif size != self.policy.recorded:
            self._pipelines[size] = self._pipelines.pop(size)
        return self._pipelines[size]

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        from tileprof.runtime.pipeline import FellBackWarning  # noqa: PLC0415 - pipeline imports this module

        inputs = dict(zip(self.inputs, tensors, strict=False)) | named
        tensor = inputs.get(self._sized)
        if (
            len(tensors) + len(named) != len(inputs)
            or len(tensors) > len(self.inputs)
            or getattr(tensor, "ndim", 0) < 1
        ):
            return self._recorded(*tensors, **named)  # says what is wrong
        size = int(inputs[self._sized].shape[0])
        reason = self.policy.symbol.refusal(size)
        if reason is None:
            return self.at(size)(**inputs)
        if wrong_names := sorted(self.inputs.keys() ^ inputs.keys()):
            raise UserError(
                f"the pipeline takes {', '.join(self.inputs)}; {', '.join(wrong_names)} is missing or no input"
            )
        warnings.warn(f"{reason}; the stages run one after the other, by PyTorch", FellBackWarning, stacklevel=2)
        results = self._recorded.reference(inputs)
        values = tuple(results[name] for name in self.outputs)
        return values[0] if len(values) == 1 else values
