"""Runners built by a thread while Inductor compiles: nvcc is another process, and takes about as long."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import torch

from tileprof.runtime.compile.regions.region import Region, Runner

MOST_THREADS: Final = 4


class Ahead:
    """The first runner of each of some regions, of which each is handed out once. Regions that look alike are built one
    after the other, so that the second finds the code in the cache.
    """

    def __init__(self, regions: Iterable[Region], device: torch.device) -> None:
        alike: dict[str, list[Region]] = {}
        for region in regions:
            alike.setdefault(region.name, []).append(region)
        self._runners: dict[int, Future[Runner]] = {}
        if not alike:
            return
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        pool = ThreadPoolExecutor(min(MOST_THREADS, len(alike)), thread_name_prefix="tileprof-build")
        for equals in alike.values():
            futures = {id(region): Future[Runner]() for region in equals}
            self._runners |= futures
            pool.submit(_build, [(region, futures[id(region)]) for region in equals], device, stream)
        pool.shutdown(wait=False)

    def take(self, region: Region) -> Runner | None:
        """Return the runner of a region, once it is built; None if it was taken before or is not among them.

        Raises what `Region.build` raised.
        """
        future = self._runners.pop(id(region), None)
        return None if future is None else future.result()


def _build(work: list[tuple[Region, Future[Runner]]], device: torch.device, stream: Any) -> None:
    with torch.cuda.stream(stream):  # memory belongs to the stream on which it is allocated; no stream, no effect
        for region, future in work:
            try:
                runner = region.build(device)
                if stream is not None:
                    stream.synchronize()  # other streams may use the runner
            except BaseException as error:  # noqa: BLE001 - raised again by who takes it
                future.set_exception(error)
            else:
                future.set_result(runner)
