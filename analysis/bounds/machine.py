"""The GPU that a bound speaks of: its SMs, and which share of one SM a tile of a launch needs."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.devices import Device, occupancy
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.trace import Recording

MOST_SMS = 100_000
"""Every SM costs the simulator memory; a hundred times the largest GPU."""
MOST_BLOCKS = 10_000
"""Most blocks of an SM."""
RESOURCES = ("block slots", "threads", "registers", "shared memory")


@dataclass(frozen=True, slots=True)
class Machine:
    """A device, perhaps with another number of SMs or with a fixed occupancy ("a GPU of given size").

    ``blocks_per_sm`` replaces the occupancy of every launch when given; ``foreign`` says that nothing was recorded on
    this device, so that occupancies are calculated for it. Durations of tiles stay as recorded.
    """

    device: Device
    sms: int = 0
    blocks_per_sm: int | None = None
    foreign: bool = False

    def __post_init__(self) -> None:
        if self.sms < 0:
            raise UserError(f"a GPU has at least one SM; --sms {self.sms} was given")
        if self.sms > MOST_SMS:
            raise UserError(f"GPUs of at most {MOST_SMS:,} SMs are simulated; --sms {self.sms} was given")
        if self.blocks_per_sm is not None and self.blocks_per_sm < 1:
            raise UserError(f"an SM holds at least one block; --occupancy {self.blocks_per_sm} was given")
        if self.blocks_per_sm is not None and self.blocks_per_sm > MOST_BLOCKS:
            raise UserError(
                f"an SM holds at most {MOST_BLOCKS:,} blocks here; --occupancy {self.blocks_per_sm} was given"
            )
        object.__setattr__(self, "sms", self.sms or self.device.sms)

    def blocks(self, launches: pd.DataFrame) -> NDArray[np.int64]:
        """Return ``[launches]`` resident blocks per SM: as recorded, as given for all, or on a foreign device as
        calculated.

        Raises UserError where a block is too large for a foreign device.
        """
        if self.foreign and self.blocks_per_sm is None:
            return self._calculated(launches)
        recorded = np.maximum(launches["blocks_per_sm"].to_numpy(np.int64), 1)
        return recorded if self.blocks_per_sm is None else np.full_like(recorded, self.blocks_per_sm)

    def _calculated(self, launches: pd.DataFrame) -> NDArray[np.int64]:
        needs = np.stack(
            [product(launches, "block"), *(launches[c].to_numpy(np.int64) for c in ("registers", "shared_bytes"))],
            axis=1,
        )
        kinds, first, kind = np.unique(needs, axis=0, return_index=True, return_inverse=True)
        blocks_per_sm = np.ones(len(kinds), np.int64)
        for i, (threads, registers, shared_bytes) in enumerate(kinds.tolist()):
            resident = occupancy(self.device, threads, registers, shared_bytes)
            if resident.blocks_per_sm < 1:
                kernel = str(launches["kernel"].iloc[first[i]])
                raise UserError(
                    f"{self.device.name} is too small for launch {first[i]} ({kernel[:60]}): a block of {threads} "
                    f"threads, {registers} "
                    f"registers and {shared_bytes:,} bytes of shared memory exceeds its "
                    f"{'shared memory' if resident.limiter == 'shared' else resident.limiter}; choose another --device"
                )
            blocks_per_sm[i] = resident.blocks_per_sm
        return np.asarray(blocks_per_sm[kind.ravel()], dtype=np.int64)

    def slots(self, launches: pd.DataFrame) -> NDArray[np.int64]:
        """Return ``[launches]`` tiles that run at the same time when a launch has the GPU to itself, at least one.

        A tile of a launch in clusters takes as many block slots as its cluster has blocks. A persistent launch
        (more tiles than blocks or clusters) runs no more tiles at a time than it has blocks.
        """
        cluster = product(launches, "cluster")
        grid = np.maximum(product(launches, "grid") // cluster, 1)
        slots = np.maximum(self.sms * self.blocks(launches) // cluster, 1)
        persistent = launches["tiles"].to_numpy(np.int64) > grid
        return np.asarray(np.where(persistent, np.minimum(slots, grid), slots), dtype=np.int64)

    def shares(self, launches: pd.DataFrame) -> NDArray[np.float64]:
        """Return ``[launches, resources, functions]``: SMs' worth of a resource that a resident tile holds, at least.

        Function 0 is the plain share. The others are dual feasible functions of it (Fekete and Schepers, "New classes
        of fast lower bounds for bin packing problems", 2001): whatever blocks share an SM, their values sum to at most
        1, and blocks of which only two fit count as halves even where they fill less. Never more than the occupancy
        says: where registers and shared memory of a launch would not fit as often as was seen, what was seen is
        believed.
        """
        a_block = (self.demands(launches) / self.capacity)[:, :, None]
        functions = [a_block, *(dual_feasible(a_block, k) for k in range(1, self.device.blocks_per_sm + 1))]
        return np.concatenate(functions, axis=2) * product(launches, "cluster")[:, None, None]

    @property
    def capacity(self) -> NDArray[np.int64]:
        """``[resources]`` of one SM, in the order of `RESOURCES`."""
        device = self.device
        return np.array(
            [device.blocks_per_sm, device.threads_per_sm, device.registers_per_sm, device.shared_bytes_per_sm], np.int64
        )

    def demands(self, launches: pd.DataFrame) -> NDArray[np.int64]:
        """Return ``[launches, resources]`` of a block, such that exactly as many blocks of a launch reside as `blocks`
        says.

        What was seen is believed: where the recorded needs would let fewer reside they count as less, and where they
        would let more reside, something unrecorded is scarce, and stands among the registers.
        """
        device = self.device
        threads = rounded(product(launches, "block"), device.warp_size)
        registers = rounded(
            np.maximum(launches["registers"].to_numpy(np.int64), 1) * device.warp_size, device.register_allocation_unit
        ) * (threads // device.warp_size)
        shared = rounded(
            launches["shared_bytes"].to_numpy(np.int64) + device.shared_bytes_reserved, device.shared_allocation_bytes
        )
        demand = np.stack([np.ones_like(threads), threads, registers, shared], axis=1)
        blocks = self.blocks(launches)
        most = self.capacity // blocks[:, None]
        demand = np.minimum(demand, most)
        more_fit = (self.capacity // np.maximum(demand, 1)).min(axis=1) > blocks
        demand[more_fit, RESOURCES.index("registers")] = most[more_fit, RESOURCES.index("registers")]
        return np.asarray(demand, dtype=np.int64)

    def units(self, launches: pd.DataFrame) -> tuple[NDArray[np.int64], int]:
        """Return integer slot units: ``[launches]`` units that a tile holds, and the units of the whole GPU.

        A tile of a launch with b resident blocks per SM holds 1/b of an SM (times its cluster's blocks), whichever
        resource is the scarce one. Units make these shares whole numbers, so that kernels of different occupancy
        share the pool exactly.
        """
        blocks = self.blocks(launches)
        an_sm = lcm(*(int(b) for b in np.unique(blocks))) if len(blocks) else 1
        capacity = self.sms * an_sm
        return np.minimum(product(launches, "cluster") * (an_sm // blocks), capacity), capacity


def machine_of(
    trace: Recording, device: Device | None = None, sms: int = 0, blocks_per_sm: int | None = None
) -> Machine:
    """Return the machine that a user asks for, from the trace's own device where nothing else is said."""
    described_device = device or trace.device
    return Machine(described_device, sms, blocks_per_sm, foreign=described_device.name != trace.device.name)


def product(launches: pd.DataFrame, what: str) -> NDArray[np.int64]:
    """Return ``[launches]`` number of blocks of a grid or cluster, threads of a block; at least one."""
    xyz = launches[[f"{what}_{axis}" for axis in "xyz"]].to_numpy(np.int64)
    return np.asarray(np.maximum(xyz, 1).prod(axis=1), dtype=np.int64)


def dual_feasible(share: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Return the function u(k) of Fekete and Schepers: x where (k+1) x is whole, else floor((k+1) x) / k."""
    steps = share * (k + 1)
    on_step = np.abs(steps - np.round(steps)) < 1e-9
    return np.where(on_step, share, np.floor(steps) / k)


def rounded(values: NDArray[Any], unit: int) -> NDArray[np.int64]:
    """Return values rounded up to whole allocation units."""
    unit = max(unit, 1)
    return np.asarray(-(-values // unit) * unit, dtype=np.int64)
