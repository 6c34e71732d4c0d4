"""A layer of experts on one GPU: memory, launches, and what a wait that gave up has left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from tileprof.errors import UserError
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.copilot.copilot import Copilot
from tileprof.runtime.errors import WaitTimeoutError
from tileprof.runtime.experts.experts_build import KERNEL, compiled_pilot
from tileprof.runtime.experts.shape import ROWS, Dealing, ExpertsShape
from tileprof.runtime.persistent.driver import MAP_WORDS, Arguments
from tileprof.runtime.persistent.plan import K_BLOCK

THREADS: Final = 384
_WORDS: Final = 4 * MAP_WORDS + 16
_DTYPES: Final = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_KINDS: Final = 3
"""Kinds of tasks: those that route, of the inner layer, of the result."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """``launches``: one for each kind of task, or one for all. ``full_grid``: a block for every task that may exist."""

    dealing: Dealing = Dealing.LISTS
    launches: int = 1
    full_grid: bool = False
    speculates: bool = False


SCHEDULES: Final = {
    "graph": Schedule(launches=_KINDS, full_grid=True),
    "persistent-stages": Schedule(launches=_KINDS),
    "persistent": Schedule(),
    "persistent-dynamic": Schedule(Dealing.QUEUE),
    "ccks": Schedule(Dealing.PILOT, speculates=True),
    "ccks-ready": Schedule(Dealing.PILOT),
}


class Experts:
    """A layer of gated experts, of which each token is sent to the ``top`` that its router prefers.

    ``router`` ``[E, width]``, ``up`` ``[E, 2 * inner, width]``, gates first, ``down`` ``[E, width, inner]``: contiguous
    and of one 16-bit type, on one device of compute capability 9.0. ``schedule``: a name of `SCHEDULES`. The layer may
    be captured into a CUDA graph. A wait that gave up is reported by `check`.

    Raises `UserError` where the kernel does not support the sizes or the device.
    """

    def __init__(
        self,
        router: Any,
        up: Any,
        down: Any,
        *,
        tokens: int,
        top: int = 2,
        schedule: str = "persistent-dynamic",
        choices: Choices | None = None,
        delay_ns: int = 0,
        timeout_ns: int = 2_000_000_000,
    ) -> None:
        if schedule not in SCHEDULES:
            raise UserError(f"there is no schedule {schedule!r} of experts; there are {', '.join(SCHEDULES)}")
        (experts, width), inner = router.shape, down.shape[-1]
        if up.shape != (experts, 2 * inner, width) or down.shape != (experts, width, inner):
            raise UserError(
                f"the router is {tuple(router.shape)}, up {tuple(up.shape)} and down {tuple(down.shape)}; expected "
                "[E, width], [E, 2 * inner, width] and [E, width, inner]"
            )
        if not all(t.is_contiguous() and t.dtype is router.dtype for t in (router, up, down)):
            raise UserError("router, up and down must be contiguous and of one type")
        if router.dtype not in _DTYPES:
            raise UserError(f"experts are multiplied in float16 or bfloat16, not {router.dtype}")
        self.shape = ExpertsShape(_DTYPES[router.dtype], tokens, width, inner, experts, top)  # type: ignore[arg-type]
        self.schedule, self.device = SCHEDULES[schedule], router.device
        self._weights = router, up, down
        self.blocks = self._block_count()
        choices = choices or Choices(speculate=self.schedule.speculates)
        self._function = self._loaded(delay_ns, timeout_ns)
        self._pilot = self._pilot_of(choices) if self.schedule.dealing is Dealing.PILOT else None
        self._allocate(_DTYPES[router.dtype])

    def _block_count(self) -> int:
        properties = torch.cuda.get_device_properties(self.device)
        if (properties.major, properties.minor) != (9, 0):
            raise UserError(f"the layer of experts is for compute capability 9.0; {properties.name} has another")
        return int(properties.multi_processor_count)

    def _loaded(self, delay_ns: int, timeout_ns: int) -> Any:
        header = self.shape.header(self.blocks, self.schedule.dealing, delay_ns=delay_ns, timeout_ns=timeout_ns)
        return KERNEL.loaded(header, self.device)

    def _pilot_of(self, choices: Choices) -> Copilot:
        library = compiled_pilot(self.shape, self.blocks, choices)
        return Copilot(self.shape.link_words(self.blocks), library)

    def _allocate(self, dtype: str) -> None:
        """Allocate what tasks write. ``dtype``: of the tensors, as tensor maps name it."""
        shape, halves = self.shape, self._weights[0].dtype
        rows, entries = shape.tiles * ROWS, shape.tokens * shape.top
        self._sorted, self._inner = self._zeros(rows * shape.width, halves), self._zeros(rows * shape.inner, halves)
        self._parts = self._zeros(entries * shape.width, torch.float32)
        self.out = self._zeros(shape.tokens * shape.width, halves).view(shape.tokens, shape.width)
        self._sources = self._zeros(rows)
        self._gates = self._zeros(entries, torch.float32)
        self._counts, self._kept = self._zeros(shape.counts_words), self._zeros(shape.kept_words(self.blocks))
        self._record, self.seed = self._zeros(8), self._zeros(1)
        self._dtype = dtype

    def _zeros(self, count: int, dtype: Any = torch.int32) -> Any:
        return torch.zeros(count, dtype=dtype, device=self.device)

    def __call__(self, x: Any) -> Any:
        """Return ``[tokens, width]``, which the next call overwrites, for ``x`` of that shape."""
        if x.shape != self.out.shape or x.dtype is not self.out.dtype or not x.is_contiguous():
            raise UserError(
                f"expected a contiguous {tuple(self.out.shape)} of {self.out.dtype}, not {tuple(x.shape)} of {x.dtype}"
            )
        launches = self.schedule.launches
        for number in range(launches):
            kinds = (0, _KINDS - 1) if launches == 1 else (number, number)
            self._function.launch(
                self._grid(number), THREADS, self._stream(), self._arguments(x, *kinds), programmatic=False,
                cooperative=launches == 1,
            )  # fmt: skip
        return self.out

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def _grid(self, kind: int) -> int:
        if not self.schedule.full_grid:
            return self.blocks
        shape = self.shape
        return (shape.routes, shape.most_tiles * shape.ups, shape.most_tiles * shape.downs)[kind]

    def _arguments(self, x: Any, first: int, last: int) -> Arguments:
        """Arguments of common.cuh."""
        shape, (router, up, down) = self.shape, self._weights
        arguments = Arguments(_WORDS)
        rows = shape.tiles * ROWS
        for number, (tensor, k) in enumerate(((self._sorted, shape.width), (self._inner, shape.inner))):
            arguments.put_map(
                number * MAP_WORDS, tensor.data_ptr(), self._dtype, (k, rows, 1, 1), (2 * k, *(2 * k * rows,) * 2),
                (K_BLOCK, ROWS, 1, 1), (1, 1, 1, 1),
            )  # fmt: skip
        for number, (tensor, k, n) in enumerate(
            ((up, shape.width, 2 * shape.inner), (down, shape.inner, shape.width)), start=2
        ):
            arguments.put_map(
                number * MAP_WORDS, tensor.data_ptr(), self._dtype, (k, 1, shape.experts * n), (2 * k, 2 * k),
                (K_BLOCK, 1, 32), (1, 1, 1),
            )  # fmt: skip
        tensors = (
            x, router, self._sorted, self._inner, self._parts, self.out, self._sources, self._counts,
            self._kept, self._record, self._gates,
        )  # fmt: skip
        words = [*(tensor.data_ptr() for tensor in tensors), 0 if self._pilot is None else self._pilot.data_ptr()]
        words += [first | last << 32, self.seed.data_ptr()]
        arguments.words[4 * MAP_WORDS : 4 * MAP_WORDS + len(words)] = words
        return arguments

    def poison(self) -> None:
        """Put NaN where tasks write before they read, for tests."""
        for tensor in (self._sorted, self._inner, self._parts, self.out, self._gates):
            tensor.fill_(float("nan"))
        self._sources.fill_(-1)

    def check(self) -> None:
        """Synchronise; raise `WaitTimeoutError` that says which wait gave up, after which calls are right again."""
        record = self._record.tolist()
        if not record[0]:
            return
        self.begin_anew()
        kind = ("tokens are routed", "the inner layer", "the result")[record[1]]
        raise WaitTimeoutError(
            f"the layer of experts gave up a wait: block {record[3]} waited for a task or its inputs ({kind}, place "
            f"{record[2]})"
        )

    def begin_anew(self) -> None:
        """Counts as before the first call, while no kernel runs."""
        for tensor in (self._counts, self._kept, self._record):
            tensor.zero_()
        if self._pilot is not None:
            self._pilot.zero_()

    def pilot_counts(self) -> Any:
        """Return the co-pilot's `Counts`, None where none deals."""
        return None if self._pilot is None else self._pilot.counts()
