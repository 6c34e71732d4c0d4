"""Runners of a program: a set per stream and per capture, since a runner's semaphores and memory are for one call at a
time.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from tileprof.errors import UserError
from tileprof.runtime.compile.racing.ahead import Ahead
from tileprof.runtime.compile.regions.region import Region, Runner
from tileprof.runtime.persistent.driver import capture_id, relaxed_capture

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
        """Return a lane with runners of its own; what a runner of ``like`` shares with its twins is shared.

        Raises `RegionError`.
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
        """Make a runner that keeps copies of weights again if these are no longer the ones that it saw."""
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
        LOG.info("%s: a weight has changed and is copied again", self._regions[key].name)

    def call(self, key: str, read: Sequence[Any], updated: Sequence[Any]) -> Sequence[Any]:
        """Run one region on what it reads and updates."""
        region, inputs = self._regions[key], self.inputs(key, read, updated)
        try:
            return self._runners[key](*inputs)
        except (UserError, RuntimeError) as error:
            raise RegionError(f"{region.name}: {_first_line(error)}") from error

    def inputs(self, key: str, read: Sequence[Any], updated: Sequence[Any]) -> list[Any]:
        """Return what a region's runner is given for what the region reads and updates."""
        region, inputs = self._regions[key], list(read)
        for number, tensor in sorted(zip(region.mutated, updated, strict=True), key=lambda pair: pair[0]):
            inputs.insert(number, tensor)
        self._mend(key, region, inputs)
        return inputs

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
                    f"{region.name}: a tensor that it updates has other strides or another alignment than when it "
                    "was compiled"
                )
            like = region.inputs[number].meta["val"]
            whole = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=inputs[number].device)
            inputs[number] = whole.copy_(inputs[number])


def _state(weights: Sequence[Any]) -> tuple[Any, ...]:
    """Return what tells a weight from another, and from itself before a change, as far as PyTorch counts changes."""
    return tuple((t.data_ptr(), t._version) for t in weights)  # noqa: SLF001 - the counter's name


def _strides(tensor: Any) -> tuple[int, ...]:
    """Return strides of the dimensions that have more than one element: those of the others say nothing."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


class Lanes:
    """The lanes of a program on one device, made as streams come. Nothing can be built during a capture: it takes over
    the lane of a stream, which gets a new one at its next call outside of a capture. So a program has one set of
    runners unless calls and replays, or several streams, may really meet.
    """

    def __init__(self, regions: Mapping[str, Region], device: torch.device, ahead: Ahead | None = None) -> None:
        self._regions, self._device, self._ahead = regions, device, ahead
        self._lock = threading.RLock()
        self._lanes: dict[tuple[str, int], Lane] = {}  # those of streams in the order of their last calls
        self._calls: Counter[Lane] = Counter()  # that are under way
        self._ends: dict[Lane, torch.cuda.Event] = {}  # of the last call outside of a capture

    @contextmanager
    def use(self) -> Iterator[Lane]:
        """Yield the lane of the current stream or capture, for a call. Raises `RegionError`, and `NotNowError` in a
        capture for which there is none.
        """
        if self._device.type != "cuda":
            yield self._lane(("thread", threading.get_ident()))
            return
        current = torch.cuda.current_stream(self._device)
        stream = int(current.cuda_stream)
        if torch.cuda.is_current_stream_capturing():
            yield self._captured(("capture", capture_id(stream)), ("stream", stream))
            return
        with self._lock:
            lane = self._lane(("stream", stream))
            self._calls[lane] += 1
        try:
            yield lane
        finally:
            with self._lock:
                self._ends.setdefault(lane, torch.cuda.Event()).record(current)
                self._calls[lane] -= 1

    def _captured(self, capture: tuple[str, int], stream: tuple[str, int]) -> Lane:
        with self._lock:
            if capture in self._lanes:
                return self._lanes[capture]
            idle = [key for key, lane in self._lanes.items() if key[0] == "stream" and not self._calls[lane]]
            if not idle:
                raise NotNowError("call the program once outside of a capture before each capture")
            lane = self._lanes.pop(stream if stream in idle else idle[-1])
            with relaxed_capture():  # its last call may still run, and a replay may begin on any stream
                self._ends.pop(lane).synchronize()
            self._lanes[capture] = lane
            return lane

    def _lane(self, place: tuple[str, int]) -> Lane:
        with self._lock:
            lane = self._lanes.pop(place, None)
            if lane is None:
                like = next(iter(self._lanes.values()), None)
                lane = Lane.built(self._regions, self._device, like, self._ahead)
            self._lanes[place] = lane
            return lane


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
