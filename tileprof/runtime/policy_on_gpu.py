"""A policy on a GPU: its stages as Triton kernels that post and wait tile by tile, or all of them in the persistent
kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from tileprof.errors import UserError
from tileprof.policy.format import Policy, load_policy
from tileprof.policy.format.symbolic import load_symbolic
from tileprof.runtime.errors import WaitTimeoutError, gave_up
from tileprof.runtime.kernels.triton_launch import TIMEOUT_NS, Hooks, kernel_of
from tileprof.runtime.pipeline import FellBackWarning, Pipeline, room_for
from tileprof.runtime.result_check import first_wrong_stage, varies
from tileprof.runtime.schedulers import FALLBACKS, Scheduler, lanes, scheduler
from tileprof.runtime.sized_pipeline import SizedPipeline
from tileprof.runtime.stages.view import View
from tileprof.runtime.sync.device import RECORD_WORDS, hold
from tileprof.runtime.sync.tables import FLAG_BYTES, Tables

if TYPE_CHECKING:
    from tileprof.runtime.copilot.choices import Choices
    from tileprof.runtime.persistent.plan import Plan
    from tileprof.runtime.persistent.run import PersistentKernel

_DTYPES: Final = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class GpuPipeline:
    """A policy's stages on one GPU; every instance has memory and semaphores of its own.

    Calls take the inputs of `Pipeline` by name or position, as CUDA tensors, launch on the current stream and return
    the outputs, which the next call overwrites. They may be captured into a CUDA graph, which replays any number of
    times. What does not fit the policy's guard runs in stream order by plain PyTorch, with a `FellBackWarning`; so do
    inputs that record gradients, a policy that does not wait for what its tiles need, and one whose kernels computed
    something else than PyTorch in the first call with inputs that vary, unless ``unchecked``. What the persistent
    kernel cannot run runs under ``cusync``, with the same warning. A wait that gave up is reported by the next call
    outside a capture, or by `check`; replays of a graph report nothing by themselves.
    ``schedule``: a name of `tileprof.runtime.schedulers`, or ``auto`` for what `choose` takes; ``scheduler`` is what it
    runs under, ``reason`` why.
    ``whole``: for programs with streams of several priorities: the persistent kernel's blocks start once there is room
    for all, see `PersistentKernel`.
    ``choices``: of the co-pilot under ``ccks``: orders, deadlines of programs that share the GPU.
    ``delay_ns``: for tests, blocks sleep up to so long, differently in every run.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        schedule: str = "cusync",
        device: str = "cuda",
        ahead: bool = False,
        delay_ns: int = 0,
        timeout_ns: int = TIMEOUT_NS,
        unchecked: bool = False,
        whole: bool = False,
        choices: Choices | None = None,
    ) -> None:
        self._check_device()
        self.device = _device_with_number(torch.device(device))
        self._plain = Pipeline(policy)
        self.policy, self.chain = policy, self._plain.chain
        self.reason = "as asked"
        self._plan: Plan | None = None
        self._choices = choices
        if schedule == "auto":
            schedule, self.reason = self._scheduler_choice()
        self.scheduler = self._scheduler(schedule)
        self.inputs, self.outputs = self._plain.inputs, self._plain.outputs
        self._unchecked, self._delay_ns, self._timeout_ns, self._whole = unchecked, delay_ns, timeout_ns, whole
        self._proved = False
        self._wrong: str | None = None
        self._persistent = self._persistent_kernel() if self.scheduler.persistent else None
        if self._persistent is None:
            self._prepare_kernels(ahead=ahead)
        self._allocate()

    def twin(self) -> GpuPipeline:
        """Return another pipeline of the policy, with memory and semaphores of its own; what is compiled and looked up
        is shared.
        """
        other = copy(self)
        other._allocate()  # noqa: SLF001 - of its own class
        return other

    def _persistent_kernel(self) -> PersistentKernel | None:
        """Return the persistent kernel, or None and another scheduler in its place, with a warning, where it cannot run
        the policy.
        """
        from tileprof.runtime.persistent.run import PersistentKernel  # noqa: PLC0415 - only where it is asked for

        try:
            return PersistentKernel(
                self.policy,
                self.chain,
                self.scheduler,
                self.device,
                delay_ns=self._delay_ns,
                timeout_ns=self._timeout_ns,
                whole=self._whole,
                plan=self._plan,
                choices=self._choices,
            )
        except UserError as error:
            other = self._scheduler(FALLBACKS[self.scheduler.name])
            warnings.warn(f"{error}; the stages run under {other.name} instead", FellBackWarning, stacklevel=3)
            self.scheduler, self.reason = other, str(error)
            return None

    def _scheduler_choice(self) -> tuple[str, str]:
        from tileprof.runtime.persistent.persistent_launch import max_clusters  # noqa: PLC0415 - talks to the driver
        from tileprof.runtime.scheduler_choice import choose  # noqa: PLC0415 - only where it is asked for

        with torch.cuda.device(self.device):
            choice = choose(self.policy, self.chain, torch.cuda.get_device_capability(self.device), max_clusters)
        self._plan = choice.plan
        return choice.scheduler, choice.reason

    def _prepare_kernels(self, *, ahead: bool) -> None:
        """Prepare one Triton kernel per stage, and the tables that they read."""
        self._kernels = [kernel_of(operator, ahead=ahead) for operator in self.chain.operators]
        tables = Tables.of(self.policy)
        self._hooks = [self._hooks_of(n, tables) for n in range(len(self.policy.stages))]
        no_numbers = self._zeros(1)
        self._tables = [
            tuple(no_numbers if t is None or not t.size else self._on_device(t) for t in (s.order, s.waits, s.posts))
            for s in tables.stages
        ]
        hold_count = len(self.policy.stages) if self.scheduler.alternating else 0
        self._semaphores = tables.semaphores + hold_count
        self._holds = [self._hold(number) for number in range(hold_count)]

    def _allocate(self) -> None:
        """Allocate what stages write and what tiles count."""
        self.seed, self._record = self._zeros(1), self._zeros(RECORD_WORDS)
        self._pinned_record = torch.zeros(RECORD_WORDS, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        self._last_stream: torch.cuda.Stream | None = None
        self._streams: list[torch.cuda.Stream] = []
        self._own = {
            name: self._poisoned(max(views, key=lambda view: view.elements))
            for name, views in self.chain.tensors().items()
            if name not in self.inputs
        }
        if self._persistent is not None:
            self._counts = self._persistent.counts()
            return
        self._flags = self._zeros(max(1, self._semaphores) * FLAG_BYTES // 4)
        runs = [self._zeros(stage.tiles) for stage in self.policy.stages]
        self._begun = [self._zeros(1) for _ in self._holds]
        self._counts = [self._flags, *runs, *self._begun]
        self._shared = [
            (self.seed, *tables, self._flags, own, self._record) for tables, own in zip(self._tables, runs, strict=True)
        ]

    @classmethod
    def from_policy(cls, path: Path | str, **options: Any) -> GpuPipeline | SizedPipeline:
        """Return the pipeline of a policy file, for a symbolic one that of every size, compiled when it first comes up;
        raises `PolicyError` or `UserError` naming what is wrong with it.
        """
        symbolic = load_symbolic(path)
        if symbolic is not None:
            return SizedPipeline(symbolic, lambda policy: cls(policy, **options))
        return cls(load_policy(path), **options)

    def __call__(self, *tensors: Any, **by_name: Any) -> Any:
        inputs = self._plain._bound(tensors, by_name, self.device)  # noqa: SLF001 - the same guard for both
        reason = self._plain._unfit(inputs) or self._unsuited(inputs) or self.refused  # noqa: SLF001
        if reason is None:
            self._look_back()
            self.launch(inputs)
            reason = self._disproved(inputs)
            self._look_later()
        if reason is not None:
            warnings.warn(f"{reason}; the stages run one after the other, by PyTorch", FellBackWarning, stacklevel=2)
            results = self._plain.reference(inputs)
            values = tuple(results[name] for name in self.outputs)
        else:
            values = tuple(_strided(self._own[name], view) for name, view in self.outputs.items())
        return values[0] if len(values) == 1 else values

    @property
    def refused(self) -> str | None:
        """Why PyTorch computes the stages, whatever the inputs; None where the kernels do."""
        if self._unchecked or self._plain.verdict.sound:
            return self._wrong
        return "the policy does not wait for everything that its tiles need"

    def launch(self, inputs: Mapping[str, Any]) -> None:
        """Put every stage on the current stream, or on streams that fork from it and join it again."""
        try:
            with torch.cuda.device(self.device):
                self._launch(inputs)
        except BaseException:  # interrupted: stages that were launched post what the others will not count
            if not torch.cuda.is_current_stream_capturing():
                self._begin_anew()
            raise

    def _launch(self, inputs: Mapping[str, Any]) -> None:
        if self._persistent is not None:
            self._persistent.launch(self._all_tensors(inputs), self.seed, self._counts, self._record)
        elif self.scheduler.forked:
            self._launch_forked(inputs)
        elif self.scheduler.alternating:
            self._launch_alternating(inputs)
        else:
            for number in range(len(self.chain.operators)):
                self.launch_stage(number, inputs)

    def _look_back(self) -> None:
        """Raises if a wait of an earlier call gave up, as far as is known without waiting; orders this call behind one
        on another stream, since both use the same memory.
        """
        if torch.cuda.is_current_stream_capturing():
            return
        if int(self._pinned_record[0]):
            self.check()
        stream = torch.cuda.current_stream(self.device)
        if self._last_stream is not None and self._last_stream != stream:
            stream.wait_stream(self._last_stream)
        self._last_stream = stream

    def _look_later(self) -> None:
        """Fetch the record of waits that gave up, without waiting for it."""
        if self.scheduler.waits and not torch.cuda.is_current_stream_capturing():
            with torch.cuda.device(self.device):
                self._pinned_record.copy_(self._record, non_blocking=True)

    def _disproved(self, inputs: Mapping[str, Any]) -> str | None:
        """Return why the results of the kernels are not to be used; None where they are.

        Found out once, in the first call that is not captured and whose inputs tell one kernel from another: zeros come
        out right of nearly all.
        """
        looked = self._unchecked or not self.scheduler.correct or self._proved
        if not looked and not torch.cuda.is_current_stream_capturing():
            self.check()
            computed = {o.out.tensor: _strided(self._own[o.out.tensor], o.out) for o in self.chain.operators}
            try:
                self._wrong = first_wrong_stage(self.chain, computed, self.reference(inputs))
            except UserError:  # a chain that plain PyTorch does not compute has nothing to be compared with
                self._wrong = None
            self._proved = self._wrong is not None or all(varies(t) for t in inputs.values() if t.dim() > 1)
        return self._wrong

    def _launch_forked(self, inputs: Mapping[str, Any]) -> None:
        main = torch.cuda.current_stream(self.device)
        begin_event = main.record_event()
        ends: list[torch.cuda.Event] = []
        stage_lanes = lanes(self.chain.before())
        last = {lane.stream: number for number, lane in enumerate(stage_lanes)}
        streams = [main, *self._side_streams(len(last) - 1)]
        for stream in streams[1:]:
            stream.wait_event(begin_event)
        for number, lane in enumerate(stage_lanes):
            stream = streams[lane.stream]
            for other in lane.after:
                stream.wait_event(ends[other])
            with torch.cuda.stream(stream):
                self.launch_stage(number, inputs)
            ends.append(stream.record_event())
        for stream, number in last.items():
            if stream:
                main.wait_event(ends[number])

    def _launch_alternating(self, inputs: Mapping[str, Any]) -> None:
        """Stage by stage on two streams. A stage's blocks are dispatched once all of the stage before have begun, and
        all before that have ended: a block that waits therefore never keeps one that it waits for from an SM.
        """
        main = torch.cuda.current_stream(self.device)
        begin_event, (side,) = main.record_event(), self._side_streams(1)
        side.wait_event(begin_event)
        for number in range(len(self.chain.operators)):
            with torch.cuda.stream(side if number % 2 else main):
                if number > 0:
                    waits, runs = self._holds[number], self._begun[number]
                    hold[(1,)](waits, self._flags, runs, self._record, number, self._timeout_ns, num_warps=1)
                self.launch_stage(number, inputs)
        main.wait_event(side.record_event())

    def _side_streams(self, count: int) -> list[torch.cuda.Stream]:
        while len(self._streams) < count:
            self._streams.append(torch.cuda.Stream(self.device))
        return self._streams[:count]

    def launch_stage(self, number: int, inputs: Mapping[str, Any]) -> Any:
        """Launch one stage on the current stream, whatever it depends on. Returns what Triton returns, if anything."""
        if self._persistent is not None:
            return self._persistent.launch_stage(
                number, self._all_tensors(inputs), self.seed, self._counts, self._record
            )
        return self._kernels[number].launch(self._tensors(number, inputs), self._shared[number], self._hooks[number])

    def _tensors(self, number: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a stage's tensors by role, as its operator describes them."""
        return {
            role: _strided(
                inputs[view.tensor],
                View(view.tensor, view.shape, view.strides, view.dtype, view.offset - self.inputs[view.tensor].offset),
            )
            if view.tensor in inputs
            else _strided(self._own[view.tensor], view)
            for role, view in self.chain.operators[number].views().items()
        }

    def _all_tensors(self, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [self._tensors(number, inputs) for number in range(len(self.chain.operators))]

    @property
    def plan(self) -> Plan | None:
        """The plan of the persistent kernel, where it runs the stages in one launch."""
        return self._persistent.plans[0] if self._persistent is not None and len(self._persistent.plans) == 1 else None

    def compiled(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Launch every stage in stream order. Returns Triton's kernels, which know their registers and memory."""
        return [self.launch_stage(number, inputs) for number in range(len(self.chain.operators))]

    def poison(self) -> None:
        """Fill every tensor that the stages write with NaN, on the current stream."""
        for tensor in self._own.values():
            tensor.fill_(float("nan"))

    def example(self, seed: int = 0) -> dict[str, Any]:
        """Return random inputs on the device; see `Pipeline.example`."""
        return self._plain.example(seed, self.device)

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return every stage's result by plain PyTorch."""
        return self._plain.reference(inputs)

    def check(self) -> None:
        """Wait for the device; raises `WaitTimeoutError` where a wait has given up, and makes the semaphores new."""
        torch.cuda.synchronize(self.device)
        claimed, stage, tile, semaphore, posts, expected = self._record[:6].tolist()
        if not claimed:
            return
        self._begin_anew()
        name = self.policy.stages[stage].name
        blocks = 1 if self._persistent is None else self._persistent.plans[0].split  # each of a tile's blocks posts
        message = gave_up(stage, name, tile, semaphore, posts // blocks, expected // blocks, self._timeout_ns)
        if self._persistent is not None and not self._whole:
            message += (
                " If it finds nothing, kernels on streams of higher priority may have kept blocks from the GPU: "
                "GpuPipeline(..., whole=True)."
            )
        raise WaitTimeoutError(message)

    def _begin_anew(self) -> None:
        """Wait for the device, then reset the semaphores and the tiles' counters for the next run on any stream."""
        torch.cuda.synchronize(self.device)
        for tensor in (self._record, self._pinned_record, *self._counts):
            tensor.zero_()
        torch.cuda.synchronize(self.device)

    def _hooks_of(self, number: int, tables: Tables) -> Hooks:
        stage, last = tables.stages[number], len(tables.stages) - 1
        scheduler = self.scheduler
        return Hooks(
            STAGE=number,
            TILES=self.policy.stages[number].tiles,
            WIDTH=stage.width if scheduler.waits else 0,
            POSTS=stage.posts.shape[1] if scheduler.posts else 0,
            ORDERED=stage.order is not None,
            STARTED=tables.semaphores + number if scheduler.alternating else -1,
            TRIGGER=scheduler.overlapped and number < last,
            PDL=scheduler.overlapped and number > 0,
            GRID_WAIT=scheduler.grid_waits and number > 0,
            DELAY_NS=self._delay_ns,
            TIMEOUT_NS=self._timeout_ns,
        )

    def _hold(self, number: int) -> torch.Tensor:
        """Return what the wait kernel in front of a stage reads: a table as a tile's, of one semaphore."""
        before = max(0, number - 1)
        tiles = self.policy.stages[before].tiles
        entry = [self._hooks[before].STARTED, tiles, tiles]
        return torch.tensor(entry, dtype=torch.int32, device=self.device)

    def _poisoned(self, view: View) -> torch.Tensor:
        with room_for(view):
            return torch.full((view.elements,), float("nan"), dtype=_DTYPES[view.dtype], device=self.device)

    def _zeros(self, words: int) -> torch.Tensor:
        return torch.zeros(words, dtype=torch.int32, device=self.device)

    def _check_device(self) -> None:
        if not torch.cuda.is_available():
            raise UserError(
                "there is no GPU here that PyTorch can use; on the CPU a policy runs with: tileprof run POLICY"
            )

    def _scheduler(self, name: str) -> Scheduler:
        """Return the scheduler of a name, on the GPU here; raises `UserError`."""
        major, minor = torch.cuda.get_device_capability(self.device)
        by_name = scheduler("cusync-streams" if name == "cusync" and major < 9 else name)
        if major < 9 and by_name.overlapped and not by_name.persistent:
            raise UserError(
                f"{name} launches by programmatic dependent launch, which takes compute capability 9.0; this GPU has "
                f"{major}.{minor}. "
                "Take cusync, graph or streams"
            )
        return by_name

    def _unsuited(self, inputs: Mapping[str, Any]) -> str | None:
        """Return why the kernels are not to have these tensors, although shapes, strides and dtypes are the
        policy's.
        """
        for name, tensor in inputs.items():
            if tensor.data_ptr() % 16:
                return f"input {name} begins at an address that is not a multiple of 16"
            if tensor.is_neg():
                return f"input {name} is a view that PyTorch negates when it reads"
            if tensor.requires_grad and torch.is_grad_enabled():
                return f"input {name} records gradients, which tiles do not hand on (torch.no_grad() turns that off)"
        return None

    def _on_device(self, table: Any) -> Any:
        return torch.from_numpy(table.reshape(-1)).to(self.device)


def _strided(tensor: Any, view: View) -> Any:
    return tensor.as_strided(view.shape, view.strides, tensor.storage_offset() + view.offset)


def _device_with_number(device: torch.device) -> torch.device:
    """Return a GPU by its number: ``cuda`` is another one tomorrow."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())
