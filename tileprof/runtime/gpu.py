"""A policy on a GPU: its stages as Triton kernels that post and wait tile by tile."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from tileprof.errors import UserError
from tileprof.policy.format import Policy, load_policy
from tileprof.runtime.errors import WaitTimeoutError, gave_up
from tileprof.runtime.kernels.launch import TIMEOUT_NS, Hooks, kernel_of
from tileprof.runtime.pipeline import FellBackWarning, Pipeline
from tileprof.runtime.schedulers import Scheduler, lanes, scheduler
from tileprof.runtime.stages.view import View
from tileprof.runtime.sync.device import RECORD_WORDS, hold
from tileprof.runtime.sync.tables import FLAG_BYTES, Tables

_DTYPES: Final = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class GpuPipeline:
    """A policy's stages on one GPU; every instance has memory and semaphores of its own.

    Calls take the inputs of `Pipeline` by name or position, as CUDA tensors, launch on the current stream and return the outputs, which the next call
    overwrites. They may be captured into a CUDA graph, which replays any number of times. What does not fit the policy's guard runs
    in stream order by plain PyTorch, with a `FellBackWarning`; so does a policy that does not wait for what its tiles need, unless ``unchecked``.
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
    ) -> None:
        self.device = torch.device(device)
        self._check_device()
        self.scheduler = self._scheduler(schedule)
        self._plain = Pipeline(policy)
        self.policy, self.chain = policy, self._plain.chain
        self.inputs, self.outputs = self._plain.inputs, self._plain.outputs
        self._unchecked = unchecked
        self._kernels = [kernel_of(operator, ahead=ahead) for operator in self.chain.operators]
        tables = Tables.of(policy)
        self._hooks = [self._hooks_of(n, tables, delay_ns, timeout_ns) for n in range(len(policy.stages))]
        self._streams: list[torch.cuda.Stream] = []
        self.seed = torch.zeros(1, dtype=torch.int32, device=self.device)
        begun = len(policy.stages) if self.scheduler.alternating else 0
        self._flags = self._zeros(max(1, tables.semaphores + begun) * FLAG_BYTES // 4)
        self._record = self._zeros(RECORD_WORDS)
        self._runs = [self._zeros(stage.tiles) for stage in policy.stages]
        self._holds = [self._hold(number) for number in range(begun)]
        self._shared = []
        for stage, runs in zip(tables.stages, self._runs, strict=True):
            order = self.seed if stage.order is None else self._on_device(stage.order)
            waits, posts = (self._on_device(t) if t.size else self.seed for t in (stage.waits, stage.posts))
            self._shared.append((self.seed, order, waits, posts, self._flags, runs, self._record))
        self._own = {
            name: torch.full(
                (max(v.elements for v in views),), float("nan"), dtype=_DTYPES[views[0].dtype], device=self.device
            )
            for name, views in self.chain.tensors().items()
            if name not in self.inputs
        }

    @classmethod
    def from_policy(cls, path: Path | str, **options: Any) -> GpuPipeline:
        """The pipeline of a policy file; raises `PolicyError` or `UserError` naming what is wrong with it."""
        return cls(load_policy(path), **options)

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        given = self._plain._bound(tensors, named, self.device.type)  # noqa: SLF001 - the same guard for both
        reason = self._plain._unfit(given) or self._misaligned(given)  # noqa: SLF001 - likewise
        if reason is None and not self._unchecked and not self._plain.verdict.sound:
            reason = "the policy does not wait for everything that its tiles need"
        if reason is not None:
            warnings.warn(f"{reason}; the stages run one after the other, by PyTorch", FellBackWarning, stacklevel=2)
            results = self._plain.reference(given)
            values = tuple(results[name] for name in self.outputs)
        else:
            self.launch(given)
            values = tuple(_strided(self._own[name], view) for name, view in self.outputs.items())
        return values[0] if len(values) == 1 else values

    def launch(self, given: Mapping[str, Any]) -> None:
        """Put every stage on the current stream, or on streams that fork from it and join it again."""
        if self.scheduler.forked:
            self._launch_forked(given)
        elif self.scheduler.alternating:
            self._launch_alternating(given)
        else:
            for number in range(len(self.chain.operators)):
                self._launch_stage(number, given)

    def _launch_forked(self, given: Mapping[str, Any]) -> None:
        main = torch.cuda.current_stream(self.device)
        begun = main.record_event()
        done: list[torch.cuda.Event] = []
        chosen = lanes(self.chain.before())
        last = {lane.stream: number for number, lane in enumerate(chosen)}
        streams = [main, *self._side_streams(len(last) - 1)]
        for stream in streams[1:]:
            stream.wait_event(begun)
        for number, lane in enumerate(chosen):
            stream = streams[lane.stream]
            for other in lane.after:
                stream.wait_event(done[other])
            with torch.cuda.stream(stream):
                self._launch_stage(number, given)
            done.append(stream.record_event())
        for stream, number in last.items():
            if stream:
                main.wait_event(done[number])

    def _launch_alternating(self, given: Mapping[str, Any]) -> None:
        """Stage by stage on two streams. A stage's blocks are dispatched once all of the stage before have begun, and all before that have ended:
        a block that waits therefore never keeps one that it waits for from an SM.
        """
        main = torch.cuda.current_stream(self.device)
        begun, (side,) = main.record_event(), self._side_streams(1)
        side.wait_event(begun)
        for number in range(len(self.chain.operators)):
            with torch.cuda.stream(side if number % 2 else main):
                if number > 0:
                    waits, runs = self._holds[number]
                    hold[(1,)](
                        waits, self._flags, runs, self._record, number, self._hooks[number].TIMEOUT_NS, num_warps=1
                    )
                self._launch_stage(number, given)
        main.wait_event(side.record_event())

    def _side_streams(self, count: int) -> list[torch.cuda.Stream]:
        while len(self._streams) < count:
            self._streams.append(torch.cuda.Stream(self.device))
        return self._streams[:count]

    def _launch_stage(self, number: int, given: Mapping[str, Any]) -> Any:
        tensors = {
            role: _strided(
                given[view.tensor],
                View(view.tensor, view.shape, view.strides, view.dtype, view.offset - self.inputs[view.tensor].offset),
            )
            if view.tensor in given
            else _strided(self._own[view.tensor], view)
            for role, view in self.chain.operators[number].views().items()
        }
        return self._kernels[number].launch(tensors, self._shared[number], self._hooks[number])

    def compiled(self, given: Mapping[str, Any]) -> list[Any]:
        """Launch every stage in stream order; Triton's compiled kernels, which know their registers and shared memory."""
        return [self._launch_stage(number, given) for number in range(len(self.chain.operators))]

    def poison(self) -> None:
        """Fill every tensor that the stages write with NaN, on the current stream."""
        for tensor in self._own.values():
            tensor.fill_(float("nan"))

    def example(self, seed: int = 0) -> dict[str, Any]:
        """Random inputs on the device; see `Pipeline.example`."""
        made = {}
        for name, tensor in self._plain.example(seed).items():
            flat = torch.empty(self.inputs[name].elements, dtype=tensor.dtype, device=self.device)
            made[name] = flat.as_strided(tuple(tensor.shape), tuple(tensor.stride()))
            made[name].copy_(tensor)
        return made

    def reference(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every stage's result by plain PyTorch."""
        return self._plain.reference(given)

    def check(self) -> None:
        """Wait for the device; raises `WaitTimeoutError` where a wait has given up, and makes the semaphores new."""
        torch.cuda.synchronize(self.device)
        claimed, stage, tile, semaphore, seen, expected = self._record[:6].tolist()
        if not claimed:
            return
        for tensor in (self._record, self._flags, *self._runs, *(runs for _, runs in self._holds)):
            tensor.zero_()
        name, timeout_ns = self.policy.stages[stage].name, self._hooks[stage].TIMEOUT_NS
        raise WaitTimeoutError(gave_up(stage, name, tile, semaphore, seen, expected, timeout_ns))

    def _hooks_of(self, number: int, tables: Tables, delay_ns: int, timeout_ns: int) -> Hooks:
        stage, last = tables.stages[number], len(tables.stages) - 1
        chosen = self.scheduler
        return Hooks(
            STAGE=number,
            TILES=self.policy.stages[number].tiles,
            WIDTH=stage.width if chosen.waits else 0,
            POSTS=stage.posts.shape[1] if chosen.posts else 0,
            ORDERED=stage.order is not None,
            STARTED=tables.semaphores + number if chosen.alternating else -1,
            TRIGGER=chosen.overlapped and number < last,
            PDL=chosen.overlapped and number > 0,
            GRID_WAIT=chosen.grid_waits and number > 0,
            DELAY_NS=delay_ns,
            TIMEOUT_NS=timeout_ns,
        )

    def _hold(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the wait kernel in front of a stage reads: a table as a tile's, of one semaphore, and the count of its runs."""
        before = max(0, number - 1)
        tiles = self.policy.stages[before].tiles
        entry = [self._hooks[before].STARTED, tiles, tiles]
        return torch.tensor(entry, dtype=torch.int32, device=self.device), self._zeros(1)

    def _zeros(self, words: int) -> torch.Tensor:
        return torch.zeros(words, dtype=torch.int32, device=self.device)

    def _check_device(self) -> None:
        if not torch.cuda.is_available():
            raise UserError(
                "there is no GPU here that PyTorch can use; on the CPU a policy runs with: tileprof run POLICY"
            )

    def _scheduler(self, name: str) -> Scheduler:
        """The scheduler of a name, on the GPU here; raises `UserError`."""
        major, minor = torch.cuda.get_device_capability(self.device)
        chosen = scheduler("cusync-streams" if name == "cusync" and major < 9 else name)
        if major < 9 and chosen.overlapped:
            raise UserError(
                f"{name} launches by programmatic dependent launch, which takes compute capability 9.0; this GPU has {major}.{minor}. "
                "Take cusync, graph or streams"
            )
        return chosen

    def _misaligned(self, given: Mapping[str, Any]) -> str | None:
        for name, tensor in given.items():
            if tensor.data_ptr() % 16:
                return f"input {name} begins at an address that 16 does not divide"
        return None

    def _on_device(self, table: Any) -> Any:
        return torch.from_numpy(table.reshape(-1)).to(self.device)


def _strided(tensor: Any, view: View) -> Any:
    return tensor.as_strided(view.shape, view.strides, tensor.storage_offset() + view.offset)
