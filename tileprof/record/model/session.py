"""Seeing every ATen operator that a program executes, and writing the launches that a GPU would make of it.

Each thread runs under a dispatch mode. An operator goes through unchanged; afterwards its arguments and results are
looked up among the buffers, its kernels are planned (once for all calls of equal layout), and bound. Views and metadata
launch nothing. Operators made of other operators are taken apart first, as PyTorch does on a GPU.
"""

from __future__ import annotations

import shutil
import sys
import threading
import traceback
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from tileprof.errors import UserError
from tileprof.record import capture
from tileprof.record.model.calls import launch_plans, overload_facts
from tileprof.record.model.calls.call_text import IN_PARTS, call_description, numbered
from tileprof.record.model.calls.layouts import as_call, as_operands, flatten
from tileprof.record.model.calls.overload_facts import Operator
from tileprof.record.model.calls.plans_by_tensor_values import PlansByValue
from tileprof.record.model.compiled.entry import compiler
from tileprof.record.model.compiled.target import capability
from tileprof.record.model.memory import host_copies
from tileprof.record.model.memory.storage import ABSENT, Buffer, Buffers, on_host, only_aliases
from tileprof.record.model.observation import attention_choice, autocast, fake, gradients_in_place, host_data, unfused
from tileprof.record.model.observation.dispatch import Mode, each_thread
from tileprof.record.model.observation.launch_selection import Window
from tileprof.record.model.observation.modules import Modules, Names
from tileprof.record.model.observation.nvtx import Ranges
from tileprof.record.model.observation.progress import Progress
from tileprof.record.model.tile_model import Call, Kernel, Scratch
from tileprof.record.model.tiles.elementwise.pointwise import copied_in, copied_out
from tileprof.record.model.tiles.foundations import overrides
from tileprof.trace.writer import TraceWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from tileprof.devices import Device
    from tileprof.record import Options

_TO_COPY = "aten::_to_copy"
_DEVICE = [a.name for a in torch.ops.aten._to_copy.default._schema.arguments].index("device")  # noqa: SLF001 - no public way


class Session:
    """One recording, from `start` to `stop`; ``active`` is False once it cannot continue.

    A failure of the recorder never reaches the program: it is printed, and recording stops (``failure``).
    """

    def __init__(self, options: Options, device: Device, command: list[str]) -> None:
        self.options, self.device, self._command = options, device, command
        self.fake = options.fake
        self._output = options.output.absolute()  # the program may change its directory
        self.active = False
        self.failure: str | None = None
        self.compiles = False
        """True if the program asked for the compiler."""
        self.operator_count = 0
        """Operators that computed something, whether kept or not."""
        self.writer = self._new_writer(force=options.force)
        self.buffers = Buffers(self.writer)
        self.window = Window(options)
        self.ranges = Ranges(options.nvtx, self._begin_range, self._end_range) if options.nvtx is not None else None
        self.names = Names()
        self.modules = Modules(self.names, self._label, self._registered)
        self.conservative: Counter[str] = Counter()
        self.end_ns = 0
        self.tiles = 0
        self._gap_ns = round(device.launch_gap_ns)
        self._notes: set[str] = set()
        self._remarks: set[str] = set()
        self._host_reads = 0
        self._calls = 0
        """Calls so far whose launches are described together."""
        self._operators: dict[Any, Operator] = {}
        self._plans: dict[Any, list[launch_plans.KernelPlan]] = {}
        self._plans_by_value = PlansByValue()
        self._dtypes: dict[torch.dtype, str] = {}
        self._lock = threading.RLock()
        self._progress = Progress()
        self._stack = ExitStack()
        self.turn: AbstractContextManager[object] = threading.RLock() if options.fake else nullcontext()
        """Held while an operator runs: PyTorch's fake mode is not made for several threads at once."""
        self.fake_mode = fake.mode() if options.fake else None

    def _new_writer(self, *, force: bool) -> TraceWriter:
        return TraceWriter(self._output, recorder="model", command=self._command, device=self.device, force=force)

    # ---- life

    def start(self) -> None:
        """Record this thread, and every thread started from now on."""
        gradients_in_place.single_reference()  # inside a backward pass it would count otherwise
        self._stack.callback(self.modules.install())
        self._stack.callback(each_thread(self._enter_modes))
        self._stack.enter_context(unfused.everything())
        self._stack.enter_context(attention_choice.as_on_gpu(capability(self.device)))
        self._stack.enter_context(autocast.as_on_gpu())
        ignore_host_data = self._stack.enter_context(host_data.watch(self))
        self._stack.enter_context(compiler(self, ignore_host_data))
        self._stack.enter_context(overrides.override(*self.options.tile))
        if self.fake:
            self._stack.enter_context(fake.conversions())
            self._stack.enter_context(fake.deep_copies())
            self._stack.enter_context(fake.initialisation())
        self._enter_modes(self._stack)
        if self.ranges is not None:
            self._stack.callback(self.ranges.install())
            capture.unheard()
        else:
            self._stack.callback(capture.ignore, self)
            capture.listen(self)
        self.active = True

    def _enter_modes(self, stack: ExitStack) -> None:
        if self.fake_mode is not None:
            stack.enter_context(self.fake_mode)
        stack.enter_context(Mode(self))

    def stop(self) -> list[str]:
        """See nothing more, and say in the trace what was not covered: the notes."""
        if self.active:
            self._guard(self.buffers.bury)
        self.active = False
        notes = self.notes()
        self._stack.close()
        self._progress.end()
        if self.failure is None:
            for note in notes:
                self.writer.note(note)
        return notes

    def notes(self) -> list[str]:
        """Return the notes for the trace so far."""
        sentences = sorted(self._notes | self._remarks) + self.window.notes() + sorted(unfused.notes())
        if self.options.tile:
            sentences.append(overrides.note(self.options.tile))
        if self.fake:
            sentences.append("Recorded with fake tensors: accesses that depend on values are conservative.")
        sentences += host_data.notes(self._host_reads)
        if self.buffers.allocator.reserved_bytes > self.device.dram_bytes:
            need, have = (b / 2**30 for b in (self.buffers.allocator.reserved_bytes, self.device.dram_bytes))
            sentences.append(
                f"The program needs {need:.1f} GiB; {self.device.name} has {have:.1f} GiB: "
                "it would not run there as recorded."
            )
        return sentences

    def forked(self) -> None:
        """Leave the trace to the parent, in a forked child."""
        self.active = False
        self._progress = Progress(on=False)

    def note(self, text: str) -> None:
        """Add a note to the trace."""
        self._notes.add(text)

    def remark(self, text: str) -> None:
        """Add a note about the whole run to the trace, each time a captured region begins."""
        self._remarks.add(text)

    # ---- captured regions

    def begin_capture(self) -> None:
        """The first region of the program starts the trace again."""
        with self._lock:
            if self.window.begin_capture() and self.active:
                self._guard(self._restart)

    def end_capture(self) -> None:
        with self._lock:
            self.window.end_capture()

    def _begin_range(self) -> None:
        """Begin an NVTX range: captured regions do not count beside it, and nothing was recorded before the first."""
        with self._lock:
            self.window.begin_range()

    def _end_range(self) -> None:
        with self._lock:
            self.window.end_capture()

    def _restart(self) -> None:
        if not self.writer.launches:
            return
        self.window.before_capture(self.writer.launches)
        self.buffers.bury()
        shutil.rmtree(self.writer.abandon("a captured region began"))
        self.writer = self._new_writer(force=self.options.force)
        self.buffers.restart(self.writer)
        self._plans.clear()
        self._plans_by_value.clear()
        self.conservative.clear()
        self._notes.clear()
        self.end_ns = self.tiles = self._host_reads = self.window.initialisations = 0

    # ---- operators

    def operator(self, func: Any) -> Operator:
        """Return the schema, model and kind of an operator, looked up once."""
        operator = self._operators.get(func)
        if operator is None:
            operator = overload_facts.facts_of(func)
            operator.metadata = func.namespace == "prim"
            self._operators[func] = operator
        return operator

    def before(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Any]:
        """Return copies of integer arguments that a data-dependent operator is about to overwrite, by id."""
        entry = operator.entry
        if entry is None or not entry.data_dependent or not operator.mutates or self.fake:
            return {}
        arguments = operator.values(args, kwargs)
        if _any_fake(arguments):
            return {}
        outputs = [
            v for a, v in zip(operator.arguments, arguments, strict=True) if a.written and isinstance(v, torch.Tensor)
        ]
        return {id(t): None if t.is_floating_point() or t.is_complex() else t.clone() for t in outputs}

    def after(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        path: str,
        values: dict[int, Any],
    ) -> bool:
        """Record an operator that has just run; whether it computed anything (allocation and views do not)."""
        with self._lock:
            calls_before = self.operator_count
            if self.active:
                self._guard(self._record, operator, args, kwargs, result, path, values)
            return self.operator_count != calls_before

    def part_of(self, op: str, launch: int) -> None:
        """Let a launch belong to ``op``, unless another one was recorded after it."""
        if self.active:
            self._guard(self.writer.rename_last, launch, op)

    def _guard(self, work: Callable[..., None], *args: Any) -> None:
        """Run the recorder's work. If it fails, the recording ends and the program continues."""
        try:
            work(*args)
        except UserError as error:
            self.failure = str(error)
        except Exception as error:  # noqa: BLE001 - printed, and the trace marked
            traceback.print_exc()
            self.failure = f"a bug in tileprof ({type(error).__name__}: {error})"
        if self.failure is not None and self.active:
            self.active = False
            self._progress.end()
            print(f"tileprof: recording stopped, the program continues: {self.failure}", file=sys.stderr)  # noqa: T201

    def _record(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        path: str,
        values: dict[int, Any],
    ) -> None:
        arguments = operator.values(args, kwargs)
        buffers = self.buffers
        buffers.bury()
        for tensor in host_data.arriving(operator.name, arguments, buffers.is_number):
            self._copy_in(tensor, path)
        tensors: list[torch.Tensor] = []
        key: list[Any] = [operator.name]
        # A lifted tensor comes from outside; what it was made of is not memory of the GPU.
        lifted = operator.name == overload_facts.LIFT
        numbers: list[float] | None = [] if operator.entry is not None and operator.entry.any_number else None
        strided = flatten([] if lifted else arguments, tensors, key, numbers)
        inputs = len(tensors)
        key.append("->")
        strided = flatten(result, tensors, key) and strided
        places = buffers.places(tensors, len(tensors) if lifted else inputs)
        if lifted and places[-1] is not None:
            places[-1].made_of_a_number = True
        self._move(path)
        if operator.name in overload_facts.HOST_READS:
            if overload_facts.reads_a_step() or on_host(places):
                return
            self._host_reads += not self.window.closed
        elif operator.silent or overload_facts.counts_steps(operator.name):
            return
        if operator.name == _TO_COPY and on_host(places) and arguments[_DEVICE] is not None:
            self._copy_in(tensors[-1], path)
            return
        if not operator.mutates and (only_aliases(places, inputs) or (operator.foreign and len(places) == inputs)):
            if not operator.foreign:
                return
            # It returns what it was given, or nothing, and says that it writes nothing: then it did nothing, or it
            # lies.
            operator = operator.distrusted()
            key.append("distrusted")
        if buffers.any_host_copy:
            copies = host_copies.moved(tensors, places, inputs)
            if copies is None:
                return
            for tensor in copies:
                self._copy_in(tensor, path)
        self.operator_count += 1
        if autocast.tf32_allowed():
            key.append("tf32")
        if not self.window.covers(path) or self._initialises(operator, places, inputs):
            return
        cached = tuple(key)
        call_of = partial(as_call, operator, arguments, result, tensors, values, tf32=autocast.tf32_allowed())
        kernel_plans, texts = self._planned(operator, cached, call_of, tensors, values, numbers, strided=strided)
        if operator.mutates:
            outputs: list[torch.Tensor] = []
            flatten([v for a, v in zip(operator.arguments, arguments, strict=True) if a.written], outputs, [])
            buffers.wrote(outputs)
        parts = len(kernel_plans) > 1 and operator.name in IN_PARTS and all(one.call for one in kernel_plans)
        whole = call_of() if parts else None
        self._launch(operator.name, kernel_plans, tensors, places, inputs, path, texts, whole)

    def _planned(
        self,
        operator: Operator,
        key: tuple[Any, ...],
        call_of: Callable[..., Call],
        tensors: list[torch.Tensor],
        values: dict[int, Any],
        numbers: list[float] | None,
        *,
        strided: bool,
    ) -> tuple[list[launch_plans.KernelPlan], list[str] | None]:
        """Return the plans of a call's kernels, made now if no earlier call has the key, and the descriptions of its
        arguments if they differ from those of the plans. ``numbers``: arguments that ``key`` does not contain.
        """
        by_value = operator.entry is not None and operator.entry.data_dependent and not _any_fake(tensors)
        kernel_plans = self._plans_by_value.find(key, tensors, values) if by_value else self._plans.get(key)
        if kernel_plans is None:
            read: set[int] = set()
            planned = operator if strided else operator.opaque()
            weights, notes = self.buffers.weight_bytes, self._notes
            kernel_plans = launch_plans.plan(planned, call_of(read), self.device, key, notes, weight_bytes=weights)
            if by_value:
                self._plans_by_value.keep(key, read, tensors, values, kernel_plans)
            else:
                self._plans[key] = kernel_plans
        elif numbers and any(one.call for one in kernel_plans):
            call = call_of()
            return kernel_plans, [call_description(call, one.kernel) for one in kernel_plans]
        return kernel_plans, None

    def _initialises(self, operator: Operator, places: list[Buffer | None], inputs: int) -> bool:
        """Return whether an operator initialises a parameter, a module or its tensors before any module ran.

        On a GPU that is done once, and mostly by the CPU.
        """
        if self.options.initialisation or self.modules.any_called or not places or places[0] is None:
            return False
        if self.modules.converting:
            for result in filter(None, places[inputs:]):
                result.kind = places[0].kind
        elif not (operator.mutates and places[0].kind == "parameter") and not self.modules.constructing():
            return False
        self.window.initialisations += 1
        return True

    # ---- data of the host

    def from_host(self, tensor: torch.Tensor, *, stays: bool, in_use: bool = False) -> None:
        """Python's data became ``tensor``: a copy to the GPU, unless it ``stays`` on the host for now, where it may be
        ``in_use``.
        """
        with self._lock:
            if self.active:
                self._guard(self._arrive, tensor, stays, in_use)

    def moves(self, tensor: torch.Tensor) -> None:
        """Record that the program moved ``tensor`` to the GPU, if it is on the host."""
        with self._lock:
            if self.active and on_host(self.buffers.places([tensor], 1)):
                self._guard(self._arrive, tensor, False, False)

    def _arrive(self, tensor: torch.Tensor, stays: bool, in_use: bool) -> None:
        self.buffers.bury()
        buffer = self.buffers.of(tensor, is_result=True)
        if buffer is not None and stays:
            buffer.on_host = True
            if in_use and self.modules.any_called:
                self._keep_on_host(tensor)
        elif buffer is not None and (self.modules.any_called or not self.modules.constructing()):
            self._copy_in(tensor, self.modules.here())

    def _copy_in(self, tensor: torch.Tensor, path: str) -> None:
        """Record the copy of a tensor from the host."""
        places = self.buffers.places([tensor], 0)
        if places[0] is not None:
            places[0].made_of_a_number = places[0].on_host = places[0].host_copy = False
        self._own(_TO_COPY, copied_in(as_operands(tensor, [])), [tensor], path, inputs=0)

    def left(self, tensor: torch.Tensor, copy: torch.Tensor) -> bool:
        """Record a copy of ``tensor`` to the host, where it is ``copy`` from now on, unless it is there already."""
        with self._lock:
            self.buffers.bury()
            if on_host(self.buffers.places([tensor], 1)):
                return False
            self.to_host(tensor)
            if self.active:
                self._guard(self._keep_on_host, copy)
        return True

    def _keep_on_host(self, tensor: torch.Tensor) -> None:
        self.buffers.any_host_copy = True
        host_copies.keep(self.buffers.of(tensor, is_result=True))

    def to_host(self, tensor: torch.Tensor) -> None:
        """Record that the program read all values of ``tensor``: one copy from the GPU, unless they are the host's."""
        with self._lock:
            if self.active and not on_host(self.buffers.places([tensor], 1)):
                self._host_reads += not self.window.closed
                kernel = copied_out(as_operands(tensor, []))
                self._guard(lambda: self._own(_TO_COPY, kernel, [tensor], self.modules.here()))

    # ---- launches

    def launched(self, op: str, kernel: Kernel, tensors: list[torch.Tensor]) -> None:
        """Record a kernel that the program launched itself; ``kernel.operands`` refer to ``tensors``."""
        with self._lock:
            if self.active:
                self._guard(lambda: self._own(op, kernel, tensors, self.modules.here()))

    def shares(self, tensor: torch.Tensor, other: torch.Tensor) -> bool:
        """Let ``tensor`` stand for the memory of ``other``; see `Buffers.shares`."""
        with self._lock:
            self.buffers.bury()
            return self.buffers.shares(tensor, other)

    def allocated(self, tensor: torch.Tensor) -> None:
        """Make a buffer of memory that a lowered program allocates."""
        with self._lock:
            self.buffers.bury()
            self.buffers.of(tensor, is_result=True)

    def launched_as(
        self, op: str, path: str, key: Hashable, make: Callable[[], Kernel], tensors: list[torch.Tensor]
    ) -> None:
        """Record a kernel of a lowered program; ``make()`` is asked once for launches of equal ``key``."""
        with self._lock:
            if self.active:
                self._guard(lambda: self._lowered(op, path, key, make, tensors))

    def _lowered(
        self, op: str, path: str, key: Hashable, make: Callable[[], Kernel], tensors: list[torch.Tensor]
    ) -> None:
        self.buffers.bury()
        self.operator_count += 1
        places = self.buffers.places(tensors, len(tensors))
        self._move(path)
        if not self.window.covers(path):
            self.buffers.wrote(tensors)
            return
        kernel_plans = self._plans.get((op, key))
        if kernel_plans is None:
            kernel_plans = self._plans[op, key] = [launch_plans.own(make(), op, self.device, key)]
        self.buffers.wrote([tensors[ref] for ref in kernel_plans[0].written_slots])
        self._launch(op, kernel_plans, tensors, places, len(tensors), path)

    def _own(self, op: str, kernel: Kernel, tensors: list[torch.Tensor], path: str, inputs: int | None = None) -> None:
        """Record a kernel of ours; tensors from ``inputs`` on are new memory (none unless given)."""
        inputs = len(tensors) if inputs is None else inputs
        self.buffers.bury()
        self.operator_count += 1
        places = self.buffers.places(tensors, inputs)
        self._move(path)
        self.buffers.wrote(tensors)
        if self.window.covers(path):
            self._launch(op, self._ready(op, kernel), tensors, places, inputs, path)

    def _ready(self, op: str, kernel: Kernel) -> list[launch_plans.KernelPlan]:
        key = launch_plans.content(kernel)
        kernel_plans = self._plans.get((op, key))
        if kernel_plans is None:
            kernel_plans = self._plans[op, key] = [launch_plans.own(kernel, op, self.device, key)]
        return kernel_plans

    def _launch(
        self,
        op: str,
        kernel_plans: list[launch_plans.KernelPlan],
        tensors: list[torch.Tensor],
        places: list[Buffer | None],
        inputs: int,
        path: str,
        texts: list[str] | None = None,
        call: Call | None = None,
    ) -> None:
        """Write the launches of an operator; ``texts``: how it was called, where that differs from when it was
        planned; ``call``: the call itself, where its launches are to be described together.
        """
        buffer_uses: dict[int, tuple[int, int]] = {}
        self._calls += call is not None
        sizes: dict[int, int] = {}
        libraries: dict[int, str] = {}
        for one in kernel_plans:
            for workspace in one.workspaces:
                sizes[workspace.slot] = max(sizes.get(workspace.slot, 0), workspace.bytes)
                libraries[workspace.slot] = workspace.library
        scratch = {slot: self.buffers.scratch(size, libraries[slot]) for slot, size in sizes.items()}
        for number, one in enumerate(kernel_plans):
            if self.window.keeps():
                text = texts[number] if texts else one.call
                bound = self._bindings(one, tensors, places, inputs, scratch)
                if call is not None:
                    slots = zip(one.slots, bound, strict=True)
                    buffer_uses |= {slot: place for slot, place in slots if not isinstance(slot, Scratch)}
                    text = numbered(text, self._calls, call if number == len(kernel_plans) - 1 else None, buffer_uses)
                self._add(op, one, bound, path, text)
        for buffer in scratch.values():
            self.buffers.release(buffer)

    def _move(self, path: str) -> None:
        """Record copies that resized storages cost, whatever the module: known memory is elsewhere now."""
        for move in self.buffers.moves():
            if not self.window.closed and self.window.keeps():
                kernel = move.kernel()
                self._add(move.op, self._ready(move.op, kernel)[0], self.buffers.ends(move, kernel), path)

    def _bindings(
        self,
        one: launch_plans.KernelPlan,
        tensors: list[torch.Tensor],
        places: list[Buffer | None],
        inputs: int,
        scratch: dict[int, Buffer],
    ) -> tuple[tuple[int, int], ...]:
        bound = []
        for slot in one.slots:
            if isinstance(slot, Scratch):
                bound.append((self.buffers.bind(scratch[slot.slot], new=True), 0))
                continue
            buffer, tensor = places[slot], tensors[slot]
            if buffer is None:
                raise ValueError(f"{one.kernel.name} touches operand {slot}, which has no memory")
            number = buffer.id
            if number == ABSENT:
                new = slot >= inputs and not any(buffer is b for b in places[:inputs])
                number = self.buffers.bind(buffer, new=new)
            bound.append((number, self.buffers.offset(tensor)))
        return tuple(bound)

    def _add(
        self, op: str, one: launch_plans.KernelPlan, bound: tuple[tuple[int, int], ...], path: str, call: str = ""
    ) -> None:
        begin_ns = self.end_ns + self._gap_ns if self.tiles else 0
        rows = one.rows or one.launch_rows(self.writer, op)
        launch = self.writer.add_alike(rows, bound, path, begin_ns, call)
        self.end_ns = begin_ns + one.duration.launch_ns
        self.tiles += one.tiles
        if one.kernel.coverage == "conservative":
            self.conservative[op] += 1
        self._progress.say(launch + 1, self.tiles, path)

    # ---- modules

    def _registered(self, tensor: torch.Tensor | None) -> None:
        """A tensor became a parameter; its name comes with the first call."""
        if self.active and tensor is not None:
            with self._lock, _disable_current_modes():  # our questions are no operators
                self._guard(lambda: self.buffers.describe(tensor, "parameter", str))

    def _label(self, root: torch.nn.Module) -> None:
        """Name the tensors of a module that is about to run; parameters may have been swapped since the last time."""
        if not self.active:
            return
        with self._lock, _disable_current_modes():  # our questions are no operators
            self._guard(lambda: self._name_tensors(root))

    def _name_tensors(self, root: torch.nn.Module) -> None:
        self.buffers.bury()
        for module in root.modules():
            is_table = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
            for name, tensor in chain(module._parameters.items(), module._buffers.items()):  # noqa: SLF001
                if tensor is not None:
                    named = partial(self.names.tensor, module, name)
                    self.buffers.describe(tensor, "parameter", named, is_table=is_table)


def _any_fake(values: Iterable[Any]) -> bool:
    return any(isinstance(value, FakeTensor) for value in values)
