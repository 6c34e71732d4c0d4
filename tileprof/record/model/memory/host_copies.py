"""What follows from copies to the host: operators on them alone run there, and make no launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tileprof.record.model.memory.storage import Buffer


def keep(buffer: Buffer | None) -> None:
    """Note that a buffer is the host's."""
    if buffer is not None:
        buffer.on_host = buffer.host_copy = True


def moved(tensors: Sequence[torch.Tensor], places: Sequence[Buffer | None], inputs: int) -> list[torch.Tensor] | None:
    """Return the operands of an operator that the program has copied to the GPU before it; None if the operator runs
    on the host, as all its operands lie there. Its results come after ``inputs`` operands, and are the host's then.

    Numbers may stay on the host. A constant may be on either side: PyTorch would have told its device, which is the
    same on a CPU, so it is where the other operands are.
    """
    results = [place for place in places[inputs:] if place is not None]
    operands = [(t, p) for t, p in zip(tensors[:inputs], places[:inputs], strict=True) if p is not None]
    if not any(place.host_copy for _, place in operands):
        for place in results:
            place.is_constant = not inputs
        return []
    arrays = [(t, p) for t, p in operands if t.dim()]
    if all(place.host_copy or (place.is_constant and not place.writes) for _, place in arrays):
        for place in (*(p for _, p in arrays), *results):
            keep(place)
        return None
    return [tensor for tensor, place in arrays if place.host_copy]
