"""Triton kernels of your own as stages of a policy: two lines in each kernel, and one object beside the launches.

In the kernel, `enter` gives the tile that a block takes, once everything that the policy makes it await is there;
`leave` says that its stores are done::

    @triton.jit
    def scale(x, y, sync, BLOCK: tl.constexpr):
        tile = enter(sync, tl.program_id(0))                  # was: tile = tl.program_id(0)
        at = tile * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, 2 * tl.load(x + at))
        leave(sync, tile)                                     # new

    stages = Synchroniser.from_policy("policy.json")          # of `tileprof record`, then `tileprof export`
    scale[grid](x, y, stages[0], BLOCK=1024, **stages.launch(0))
    scale[grid](y, z, stages[1], BLOCK=1024, **stages.launch(1))
    stages.check()                                            # waits for the device; raises if a wait has given up

A tile's number is that of its block, x fastest: ``x + grid_x * (y + grid_y * z)``. `unsynchronised` makes the same
kernels run as they did, which is what Triton's interpreter and `tileprof record` want. Loads of what other stages write
come after `enter`; loads of what nothing writes (weights) may come before it. Semaphores and waits are those of
`tileprof.runtime.sync.device`; here their tables are found at run time, in one small table a stage, so that a kernel
takes a single argument more: two dependent loads that our own kernels save.
"""

# Triton's language, of which Python's types say nothing:
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call"
# ruff: noqa: ANN001, ANN201, ANN202 - Triton reads the signatures of what it compiles
from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, globaltimer

from tileprof.errors import UserError
from tileprof.policy.format import Policy, load_policy
from tileprof.runtime.errors import WaitTimeoutError, gave_up
from tileprof.runtime.sync.device import (
    FLAG_WORDS,
    RECORD_WORDS,
    claim_record,
    load_acquire_gpu_s32,
    load_relaxed_gpu_s32,
    nanosleep,
)
from tileprof.runtime.sync.tables import FLAG_BYTES, Tables

_WAITS: Final = tl.constexpr(0)
_POSTS: Final = tl.constexpr(1)
_FLAGS: Final = tl.constexpr(2)
_RUNS: Final = tl.constexpr(3)
_RECORD: Final = tl.constexpr(4)
_ORDER: Final = tl.constexpr(5)
_WIDTH: Final = tl.constexpr(6)
_POSTED: Final = tl.constexpr(7)
_STAGE: Final = tl.constexpr(8)
_LAST: Final = tl.constexpr(9)
_TRIGGER: Final = tl.constexpr(10)
_OVERLAPPED: Final = tl.constexpr(11)
_TIMEOUT: Final = tl.constexpr(12)
_WORDS: Final = 16
"""The layout of a stage's table of int64; addresses come first."""


@triton.jit
def _column(sync, which):
    return tl.load(sync + which).to(tl.pointer_type(tl.int32))


@triton.jit
def enter(sync, block):
    """The tile that a block takes, after everything that the tile awaits."""
    tile = block
    if tl.load(sync + _ORDER) != 0:
        tile = tl.load(_column(sync, _ORDER) + block)
    if tl.load(sync + _TRIGGER) != 0:
        gdc_launch_dependents()
    width = tl.load(sync + _WIDTH).to(tl.int32)
    if width > 0:
        waits, flags, runs, record = (
            _column(sync, _WAITS),
            _column(sync, _FLAGS),
            _column(sync, _RUNS),
            _column(sync, _RECORD),
        )
        stage, timeout_ns = tl.load(sync + _STAGE).to(tl.int32), tl.load(sync + _TIMEOUT)
        epoch = load_relaxed_gpu_s32(runs + tile)
        for number in range(width):
            entry = waits + (tile * width + number) * 3
            semaphore = tl.load(entry)
            if semaphore >= 0:
                was = epoch * tl.load(entry + 2)
                expected = tl.load(entry + 1)
                flag = flags + semaphore * FLAG_WORDS
                posts = load_acquire_gpu_s32(flag) - was
                if posts - expected < 0:
                    start = globaltimer()
                    while posts - expected < 0:
                        nanosleep(32)
                        posts = load_acquire_gpu_s32(flag) - was
                        if globaltimer() - start > timeout_ns or load_relaxed_gpu_s32(record) != 0:
                            late = (posts - expected < 0).to(tl.int32)
                            claim_record(late, record, stage, tile, semaphore, posts, expected)
                            posts = expected
        tl.debug_barrier()
        tl.store(runs + tile, epoch + 1)  # behind the barrier: every thread has read it
    return tile


@triton.jit
def leave(sync, tile):
    """Announce that the tile's stores are done."""
    posted = tl.load(sync + _POSTED).to(tl.int32)
    if posted > 0:
        posts, flags = _column(sync, _POSTS), _column(sync, _FLAGS)
        tl.debug_barrier()
        for number in range(posted):
            semaphore = tl.load(posts + tile * posted + number)
            tl.atomic_add(flags + semaphore * FLAG_WORDS, 1, sem="release", scope="gpu")
    if (tl.load(sync + _OVERLAPPED) != 0) & (tile == tl.load(sync + _LAST)):
        gdc_wait()  # one tile keeps the kernel from ending before the one in front of it


def unsynchronised(device: str | torch.device = "cpu") -> torch.Tensor:
    """Return a table with which `enter` and `leave` do nothing."""
    return torch.zeros(_WORDS, dtype=torch.int64, device=device)


class Synchroniser:
    """Semaphores and tables of a policy on one GPU, for kernels that are launched one after the other on one stream.

    ``synchroniser[i]`` is what the i-th stage's kernel takes as ``sync``, and ``launch(i)`` what its launch takes as
    keywords. Stages are launched in the policy's order, all of them, with the policy's grids; a captured graph of them
    replays any number of times. Two runs at a time need a synchroniser each. The policy must be one that `tileprof
    verify` calls sound for the launches: nothing here can check that again.
    """

    def __init__(self, policy: Policy, *, device: str = "cuda", timeout_ns: int = 2_000_000_000) -> None:
        if not torch.cuda.is_available():
            raise UserError("there is no GPU here that PyTorch can use; kernels take unsynchronised() as their table")
        if torch.cuda.get_device_capability(device) < (9, 0):
            raise UserError("tiles of two kernels run beside each other from compute capability 9.0 on")
        self.policy, self.device, self.timeout_ns = policy, torch.device(device), timeout_ns
        tables = Tables.of(policy)
        self._flags = self._zeros(max(1, tables.semaphores) * FLAG_BYTES // 4)
        self._record = self._zeros(RECORD_WORDS)
        self._runs = [self._zeros(stage.tiles) for stage in policy.stages]
        self._tables: list[torch.Tensor] = []
        self._stages = [self._table(number, tables) for number in range(len(policy.stages))]

    @classmethod
    def from_policy(cls, path: Path | str, **options: Any) -> Synchroniser:
        """Return the synchroniser of a policy file.

        Raises `PolicyError` or `UserError` naming what is wrong with it.
        """
        return cls(load_policy(path), **options)

    def __getitem__(self, stage: int) -> torch.Tensor:
        return self._stages[stage]

    def launch(self, stage: int) -> dict[str, Any]:
        """Return keywords of the launch: all stages but the first may begin beside the one before."""
        return {"launch_pdl": True} if stage > 0 else {}

    def check(self) -> None:
        """Wait for the device; raises `WaitTimeoutError` where a wait has given up, and makes the semaphores new."""
        torch.cuda.synchronize(self.device)
        claimed, stage, tile, semaphore, posts, expected = self._record[:6].tolist()
        if claimed:
            for tensor in (self._record, self._flags, *self._runs):
                tensor.zero_()
            name = self.policy.stages[stage].name
            raise WaitTimeoutError(gave_up(stage, name, tile, semaphore, posts, expected, self.timeout_ns))

    def _table(self, number: int, tables: Tables) -> torch.Tensor:
        stage, last = tables.stages[number], len(tables.stages) - 1
        waits, posts = (self._on_device(t) if t.size else 0 for t in (stage.waits, stage.posts))
        order = 0 if stage.order is None else self._on_device(stage.order)
        tiles = self.policy.stages[number].tiles
        ends = tiles - 1 if stage.order is None else int(stage.order[-1])
        words = [
            waits, posts, self._flags.data_ptr(), self._runs[number].data_ptr(), self._record.data_ptr(), order,
            stage.width, stage.posts.shape[1], number, ends, int(number < last), int(number > 0), self.timeout_ns,
        ]  # fmt: skip
        return torch.tensor(words + [0] * (_WORDS - len(words)), dtype=torch.int64, device=self.device)

    def _on_device(self, table: Any) -> int:
        self._tables.append(torch.from_numpy(table.reshape(-1)).to(self.device))
        return int(self._tables[-1].data_ptr())

    def _zeros(self, words: int) -> torch.Tensor:
        return torch.zeros(words, dtype=torch.int32, device=self.device)
