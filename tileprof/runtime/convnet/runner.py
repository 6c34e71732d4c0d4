"""A network on a device: its weights where they lie, memory for what layers hand on, one launch per call."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final

import torch

from tileprof.errors import UserError
from tileprof.runtime.convnet.network import Convolution, Network
from tileprof.runtime.convnet.network_build import Options
from tileprof.runtime.convnet.network_launch import THREADS, Launcher, layer_results
from tileprof.runtime.convnet.plan import Plan, plan_network, verify
from tileprof.runtime.convnet.weights import Weights, laid_out
from tileprof.runtime.persistent.source import SHARED_BYTES
from tileprof.runtime.programs.timeline import Timeline, of_network

_CAPABILITY: Final = (9, 0)


class NetworkRunner:
    """Runs a network whose input comes first and whose parameters follow: a `Runner` of `compile.region`.

    Where weights lie is noted at the first call, which is not to be captured; what has to lie otherwise, and batch
    norms, are copied there. ``shape`` is the result's; a ``plan`` that is given is not verified. Raises `UserError`
    where the device or the network does not fit.
    """

    frozen = True

    def __init__(
        self,
        network: Network,
        device: torch.device,
        shape: Sequence[int],
        options: Options | None = None,
        plan: Plan | None = None,
    ) -> None:
        if torch.cuda.get_device_capability(device) != _CAPABILITY:
            raise UserError("convolutional networks in one launch need a GPU of compute capability 9.0")
        self.network, self.device, self.shape = network, torch.device(device), tuple(shape)
        if plan is None:
            plan = plan_network(network, torch.cuda.get_device_properties(device).multi_processor_count)
            verify(plan)
        self.plan = plan
        self._options = replace(options or Options(), dtype=network.dtype, slot_bytes=plan.slot_bytes)
        self._launcher = Launcher(plan, device, self._options)
        self._memory: list[Any] | None = None
        self._weights: list[Weights | None] = []  # one list of all twins, filled by the first of them that is called

    def __call__(self, x: Any, *parameters: Any) -> tuple[Any, ...]:
        """Return the network's result, in a tensor of its own."""
        if self._memory is None:
            self._bind(parameters)
        out = torch.empty(self.shape, dtype=getattr(torch, self.network.dtype), device=self.device)
        self._launcher.launch(x, out)
        return (out,)

    def twin(self) -> NetworkRunner:
        """Return a runner with semaphores and memory of its own, and the same weights."""
        other = copy(self)
        other._launcher = Launcher(self.plan, self.device, self._options)  # noqa: SLF001 - of its own class
        other._memory = None  # noqa: SLF001
        return other

    def check(self) -> None:
        """Synchronise; raises `RuntimeError` that names the layer, tile and semaphore of a wait that gave up."""
        record = self._launcher.shared[3].tolist()
        if record[0]:
            _, layer, task, semaphore, posts, expected = record[:6]
            image, row, column, channels = self.plan.tasks[task, 1:5].tolist()
            raise RuntimeError(
                f"{self.network.name(layer)}: the tile at image {image}, row {row}, column {column}, "
                f"column of tiles {channels} waited for semaphore {semaphore} in vain: {posts} posts of {expected}"
            )

    @property
    def seed(self) -> Any:
        """The seed of delays in tests, int32 on the device."""
        return self._launcher.shared[0]

    @property
    def results(self) -> list[Any]:
        """The result of each layer in the last run, without the network's own result. Later layers may have written
        there, unless the plan was made without ``reuse``.
        """
        return self._memory or []

    @property
    def timeline(self) -> Any:
        """Timeline of the last run, where `Options` asks for one: [tasks, places], nanoseconds, by `PLACES`; 0: not
        reached.
        """
        return self._launcher.times.view(len(self.plan.tasks), -1)

    def _bind(self, parameters: Sequence[Any]) -> None:
        network = self.network
        if not self._weights:
            with torch.no_grad():
                self._weights[:] = [
                    laid_out(network, layer, tiling, parameters) if isinstance(layer, Convolution) else None
                    for layer, tiling in zip(network.layers, self.plan.tilings, strict=True)
                ]
        results = layer_results(self.plan, torch.empty(self.plan.memory_bytes, dtype=torch.uint8, device=self.device))
        self._launcher.bind([*results, None], self._weights)
        self._memory = results


def timed_run(network: Network, shape: Sequence[int], device: torch.device, inputs: Sequence[Any]) -> Timeline:
    """Return what each task did in a run that is not the first, by a kernel with clocks."""
    runner = NetworkRunner(network, device, shape, Options(timeline=True))
    for _ in range(3):
        runner(*inputs)
    runner.check()
    return of_network(runner.plan, runner.timeline.cpu().numpy(), THREADS, SHARED_BYTES)
