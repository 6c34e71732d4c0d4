"""Counts the blocks of a kernel that an SM holds at once.

Gives what NVIDIA's ``cudaOccMaxActiveBlocksPerMultiprocessor`` (``cuda_occupancy.h``, CUDA 13.0) gives when
the kernel may use all of the SM's shared memory, without compiling or linking anything of NVIDIA's.
"""

from __future__ import annotations

from dataclasses import dataclass

from tileprof.devices.device import Device

_SUB_PARTITIONS = 4  # of an SM, sm_70 to sm_100: registers are handed out within a quarter of the SM


@dataclass(frozen=True, slots=True)
class Occupancy:
    """``blocks_per_sm`` resident blocks, and what limits them.

    ``limiter`` is ``blocks``, ``threads``, ``registers`` or ``shared`` (the first of these where several
    bind); with 0 blocks it names what one block alone exceeds.
    """

    blocks_per_sm: int
    limiter: str


def occupancy(device: Device, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Return resident blocks per SM, for blocks of ``threads`` threads with ``registers`` registers each.

    ``shared_bytes`` is the static and dynamic shared memory of a block, without what CUDA reserves. Zero
    registers or shared bytes do not limit. Raises ValueError for threads < 1 or negative sizes.
    """
    if threads < 1 or registers < 0 or shared_bytes < 0:
        raise ValueError(f"no kernel has {threads} threads, {registers} registers, {shared_bytes} shared bytes")
    warps = -(-threads // device.warp_size)
    limits = {
        "blocks": device.blocks_per_sm,
        "threads": _by_threads(device, threads, warps),
        "registers": _by_registers(device, registers, warps),
        "shared": _by_shared(device, shared_bytes),
    }
    limiter = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[limiter], limiter)


def _by_threads(device: Device, threads: int, warps: int) -> int:
    if threads > device.threads_per_block:
        return 0
    return device.threads_per_sm // device.warp_size // warps


def _by_registers(device: Device, registers: int, warps: int) -> int:
    if registers == 0:
        return device.blocks_per_sm
    unit = device.register_allocation_unit
    per_warp = -(-registers * device.warp_size // unit) * unit
    warps_rounded = -(-warps // _SUB_PARTITIONS) * _SUB_PARTITIONS
    if registers > device.registers_per_thread or per_warp * warps_rounded > device.registers_per_block:
        return 0
    return device.registers_per_sm // _SUB_PARTITIONS // per_warp * _SUB_PARTITIONS // warps


def _by_shared(device: Device, shared_bytes: int) -> int:
    if shared_bytes > device.shared_bytes_per_block:
        return 0
    unit = device.shared_allocation_bytes
    allocated_bytes = -(-(shared_bytes + device.shared_bytes_reserved) // unit) * unit
    return device.shared_bytes_per_sm // allocated_bytes if allocated_bytes else device.blocks_per_sm
