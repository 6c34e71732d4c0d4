"""Runners of a program: a set per stream and per capture, since a runner's semaphores and memory are for one call at a
time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from tileprof.errors import UserError
from tileprof.runtime.compile.ahead import Ahead
from tileprof.runtime.compile.region import Region, Runner
from tileprof.runtime.persistent.driver import capture_id

LOG: Final = logging.getLogger("tileprof.runtime.compile")

ALIGNMENT: Final = 16
"""Bytes that divide the address of every input of a runner."""


class NotNowError(Exception):
    """The regions cannot run in this call; a later call may."""


class RegionError(UserError):
    """A region could not be built or run."""


class Lane:
    """A runner per region, for one stream or one captured graph."""

    def __init__(self, regions: Mapping[str, Region], runners: Mapping[str, Runner]) -> None:
        self._regions, self._runners = regions, dict(runners)
        self._folded: dict[str, tuple[Any, ...]] = {}
        self._restrided: dict[str, list[int]] = {}

    @classmethod
    def built(
        cls, regions: Mapping[str, Region], device: torch.device, like: Lane | None = None, ahead: Ahead | None = None
    ) -> Lane:
        """A lane with runners of its own; what a runner of ``like`` shares with its twins is shared. Raises
        `RegionError`.
        """
        runners, folded = {}, {}
        for key, region in regions.items():
            twin = getattr(like._runners[key], "twin", None) if like else None  # noqa: SLF001 - of its own class
            try:
                ready = ahead.take(region) if ahead and twin is None else None
                runners[key] = ready or (twin() if twin is not None else region.build(device))
            except (UserError, RuntimeError, OSError) as error:
                raise RegionError(f"{region.name}: {_first_line(error)}") from error
            if twin is not None and like is not None and key in like._folded:  # noqa: SLF001
                folded[key] = like._folded[key]  # noqa: SLF001 - a twin may share copies of weights: they are as old
        lane = cls(regions, runners)
        lane._folded.update(folded)
        return lane

    def follow(self, key: str, device: torch.device, folded: Sequence[Any]) -> None:
        """Have a runner that keeps copies of weights made anew if these are no longer the ones that it saw."""
        if not self._runners[key].frozen:
            return
        if any(t.is_inference() for t in folded):
            raise RegionError(f"{self._regions[key].name}: PyTorch counts no changes of weights made in inference mode")
        state = _state(folded)
        if self._folded.setdefault(key, state) == state:
            return
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise NotNowError("a weight has changed since the last call outside of a capture")
        try:
            self._runners[key] = self._regions[key].build(device)
        except (UserError, RuntimeError, OSError) as error:
            raise RegionError(f"{self._regions[key].name}: {_first_line(error)}") from error
        self._folded[key] = state
        LOG.info("%s: a weight has changed, its copy is made anew", self._regions[key].name)

    def fresh(self, key: str, folded: Sequence[Any]) -> bool:
        """Whether a runner's copies of weights, if it keeps any, are those of the weights as they are."""
        return not self._runners[key].frozen or self._folded.get(key) == _state(folded)

    def call(self, key: str, read: Sequence[Any], updated: Sequence[Any]) -> Sequence[Any]:
        """Run one region on what it reads and updates."""
        region, inputs = self._regions[key], self.inputs(key, read, updated)
        try:
            return self._runners[key](*inputs)
        except (UserError, RuntimeError) as error:
            raise RegionError(f"{region.name}: {_first_line(error)}") from error

    def inputs(self, key: str, read: Sequence[Any], updated: Sequence[Any]) -> list[Any]:
        """What a region's runner is given for what the region reads and updates."""
        region, inputs = self._regions[key], list(read)
        for number, tensor in sorted(zip(region.mutated, updated, strict=True), key=lambda pair: pair[0]):
            inputs.insert(number, tensor)
        self._mend(key, region, inputs)
        return inputs

    def call_and_take_back(self, key: str, read: Sequence[Any], updated: Sequence[Any]) -> None:
        """Run one region for the sake of having run: what it updates is as it was."""
        before = [t.clone() for t in updated]
        self.call(key, read, updated)
        for tensor, saved in zip(updated, before, strict=True):
            tensor.copy_(saved)

    def check(self) -> None:
        """Wait for the device; raises `RegionError` if a bounded wait gave up."""
        for key, runner in self._runners.items():
            try:
                runner.check()
            except (UserError, RuntimeError) as error:
                raise RegionError(f"{self._regions[key].name}: {_first_line(error)}") from error

    def _mend(self, key: str, region: Region, inputs: list[Any]) -> None:
        """Copy inputs that do not lie as the region's nodes say. Strides are looked at once: Inductor's code does not
        change them.
        """
        wrong = self._restrided.get(key)
        if wrong is None:
            likes = [n.meta["val"] for n in region.inputs]
            wrong = [n for n, (t, like) in enumerate(zip(inputs, likes, strict=True)) if _strides(t) != _strides(like)]
            self._restrided[key] = wrong
        crooked = [n for n, t in enumerate(inputs) if t.data_ptr() % ALIGNMENT]
        for number in {*wrong, *crooked}:
            if number in region.mutated:
                raise RegionError(
                    f"{region.name}: a tensor that it updates does not lie as it did when it was compiled"
                )
            like = region.inputs[number].meta["val"]
            whole = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=inputs[number].device)
            inputs[number] = whole.copy_(inputs[number])


def _state(weights: Sequence[Any]) -> tuple[Any, ...]:
    """What tells a weight from another, and from itself before a change, as far as PyTorch counts changes."""
    return tuple((t.data_ptr(), t._version) for t in weights)  # noqa: SLF001 - the counter's name


def _strides(tensor: Any) -> tuple[int, ...]:
    """Strides of the dimensions that have more than one element: those of the others say nothing."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


class Lanes:
    """The lanes of a program on one device, made as streams and captures come. Nothing can be built during a capture,
    so one lane is kept ready for the next.
    """

    def __init__(self, regions: Mapping[str, Region], device: torch.device, ahead: Ahead | None = None) -> None:
        self._regions, self._device, self._ahead = regions, device, ahead
        self._lock = threading.RLock()
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._spare: Lane | None = None
        self._claimed = False

    def now(self) -> Lane:
        """The lane of the current stream or capture. Raises `RegionError`, and `NotNowError` in a capture for which no
        lane is ready.
        """
        if self._device.type != "cuda":
            return self._lane(("thread", threading.get_ident()))
        stream = int(torch.cuda.current_stream(self._device).cuda_stream)
        if not torch.cuda.is_current_stream_capturing():
            return self._lane(("stream", stream))
        place = ("capture", capture_id(stream))
        with self._lock:
            if place not in self._lanes:
                if self._spare is None:
                    raise NotNowError("call the program once outside of a capture before each capture")
                self._lanes[place], self._spare = self._spare, None
            return self._lanes[place]

    def cold(self, like: Lane, fresh: Callable[[Lane], bool]) -> Lane | None:
        """A new lane for the next capture, which the caller has to run once and hand to `ready`; None if there is a
        fresh one, or none can be made now.
        """
        if self._device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None
        with self._lock:
            if self._claimed or (self._spare is not None and fresh(self._spare)):
                return None
            self._spare, self._claimed = None, True
            return Lane.built(self._regions, self._device, like)

    def ready(self, lane: Lane) -> None:
        """Keep a lane that has run once for the next capture."""
        with self._lock:
            self._spare, self._claimed = lane, False

    def _lane(self, place: tuple[str, int]) -> Lane:
        with self._lock:
            if place not in self._lanes:
                like = next(iter(self._lanes.values()), None)
                self._lanes[place] = Lane.built(self._regions, self._device, like, self._ahead)
            return self._lanes[place]


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
