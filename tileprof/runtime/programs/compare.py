"""Times a model's call: by PyTorch, by Inductor, and by ``torch.compile(backend="tileprof")``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from tileprof.devices import of_driver
from tileprof.errors import UserError
from tileprof.runtime.compile.racing.report import Report, reports
from tileprof.runtime.programs.calls import Call, tensors_in
from tileprof.runtime.programs.expected import expected_us
from tileprof.runtime.programs.timeline import Timeline, observing

VARIANTS: Final = ("eager", "inductor", "tileprof")

_REPLAYS: Final = 30
_WARM: Final = 5


@dataclass(slots=True)
class Comparison:
    """One call, measured. ``us``: medians, by variant; ``graph``: whether they are those of CUDA graphs; ``failures``:
    sentences, by variant.

    ``shares``: by the operator's name in ATen the part of eager PyTorch's time on the GPU that it takes.
    """

    name: str
    count: int
    us: dict[str, float] = field(default_factory=dict)
    graph: bool = True
    bound_us: float | None = None
    expected_us: float | None = None
    """Time of the program with kernels of this package, predicted from their plans before it ran."""
    failures: dict[str, str] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    timelines: list[Timeline] = field(default_factory=list)
    """Timelines of one run of each kernel that has clocks, if they were asked for."""

    @property
    def winners(self) -> str:
        """The parts of the model that run in kernels of this package; empty where nothing does."""
        return ", ".join(r.winner for r in self.reports if r.winner)

    @property
    def inductor_operators(self) -> list[tuple[str, int, float]]:
        """Operators that those kernels do not take: name, how many, and their part of eager PyTorch's time; the longest
        first.
        """
        counts: Counter[str] = Counter()
        for report in self.reports:
            counts.update(report.inductor_operators)
        return sorted(((n, c, self.shares.get(n, 0.0)) for n, c in counts.items()), key=lambda row: -row[2])


def compare(call: Call, clock: Callable[..., Any] | None = None, *, timelines: bool = False) -> Comparison:
    """Measure a call; what fails of it is said in ``failures``. ``clock`` measures: `time_calls`, unless told
    otherwise.

    ``timelines``: also run kernels that have clocks once with these.
    """
    comparison = Comparison(call.name, call.count)
    state = _State(call)
    works: dict[str, Callable[[], Any]] = {}
    torch._dynamo.reset()  # noqa: SLF001 - its public name
    with torch.no_grad(), reports() as collected:
        for variant in VARIANTS:
            model = _compiled_model(call.model, variant)
            try:
                state.restore()
                model(*call.args, **call.kwargs)
            except Exception as error:  # noqa: BLE001 - a compiler's failure is a result here
                comparison.failures[variant] = _sentence(error)
                continue
            works[variant] = partial(model, *call.args, **call.kwargs)
        state.restore()
        comparison.us, comparison.graph = (clock or time_calls)(works, state.restore)
        state.restore()
        comparison.shares = _shares(works["eager"]) if "eager" in works else {}
        state.restore()
        if timelines and "tileprof" in works:
            with observing(partial(_time_region, comparison)):
                works["tileprof"]()
            state.restore()
    comparison.reports = collected
    comparison.bound_us = _bound(call)
    comparison.expected_us = expected(collected)
    return comparison


def expected(reports: list[Report]) -> float | None:
    """Return microseconds predicted for programs with kernels of this package, on the current GPU.

    None where none is a program of these, or no model of it is there.
    """
    if not torch.cuda.is_available():
        return None
    try:
        device = of_driver(torch.cuda.get_device_name())
    except UserError:
        return None
    each = [expected_us(report.regions, report.inductor_operators, device) for report in reports]
    return sum(us for us in each if us is not None) if each and None not in each else None


def _time_region(comparison: Comparison, region: Any, device: Any, inputs: list[Any]) -> None:
    """Run a region once more, with clocks; what it updates is put back."""
    if region.timed is None:
        return
    updated = [inputs[number] for number in region.mutated]
    before = [tensor.clone() for tensor in updated]
    try:
        comparison.timelines.append(region.timed(device, inputs))
    except (UserError, RuntimeError) as error:
        comparison.failures[f"timeline of {region.name}"] = _sentence(error)
    for tensor, saved in zip(updated, before, strict=True):
        tensor.copy_(saved)


def _compiled_model(model: Any, variant: str) -> Any:
    if variant == "eager":
        return model
    return torch.compile(model, backend=variant)


class _State:
    """The tensors that a call changes in place, found by making it, and their values from before."""

    def __init__(self, call: Call) -> None:
        tensors = [*tensors_in((call.args, call.kwargs)), *call.model.buffers()]
        before = [t.clone() for t in tensors]
        with torch.no_grad():
            call.model(*call.args, **call.kwargs)
        tensors_now = [*tensors_in((call.args, call.kwargs)), *call.model.buffers()]
        if {id(t) for t in tensors_now} != {id(t) for t in tensors}:
            raise UserError(
                "the call makes tensors that later calls go on with, such as a cache's first, and cannot be repeated"
            )
        pairs = zip(tensors, before, strict=True)
        self._changed = [(t, b) for t, b in pairs if t.shape == b.shape and not torch.equal(t, b)]
        self.restore()

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, saved in self._changed:
                tensor.copy_(saved)


def time_calls(works: dict[str, Callable[[], Any]], restore: Callable[[], None]) -> tuple[dict[str, float], bool]:
    """Return microseconds of each, medians of calls that take turns, in CUDA graphs; without graphs, where one of them
    cannot be captured.
    """
    from statistics import median  # noqa: PLC0415 - beside its use

    from tileprof.runtime.measuring.timing import captured  # noqa: PLC0415

    runs, in_graphs = dict(works), True
    try:
        runs = {name: captured(work).replay for name, work in works.items()}
    except RuntimeError:
        torch.cuda.synchronize()
        runs, in_graphs = dict(works), False
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(_REPLAYS + _WARM):
        for name, run in runs.items():
            restore()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            if number >= _WARM:
                times[name].append(float(1000 * begin.elapsed_time(end)))
    return {name: median(t) for name, t in times.items()}, in_graphs


def _shares(work: Callable[[], Any]) -> dict[str, float]:
    """Return the share of each ATen operator's own kernels in the kernel time of one eager call."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - slow to import

    there = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if there else [])]) as profiler:
        work()
        if there:
            torch.cuda.synchronize()
    time_column = "self_device_time_total" if there else "self_cpu_time_total"
    times = {
        e.key.removeprefix("aten::"): float(getattr(e, time_column))
        for e in profiler.key_averages()
        if e.key.startswith("aten::")
    }
    total = sum(times.values())
    return {name: t / total for name, t in times.items() if t > 0} if total else {}


def _bound(call: Call) -> float | None:
    """Return microseconds in which the GPU's memory hands over every weight once; None where the GPU is not known."""
    device = next((p.device for p in call.model.parameters() if p.is_cuda), None)
    if device is None:
        return None
    try:
        gpu = of_driver(torch.cuda.get_device_name(device))
    except UserError:
        return None
    weights = {p.data_ptr(): p.nbytes for p in call.model.parameters()}  # tied weights count once
    return float(1e6 * sum(weights.values()) / gpu.sustained_bytes_per_s)


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"
