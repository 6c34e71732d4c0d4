"""Look for inputs that a verb does not refuse in one sentence: python -m tests.fuzz.search [--seconds 600].

Each failure is printed as a line of JSON, to be added to corpus.jsonl once it is mended; failures at the same place are
counted, not repeated. Workers are processes that live for the whole search; one that dies is a failure of its last
input, and is replaced.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from tests.fuzz.harness import VERBS, kind_of, limit_memory, run
from tests.fuzz.inputs import draw, make_bases

MEMORY_BYTES = 12 << 30
"""Address space of a worker, of which compiled code and libraries take some."""

REPORT_EVERY = 20
"""Inputs between two messages of a worker."""

Fault = dict[str, Any]


@dataclass
class Counts:
    """Outcomes by kind of input, and faults by the place where they arose."""

    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (kind, verb, exit code or "fault")
    faults: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    most_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def inputs(self) -> int:
        return sum(self.outcomes.values())

    def add(self, message: dict[str, Any]) -> None:
        with self.lock:
            for kind, verb, code, count in message["outcomes"]:
                self.outcomes[kind, verb, code] += count
            self.slowest_s = max(self.slowest_s, message["slowest_s"])
            self.most_bytes = max(self.most_bytes, message["most_bytes"])
            for fault in message["faults"]:
                self.fault(fault)

    def fault(self, fault: Fault) -> None:
        place = _place(fault["fault"])
        if place.startswith("took longer"):  # says nothing of where
            place += f", {fault['verb'][0]} of {json.dumps(fault['operations'])[:200]}"
        self.faults[place] += 1
        if self.faults[place] == 1:
            print(json.dumps({key: fault[key] for key in ("base", "operations", "verb")}))
            print(f"    {place}: {fault['fault'][-700:]}", flush=True)

    def as_json(self, seed: int) -> dict[str, Any]:
        rows = [
            {"kind": kind, "verb": verb, "outcome": code, "inputs": count}
            for (kind, verb, code), count in sorted(self.outcomes.items())
        ]
        return {
            "seed": seed,
            "inputs": self.inputs,
            "slowest_s": round(self.slowest_s, 1),
            "most_bytes": self.most_bytes,
            "faults": dict(self.faults),
            "outcomes": rows,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--inputs", type=int, default=sys.maxsize, help="stop after so many")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write the counts there")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return _work(options.worker, options.seed)
    counts = Counts()
    with tempfile.TemporaryDirectory() as root:
        bases = Path(root) / "bases"
        bases.mkdir()
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            make_bases(bases)
        end = time.monotonic() + options.seconds
        threads = [
            threading.Thread(target=_feed, args=(Path(root), options.seed + n, end, options.inputs, counts))
            for n in range(options.workers)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(1)
            _write(options.json, counts, options.seed)  # what was counted stays, should this be killed
    _write(options.json, counts, options.seed)
    print(
        f"seed {options.seed}: {counts.inputs:,} inputs, {sum(counts.faults.values())} failures at "
        f"{len(counts.faults)} places; slowest {counts.slowest_s:.1f} s, {counts.most_bytes / 1e9:.1f} GB"
    )
    for place, count in counts.faults.most_common():
        print(f"{count:6} {place}")
    return 1 if counts.faults else 0


def _write(path: Path | None, counts: Counts, seed: int) -> None:
    if path:
        with counts.lock:
            path.write_text(json.dumps(counts.as_json(seed), indent=1) + "\n", encoding="utf-8")


def _feed(root: Path, seed: int, end: float, most: int, counts: Counts) -> None:
    """Keep one worker alive until ``end`` or until ``most`` inputs of all workers."""
    place = root / f"worker-{seed}"
    while time.monotonic() < end and counts.inputs < most:
        place.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.fuzz.search", "--worker", str(place), "--seed", str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            stop = threading.Timer(max(end - time.monotonic(), 0), worker.terminate)
            stop.start()
            for line in worker.stdout:
                counts.add(json.loads(line))
                if counts.inputs >= most:
                    worker.terminate()
            stop.cancel()
        if time.monotonic() < end and counts.inputs < most and (place / "current").exists():
            current = json.loads((place / "current").read_text(encoding="utf-8"))
            with counts.lock:
                counts.fault(current | {"fault": f"the process ended with {worker.returncode}"})
                counts.outcomes[kind_of(current["base"]), current["verb"][0], "fault"] += 1
        shutil.rmtree(place)
        seed += 1000


def _work(place: Path, seed: int) -> int:
    """Run inputs until the end of this process, and say on stdout what they did."""
    logging.disable()
    limit_memory(MEMORY_BYTES)
    bases, dice = place.parent / "bases", random.Random(seed)
    while True:
        outcomes, faults, slowest_s = Counter[tuple[str, str, str]](), list[Fault](), 0.0
        for _ in range(REPORT_EVERY):
            base, operations = draw(dice, bases)
            verb = dice.choice(VERBS[kind_of(base)])
            tried: Fault = {"base": base, "operations": operations, "verb": verb}
            (place / "current").write_text(json.dumps(tried), encoding="utf-8")
            began = time.monotonic()
            outcome = run(bases, place / "one", base, operations, verb)
            slowest_s = max(slowest_s, time.monotonic() - began)
            shutil.rmtree(place / "one")
            outcomes[kind_of(base), verb[0], "fault" if outcome.fault else str(outcome.code)] += 1
            if outcome.fault:
                faults.append(tried | {"fault": outcome.fault})
        message = {
            "outcomes": [[*key, count] for key, count in outcomes.items()],
            "faults": faults,
            "slowest_s": slowest_s,
            "most_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print(json.dumps(message), flush=True)


def _place(fault: str) -> str:
    """The last line of ours in a traceback; without one the beginning of the fault."""
    lines = re.findall(r'File "[^"]*?/((?:tileprof|analysis|viz)/[^"]*)", line (\d+)', fault)
    return " ".join(lines[-1]) if lines else fault[:80]


if __name__ == "__main__":
    sys.exit(main())
