"""Random programs on the fake driver, in stream order and under ACS with a thread that issues: results must be equal.

    python -m tests.benchmarks.acs.acs_soak PROGRAMS [FIRST_SEED]

Each program runs over 3 and over 8 streams, as graphs and with 3 workers, with and without delays.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.support import shared
from tests.unit.runtime.acs.fake_driver import compiled
from tileprof.runtime import acs

WAYS: list[tuple[acs.Mode, int, int]] = [("streams", 3, 0), ("streams", 8, 0), ("graph", 4, 0), ("streams", 8, 3)]
"""Modes, streams and workers."""
RUNS = [(*way, delay) for way in WAYS for delay in (0, 30)]


def main() -> int:
    """Print how many runs and launches there were, and which results differed."""
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    runs = queue_total = spread = graphs = 0
    differing: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shared.PLACE.folder = folder
        machine = compiled()
        for seed in range(first, first + count):
            words = (str(seed), "150", "all")
            expected = machine.run(*words, delay_us=0)
            _, table = machine.table(*words, folder=folder / f"log-{seed}")
            for number, (mode, lanes, workers, delay) in enumerate(RUNS):
                settings = acs.Settings(
                    mode,
                    folder / f"{seed}-{number}",
                    table,
                    lanes=lanes,
                    threads=1,
                    workers=workers,
                    delay_us=delay,
                    window=16,
                )
                outcome = machine.run(*words, settings=settings, seed=seed, delay_us=delay)
                (counts,) = acs.results(settings.folder)
                runs, queue_total = runs + 1, queue_total + counts["queued"]
                spread, graphs = spread + counts["spread"], graphs + counts["graph_kernels"]
                if outcome != expected:
                    differing.append(f"{seed} {mode} {lanes} {workers} {delay}")
    sys.stdout.write(
        f"{count} programs, {runs} runs: {queue_total} launches queued, {spread} on other streams, {graphs} in graphs\n"
    )
    sys.stdout.write(f"results that differed: {differing or 'none'}" + "\n")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
