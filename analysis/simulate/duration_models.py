"""Duration models: how long a tile lives beside others.

| model | a tile's life |
|---|---|
| ``recorded`` | what the trace says, whatever runs beside it |
| ``co-residency-scaled`` | ``1 + sensitivity * fill`` of its SM, from the fill when it was recorded |
| ``shared-roofline`` | all slow down together while they ask for more bandwidth or arithmetic than there is |

What a tile does before it first waits is done by the same rules; what it could do between its first and its last wait
is done at rate 1 and puts no load on others. While it waits, a signal on its way to it included, nothing is done, and
others feel nothing of it.

Which bounds hold: with ``recorded`` those that follow from lives (area, both paths, head and tail); nothing keeps such
a run from moving more bytes than the DRAM can, so the roofline's do not. With ``co-residency-scaled`` the same, from
the shortest lives that the model allows (`LifeModel.shortest`). With ``shared-roofline`` lives are never shorter than
recorded, so all that hold for ``recorded`` do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.durations import Durations
from tileprof.analysis.bounds.machine import Machine, product
from tileprof.analysis.bounds.rates import compute_ns
from tileprof.analysis.bounds.traffic import distinct_bytes
from tileprof.analysis.simulate.engine.clocks import FULL, Sharing, alone
from tileprof.analysis.simulate.scheduler import Options, close, key_values, option
from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tileprof.trace import Recording


class LifeModel(Protocol):
    """A frozen dataclass of options; ``name`` as on the command line, ``says`` a sentence for the reader of a
    result.
    """

    name: ClassVar[str]
    says: ClassVar[str]

    def shared(self, trace: Recording, machine: Machine, lives: Durations) -> tuple[Durations, Sharing]:
        """Return work of all tiles (ns at rate 1) and what tiles of all launches share, from lives as recorded."""
        ...

    def shortest(self, trace: Recording, machine: Machine, lives: Durations) -> Durations:
        """Return lives than which the model allows none shorter: what a bound may be computed from."""
        ...

    def with_options(self, options: Mapping[str, str]) -> Self:
        """Return a copy with options given as text."""
        ...


class _AsRecorded(Options):
    """Defaults that a duration model inherits."""

    kind: ClassVar[str] = "durations"

    def shared(self, trace: Recording, machine: Machine, lives: Durations) -> tuple[Durations, Sharing]:  # noqa: ARG002 - others need it
        return lives, alone(len(trace.launches))

    def shortest(self, trace: Recording, machine: Machine, lives: Durations) -> Durations:  # noqa: ARG002 - others need it
        return lives


@dataclass(frozen=True)
class Recorded(_AsRecorded):
    """Lives of the trace."""

    name: ClassVar[str] = "recorded"
    says: ClassVar[str] = "Tiles last as recorded, whatever runs beside them."


@dataclass(frozen=True)
class CoResidencyScaled(_AsRecorded):
    """A block's life grows linearly with how full its SM is: ``life = work * (1 + sensitivity * fill)``.

    ``fill`` is the sum over the SM's blocks of the share that each takes up (one over the resident blocks of its
    launch, by the occupancy calculator or as recorded), 1 on a full SM. Work follows from the recorded life and the
    fill when the launch ran alone: as many blocks on each SM as the launch has, at most the resident ones. Linear
    interference by occupancy is assumed: SMs share issue slots, caches and ports in a way that no single number
    describes.

    ``sensitivity``, how much longer a block lives on a full SM than on an empty one, was measured for one kernel alone:
    two launches of an fp32 GEMM on an H200 (``tests/golden/gemm_fp32.tileprof``), whose blocks share an SM in pairs but
    for 8 of 256; those in pairs, at 1/6 of a full SM instead of 1/12, live 2.0% and 1.3% longer, so 0.24 and 0.15.
    Kernels that saturate an SM have a higher one.
    """

    name: ClassVar[str] = "co-residency-scaled"
    says: ClassVar[str] = (
        "Tiles live longer on fuller SMs, in proportion to the blocks there (sensitivity measured for one GEMM on "
        "an H200)."
    )

    sensitivity: float = option(0.2, "how much longer a block lives on a full SM than on an empty one", most=10.0)

    def shared(self, trace: Recording, machine: Machine, lives: Durations) -> tuple[Durations, Sharing]:
        fills = self.sensitivity * _recorded_fills(trace)
        share = self.sensitivity / machine.blocks(trace.launches)
        loads = np.rint(FULL * share).astype(np.int64)[:, None]
        return scaled(lives, trace, 1.0 / (1.0 + fills)), Sharing(machine.sms, by_sm=True, base=FULL, loads=loads)

    def shortest(self, trace: Recording, machine: Machine, lives: Durations) -> Durations:
        own = self.sensitivity / machine.blocks(trace.launches)
        rounding = 1.0 - 2.0 / FULL  # of loads
        return scaled(lives, trace, (1.0 + own) / (1.0 + self.sensitivity * _recorded_fills(trace)) * rounding)


@dataclass(frozen=True)
class SharedRoofline(_AsRecorded):
    """Tiles that work at a time share what the GPU sustains of DRAM bandwidth and of arithmetic (processor sharing over
    a roofline; Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model", 2009, for the two
    resources).

    At rate 1 a tile asks for its launch's distinct bytes and FLOPs, over the sum of its tiles' lives. While all tiles
    together ask for more than there is of a resource, those that use it slow down in the same proportion; none is
    ever faster than recorded. A launch alone asks for no more than all there is: it runs as recorded. Every distinct
    byte of a launch is taken to cross DRAM, as the model recorder takes it: what an earlier launch has just left in L2
    counts as too much. Sustained rates are the device's.
    """

    name: ClassVar[str] = "shared-roofline"
    says: ClassVar[str] = (
        "Tiles are slower than recorded while those that run together ask for more DRAM bandwidth or arithmetic than "
        "the GPU sustains."
    )

    def shared(self, trace: Recording, machine: Machine, lives: Durations) -> tuple[Durations, Sharing]:
        launches, device = trace.launches, machine.device
        work_ns = np.maximum(lives.sums(launches["tiles"].to_numpy(np.int64)), 1e-9)
        dram_ns = distinct_bytes(trace) / device.sustained_bytes_per_s * 1e9
        arithmetic_ns = compute_ns(trace, device, sustained=True) * device.sms / machine.sms
        at_a_time = np.maximum(np.minimum(machine.slots(launches), launches["tiles"].to_numpy(np.int64)), 1)
        share = np.stack([dram_ns, arithmetic_ns], axis=1) / work_ns[:, None]
        loads = np.floor(FULL * np.minimum(share, 1.0 / at_a_time[:, None])).astype(np.int64)
        return lives, Sharing(4, by_sm=False, base=0, loads=loads)


MODELS: dict[str, LifeModel] = {model.name: model for model in (Recorded(), CoResidencyScaled(), SharedRoofline())}
RECORDED: LifeModel = MODELS["recorded"]


def life_model(text: str) -> LifeModel:
    """Return the model that ``name`` or ``name:key=value,…`` asks for. Raises UserError for an unknown one, with a
    close match.
    """
    name, options = key_values(text, "durations")
    if name not in MODELS:
        raise UserError(f"there is no model of durations {name!r}{close(name, MODELS)}; there are {', '.join(MODELS)}")
    return MODELS[name].with_options(options)


def scaled(lives: Durations, trace: Recording, factor: NDArray[np.float64]) -> Durations:
    """Return lives of each launch times a factor of its own; shared where both were."""
    tiles = trace.launches["tiles"].to_numpy(np.int64)
    cache: dict[tuple[int, int, float], int] = {}
    parts: list[NDArray[np.float64]] = []
    begins = np.zeros(len(tiles), np.int64)
    end = 0
    for i, key in enumerate(zip(lives.begins.tolist(), tiles.tolist(), factor.tolist(), strict=True)):
        if key not in cache:
            cache[key] = end
            parts.append(lives.of(i, key[1]) * key[2])
            end += key[1]
        begins[i] = cache[key]
    return replace(lives, ns=np.concatenate([*parts, np.empty(0)]), begins=begins)


def _recorded_fills(trace: Recording) -> NDArray[np.float64]:
    """Return ``[launches]`` how full the SMs were that a launch ran on, alone."""
    machine = Machine(trace.device)
    resident = machine.blocks(trace.launches)
    blocks = trace.launches["tiles"].to_numpy(np.int64) * product(trace.launches, "cluster")
    return np.asarray(np.minimum(-(-blocks // machine.sms), resident) / resident, dtype=np.float64)
