"""Plans of operators whose launches depend on the values of tensors: used again where those values are the same."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from tileprof.record.model.calls.launch_plans import KernelPlan

_MOST_BYTES: Final = 1 << 20
"""Most bytes of one tensor's values; beyond, hashing takes as long as planning."""
_MOST_PLANS: Final = 4096
"""Plans that are kept; all are forgotten beyond, as a program that never repeats its values needs none."""


class PlansByValue:
    """Plans under the layout of a call and the values that its tile model asked for.

    A model is a function of the layout and of what it asks for. So a plan holds for another call of the same layout if
    the tensors that were asked for then hold the same values now.
    """

    def __init__(self) -> None:
        self._plans: dict[Hashable, list[KernelPlan]] = {}
        self._read: dict[Hashable, tuple[int, ...]] = {}

    def clear(self) -> None:
        """Forget all plans."""
        self._plans.clear()
        self._read.clear()

    def find(
        self, layout: Hashable, tensors: Sequence[torch.Tensor], earlier: Mapping[int, torch.Tensor | None]
    ) -> list[KernelPlan] | None:
        """Return the plan of an equal call; None where there was none.

        ``earlier``: by id, what the tensors that the operator wrote to held before.
        """
        read = self._read.get(layout)
        digest = None if read is None else _digest(read, tensors, earlier)
        return None if digest is None else self._plans.get((layout, read, digest))

    def keep(
        self,
        layout: Hashable,
        read: set[int],
        tensors: Sequence[torch.Tensor],
        earlier: Mapping[int, torch.Tensor | None],
        plan: list[KernelPlan],
    ) -> None:
        """Remember the plan of a call; ``read``: the places of the tensors whose values its model asked for."""
        places = tuple(sorted(read))
        digest = _digest(places, tensors, earlier)
        if digest is None:
            return
        if len(self._plans) >= _MOST_PLANS:
            self.clear()
        self._read[layout] = places
        self._plans[layout, places, digest] = plan


def _digest(
    read: tuple[int, ...], tensors: Sequence[torch.Tensor], earlier: Mapping[int, torch.Tensor | None]
) -> bytes | None:
    """Return a digest of the values of the tensors at these places; None where they are many."""
    total = blake2b(digest_size=16)
    for place in read:
        tensor: Any = earlier.get(id(tensors[place]), tensors[place])
        if tensor is None:  # floating-point numbers that were overwritten: models get none either
            total.update(b"-")
            continue
        if tensor.numel() * tensor.element_size() > _MOST_BYTES:
            return None
        try:
            with _disable_current_modes():
                total.update(tensor.detach().cpu().numpy().tobytes())
        except (RuntimeError, TypeError):  # no values that numpy can hold: a model cannot have read them either
            return None
    return total.digest()
