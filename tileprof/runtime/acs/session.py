"""Running a program with the library preloaded, and what the library says afterwards."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tileprof.errors import UserError

Mode = Literal["log", "streams", "graph", "check"]

CONFIGURATION: Final = "TILEPROF_ACS"
"""Names the file that tells the library what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the library.

    - ``lanes``: number of streams, the program's own among them
    - ``threads``: 1: a separate thread decides and issues; 0: the program's own thread does
    - ``workers``: number of threads that each launch a kernel and wait for its end, as in the paper; 0: events order
      kernels on the GPU
    - ``window``: number of launches that a new one is compared with
    - ``segment``: maximum number of launches in a captured or checked segment
    - ``orders``: number of orders in which a segment is checked
    - ``rest``: number of launches between two decisions whether the GPU is idle when launches arrive, so that launches
      over streams stay in stream order; 0: never
    - ``delay_us``: mean random delay before each placed launch, which tests the order: the GPU sleeps for up to twice
      this time
    """

    mode: Mode
    folder: Path
    table: Path | None = None
    lanes: int = 8
    threads: int = 0
    workers: int = 0
    window: int = 128
    segment: int = 256
    orders: int = 2
    seed: int = 0
    rest: int = 1024
    delay_us: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= 32:
            raise UserError(f"--streams takes 1 to 32 streams, not {self.lanes}")
        if self.threads not in {0, 1}:
            raise UserError(f"--threads takes 0 or 1, not {self.threads}")
        if not 0 <= self.workers <= 32:
            raise UserError(f"--workers takes 0 to 32 threads, not {self.workers}")
        if self.workers and self.mode != "streams":
            raise UserError("--workers needs --scheduler acs, without --check")
        for name, value in (("--window", self.window), ("segment", self.segment), ("orders", self.orders)):
            if value < 1:
                raise UserError(f"{name} takes a number from 1, not {value}")


def environment(library: Path, settings: Settings) -> dict[str, str]:
    """Return the variables that the program needs on top of its own; writes the library's configuration into the
    folder.
    """
    lines = [
        f"{name} {getattr(settings, name)}"
        for name in ("mode", "lanes", "threads", "workers", "window", "segment", "orders", "seed", "rest", "delay_us")
    ]
    lines += [f"folder {settings.folder}", *([f"table {settings.table}"] if settings.table is not None else [])]
    path = settings.folder / f"acs-{settings.mode}.conf"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    preloaded = " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    return {"LD_PRELOAD": preloaded, CONFIGURATION: str(path)}


def results(folder: Path) -> list[dict[str, Any]]:
    """Return what the library counted, by process, most launches first."""
    counts_of_processes = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("acs-*.json")]
    return sorted(counts_of_processes, key=lambda counts: -int(counts["launches"]))
