"""Kernels that Inductor generates for a described GPU, and their accesses by brute force: Triton's interpreter runs
every program and notes every address.
"""

import dataclasses
import os
import types
from unittest import mock

import numpy as np
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")

from tileprof import devices
from tileprof.record.model.compiled import kernels, lowering
from tileprof.record.model.compiled.wrapper import Listener
from tileprof.record.triton.interpreter import watching


class Collected(Listener):
    """Collects launches. ``real`` are tensors with the same layouts as the fake ones, and with memory."""

    def __init__(self):
        self.launches = []

    def mark(self, op, module):
        pass

    def allocated(self, tensor):
        pass

    def remark(self, text):
        pass

    def launched(self, kernel, arguments):
        self.launches.append((kernel, arguments))


def launches_of(function, *inputs, device="H200", settings=None):
    """Return the launches of a compiled function; their tensors are fake."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch._dynamo.reset()
    listener = Collected()

    def backend(graph, examples):
        run = lowering.lower(
            graph, examples, settings or {}, devices.get(device), listener, lambda run, arguments: run(arguments)
        )

        def call(*arguments):
            with FakeTensorMode(allow_non_fake_inputs=True):
                fakes = [
                    torch.empty_strided(a.shape, a.stride(), dtype=a.dtype) if isinstance(a, torch.Tensor) else a
                    for a in arguments
                ]
                return run(*fakes)

        return call

    with torch.no_grad():
        torch.compile(function, backend=backend)(*inputs)
    return listener.launches


def with_memory(arguments, fill=0):
    """Return real tensors in the layouts of fake ones. Equal fakes become one tensor; views share their memory."""
    storages, real = {}, []
    for argument in arguments:
        if not isinstance(argument, torch.Tensor):
            real.append(argument)
            continue
        key = argument.untyped_storage()._cdata
        size = argument.untyped_storage().nbytes()
        if key not in storages:
            storages[key] = torch.full((size,), fill, dtype=torch.uint8)
        flat = storages[key][: size // argument.element_size() * argument.element_size()].view(argument.dtype)
        real.append(torch.as_strided(flat, argument.shape, argument.stride(), argument.storage_offset()))
    return real


def brute_force(kernel, arguments, evaluation):
    """Return the bytes of each program, {(tile, mode): set of addresses}, from real tensors in Triton's interpreter."""
    from triton.runtime import interpreter

    choice = kernel.choice()
    choice.index = next(
        n
        for n in range(len(choice.configs))
        if kernels._grid(dataclasses.replace(choice, index=n), _constants(choice, arguments)) == evaluation.grid
    )
    function = _interpreted(kernel)
    constants = _constants(choice, arguments)
    constants |= {n: v for n, v in choice.constants.items() if n not in kernels._OPTIONS}
    grid = kernels._grid(choice, constants)
    own = kernels._accepted_arguments(kernel.source, kernel.name, constants)
    with watching(interpreter.interpreter_builder) as watch, np.errstate(all="ignore"):
        function[grid](**own)
    touched_bytes = {}
    for (x, y, z), log in zip(watch.at, watch.programs, strict=True):
        tile = x + grid[0] * (y + grid[1] * z)
        for mode, begin, end in log.accesses:
            for low, high in zip(begin.tolist(), end.tolist(), strict=True):
                touched_bytes.setdefault((tile, mode), set()).update(range(low, high))
    return touched_bytes


def _constants(choice, arguments):
    extra = list(choice.meta.get("extra_launcher_args", ()))
    return dict(zip([*choice.names, *extra], arguments, strict=True))


def _interpreted(kernel):
    """Return the kernel as Triton's interpreter takes it, without the functions of values that the interpreter
    lacks.
    """
    heuristics = __import__("torch._inductor.runtime.triton_heuristics", fromlist=["*"])
    helpers = __import__("torch._inductor.runtime.triton_helpers", fromlist=["*"])
    module = types.ModuleType(kernel.name)
    module.__file__ = f"/{kernel.name}.py"

    def decorated(*_, **__):
        return lambda function: function

    with (
        mock.patch.object(heuristics, "cached_autotune", decorated),
        mock.patch.object(helpers, "set_driver_to_gpu"),
    ):
        exec(kernels._compiled_code(kernel.source, kernel.name), vars(module))

    class First:
        def __getattr__(self, name):
            return lambda value, *_, **__: value

    vars(module)["libdevice"] = First()
    return vars(module)[kernel.name]


def modelled(kernel, arguments, values=kernels.integers_of):
    """Return the bytes that `evaluate` gives, in the form of `interpreted`."""
    evaluation, _ = kernel.kernel(tuple(arguments), values)
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    boxes, touched_bytes = evaluation.footprint.boxes, {}
    for n in range(len(boxes)):
        base = tensors[evaluation.operands[boxes.operand[n]].ref].data_ptr() + int(boxes.offset[n])
        cells = touched_bytes.setdefault((int(boxes.tile[n]), int(boxes.mode[n])), set())
        for i in range(boxes.count_0[n]):
            for j in range(boxes.count_1[n]):
                begin = base + i * int(boxes.stride_0[n]) + j * int(boxes.stride_1[n])
                cells.update(range(begin, begin + int(boxes.length[n])))
    return evaluation, touched_bytes
