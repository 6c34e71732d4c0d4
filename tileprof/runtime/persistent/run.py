"""The persistent kernel under a pipeline: one launch per run, or one per stage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from tileprof.errors import UserError
from tileprof.policy.format import Policy
from tileprof.runtime.chain import Chain
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.copilot.copilot import Copilot
from tileprof.runtime.copilot.copilot_build import compiled as compiled_pilot
from tileprof.runtime.persistent.dealing import Dealer, flag_words, link_words
from tileprof.runtime.persistent.persistent_build import compiled
from tileprof.runtime.persistent.plan import Plan
from tileprof.runtime.persistent.source import Options, header
from tileprof.runtime.persistent.task_lists import plan_of, plans_by_stage, without_waits
from tileprof.runtime.schedulers import Scheduler

_STATE_WORDS = 32
"""Runs so far and the ticket of the last block; a cache line, so that no flag shares it."""


class PersistentKernel:
    """A policy's chain, planned and compiled for one device under a scheduler; counts and tensors are the caller's, so
    that pipelines can share it.

    In one launch blocks wait for others of the same launch, all of which have to get an SM. Beside kernels on streams
    of equal priority they do: the GPU hands out all blocks of one launch before those of the next. One on a stream of
    higher priority comes first even if others have but half of theirs, and may then wait for SMs that these hold (seen
    on an H200; docs/development/runtime-experiments.md). ``whole``: no block starts before there is room for all, at up
    to a microsecond per launch. ``plan``: for this device and for static lists, if it has been made already.
    ``choices``: of the co-pilot, where one deals.

    Raises `UserError` where the device or the kernel cannot run the chain.
    """

    def __init__(
        self,
        policy: Policy,
        chain: Chain,
        scheduler: Scheduler,
        device: Any,
        *,
        delay_ns: int,
        timeout_ns: int,
        whole: bool = False,
        plan: Plan | None = None,
        choices: Choices | None = None,
    ) -> None:
        from tileprof.runtime.persistent.persistent_launch import Launcher, max_clusters  # noqa: PLC0415 - talks to the driver

        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) != (9, 0):
            raise UserError(
                f"the persistent kernel multiplies as compute capability 9.0 does; this GPU has {major}.{minor}"
            )
        self._device = device
        with torch.cuda.device(device):
            self._dealer = Dealer[scheduler.dealt.upper()]
            if plan is None:
                plan = plan_of(policy, chain, clusters=max_clusters, cuts=self._dealer is Dealer.LISTS)
            self.plans = _plans(plan, scheduler, max_clusters(plan.split))
            choices = choices or Choices(speculate=scheduler.speculates, overwrite=scheduler.overwrites)
            dealt = self._dealer is Dealer.PILOT
            options = Options(
                programmatic=scheduler.overlapped, dealer=self._dealer, claims=dealt and choices.overwrite
            )
            self._pilot = compiled_pilot(plan, choices) if dealt else None
            self._launchers = [
                Launcher(
                    p,
                    device,
                    delay_ns=delay_ns,
                    timeout_ns=timeout_ns,
                    options=options,
                    whole=whole and scheduler.waits,
                )
                for p in self.plans
            ]

    def counts(self) -> list[Any]:
        """Return new memory for what tiles count: semaphores, then one state per launch, then the co-pilot
        where there is one. Zeros make it new again.
        """
        words = [max(flag_words(plan, self._dealer) for plan in self.plans), *(_STATE_WORDS for _ in self.plans)]
        counts: list[Any] = [torch.zeros(n, dtype=torch.int32, device=self._device) for n in words]
        return (
            counts
            if self._pilot is None
            else [
                *counts,
                Copilot(link_words(self.plans[0]), self._pilot, pinned=torch.device(self._device).type == "cuda"),
            ]
        )

    def launch(self, tensors: Sequence[Mapping[str, Any]], seed: Any, counts: Sequence[Any], record: Any) -> None:
        """Put the stages, given their tensors by role, on the current stream."""
        flags, *states = counts
        link = [] if self._pilot is None else [states.pop()]
        for launcher, state in zip(self._launchers, states, strict=True):
            launcher.launch(tensors, (seed, flags, state, record, *link))

    def launch_stage(
        self, number: int, tensors: Sequence[Mapping[str, Any]], seed: Any, counts: Sequence[Any], record: Any
    ) -> None:
        """Put one stage on the current stream, where each is a launch of its own."""
        flags, *states = counts
        self._launchers[number].launch(tensors, (seed, flags, states[number], record))


def compile_for(policy: Policy, chain: Chain, schedulers: Iterable[Scheduler], clusters: Callable[[int], int]) -> None:
    """Compile what `PersistentKernel` takes under some schedulers, at the same time and without a device. ``clusters``:
    how many of a size it holds. Raises `UserError` like that one.
    """
    parts: dict[str, tuple[Plan, Options]] = {}
    for each in schedulers:
        dealer = Dealer[each.dealt.upper()]
        plan = plan_of(policy, chain, clusters=clusters, cuts=dealer is Dealer.LISTS)
        options = Options(programmatic=each.overlapped, dealer=dealer, claims=each.overwrites)
        parts |= {header(part, options): (part, options) for part in _plans(plan, each, clusters(plan.split))}
    with ThreadPoolExecutor(max(1, min(len(parts), os.cpu_count() or 1))) as pool:
        for future in [pool.submit(compiled, part, options) for part, options in parts.values()]:
            future.result()


def _plans(plan: Plan, scheduler: Scheduler, clusters: int) -> list[Plan]:
    """Return what is launched one after the other under a scheduler."""
    if scheduler.waits:
        return [plan]
    return [without_waits(plan)] if not scheduler.correct else plans_by_stage(plan, clusters)
