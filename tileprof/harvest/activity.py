"""The launches that the GPU ran for each of many calls, with grid, cluster and duration, as CUPTI reports them.

A marker kernel is launched between calls, so that launches in stream order fall into calls by position alone. The count
of markers must come out, or the slice is refused: a record that CUPTI dropped would shift all later ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BUFFER_BYTES: Final = 16 << 20
_MARKER: Final = "spin_kernel"
"""The kernel that ``torch.cuda._sleep`` launches; no operator launches it."""


@dataclass(frozen=True, slots=True)
class Activity:
    """One launch, copy or fill. Sizes in blocks, threads and bytes; ``grid`` and ``block`` are 0 for copies."""

    name: str
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    cluster: tuple[int, int, int] = (0, 0, 0)
    registers: int = 0
    shared_bytes: int = 0
    duration_ns: int = 0

    @property
    def identity(self) -> tuple[object, ...]:
        """All but the duration."""
        return self.name, self.grid, self.block, self.cluster, self.registers, self.shared_bytes


class Activities:
    """Runs calls under CUPTI. One of a process: CUPTI serves one tool.

    Raises UserError where CUPTI cannot be loaded.
    """

    def __init__(self) -> None:
        try:
            from cupti import cupti  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UserError(f"the harvest needs cupti-python ({error}): pip install cupti-python") from error
        import torch  # noqa: PLC0415 - heavy

        self._torch: Any = torch
        self._cupti: Any = cupti
        self._records: list[tuple[int, Activity]] = []
        self._buffers: list[Any] = []
        cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), self._completed)
        kinds = cupti.ActivityKind
        for kind in (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET):
            cupti.activity_enable(kind)

    def run(
        self, calls: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[list[Activity]]:
        """Return the launches of each call, in stream order. A call that raises has those it launched before.

        ``before`` runs before each call, and its launches are in no list. Raises UserError when CUPTI lost records.
        """
        sleep = self._torch.cuda._sleep  # noqa: SLF001 - the marker
        parts = 1 if before is None else 2
        self._synchronise()
        self._records.clear()
        for call in calls:
            if before is not None:
                sleep(1)
                before()
            sleep(1)
            call()
        self._synchronise()
        by_call: list[list[Activity]] = []
        for _, activity in sorted(self._records, key=lambda record: record[0]):
            if _MARKER in activity.name:
                by_call.append([])
            elif by_call:
                by_call[-1].append(activity)
        if len(by_call) != parts * len(calls):
            raise UserError(f"CUPTI reported {len(by_call)} of {parts * len(calls)} markers: records were lost")
        return by_call[parts - 1 :: parts]

    def _synchronise(self) -> None:
        self._torch.cuda.synchronize()
        self._cupti.activity_flush_all(1)

    def _completed(self, activities: list[Any]) -> None:
        kinds = self._cupti.ActivityKind
        for a in activities:
            if a.kind == kinds.CONCURRENT_KERNEL:
                activity = Activity(
                    a.name,
                    (a.grid_x, a.grid_y, a.grid_z),
                    (a.block_x, a.block_y, a.block_z),
                    (a.cluster_x, a.cluster_y, a.cluster_z),
                    a.registers_per_thread,
                    a.static_shared_memory + a.dynamic_shared_memory,
                    a.end - a.start,
                )
            elif a.kind == kinds.MEMCPY:
                activity = Activity("memcpy", duration_ns=a.end - a.start)
            else:
                activity = Activity("memset", duration_ns=a.end - a.start)
            self._records.append((a.start, activity))
