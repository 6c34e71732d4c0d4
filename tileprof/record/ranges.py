"""The message of an empty recording that was limited to NVTX ranges: the ranges that the program opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_MOST_NAMES: Final = 12


def why_empty(pattern: str, matched: int, names: Mapping[str, int], *, others: bool = False) -> str:
    """Return a sentence for a recording without a launch.

    ``names`` are those of the ranges that were opened, with how often; ``others``: there were more. ``matched`` is how
    many of them ``pattern`` (of ``--nvtx``) matched.
    """
    if matched:
        return (
            f"No kernel that was to be recorded was launched inside the {matched:,} NVTX ranges that match --nvtx "
            f"{pattern!r}. A range counts while it is open on the CPU: what it launches earlier or later is outside."
        )
    if not names:
        return (
            f"The program opened no NVTX range, so none matches --nvtx {pattern!r}. Only NVTX 3 is heard, as PyTorch, "
            "the Python package nvtx and nvtx3/nvToolsExt.h have it, and by the model recorder only torch.cuda.nvtx. "
            "Without --nvtx, everything is recorded."
        )
    most = sorted(names.items(), key=lambda item: (-item[1], item[0]))[:_MOST_NAMES]
    opened_ranges = ", ".join(f"{name!r} ({times:,} times)" if times > 1 else repr(name) for name, times in most)
    more = " and others" if others or len(names) > _MOST_NAMES else ""
    return f"No NVTX range of the program matches --nvtx {pattern!r}. It opened {opened_ranges}{more}."
