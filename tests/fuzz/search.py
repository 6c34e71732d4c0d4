"""Look for inputs that a verb does not refuse in one sentence: python -m tests.fuzz.search [--seconds 600].

Input n of a seed is drawn from that seed and n alone, so a search can be repeated, cut and gone on with
(``--state FILE``), and one input of it tried again (``--from N --count 1``). A parent that has imported and compiled
everything forks a child for each `BATCH` of inputs; an input that fails is tried once more in a child of its own, and
one that ends its child costs no other. Each failure is printed as a line of JSON, to be added to corpus.jsonl once it
is corrected; failures at the same place are counted, not repeated.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import logging
import os
import platform
import re
import resource
import select
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tests.fuzz.harness import SECONDS, VERBS, WAITED_S, case_of, kind_of, run
from tests.fuzz.inputs import WEIGHTS, make_bases

MEMORY_BYTES = 4 << 30
"""Address space that an input may take beyond that of the parent."""

BATCH = 20
"""Inputs per child: a fork costs as much as a cheap input."""

SAVED_EVERY = 10
"""Batches between two writes of the state."""

Message = dict[str, Any]


class Search:
    """One search: its counts, in the form in which a file keeps them."""

    def __init__(self, seed: int, first: int, path: Path | None) -> None:
        self.path, self.began = path, time.monotonic()
        self.outcomes: Counter[tuple[str, str, str]] = Counter()  # (kind, verb, exit code or "fault")
        self.faults: Counter[str] = Counter()
        self.failures: list[int] = []
        self.slowest_s, self.most_bytes, self.seconds_before = 0.0, 0, 0.0
        self.seed, self.first, self.next, self.sources = seed, first, first, _sources()
        if path is not None and path.exists():
            self._take(json.loads(path.read_text(encoding="utf-8")))

    def _take(self, records: Message) -> None:
        for name, here in (("seed", self.seed), ("first", self.first), ("sources", self.sources)):
            if records[name] != here:
                sys.exit(f"{self.path} is of another search: {name} is {records[name]}, here {here}")
        self.next, self.failures, self.seconds_before = records["next"], records["failed"], records["seconds"]
        self.slowest_s, self.most_bytes = records["slowest_s"], records["most_bytes"]
        self.faults.update(records["faults"])
        for row in records["outcomes"]:
            self.outcomes[row["kind"], row["verb"], row["outcome"]] = row["inputs"]

    def add(self, number: int, one: Message, result: Message) -> None:
        self.slowest_s = max(self.slowest_s, result["seconds"])
        self.most_bytes = max(self.most_bytes, result["bytes"])
        outcome = "fault" if result["fault"] else str(result["code"])
        self.outcomes[kind_of(one["base"]), one["verb"][0], outcome] += 1
        if not result["fault"]:
            return
        place = _place(result["fault"])
        if place.startswith("took longer"):  # the message does not tell the place
            place += f", {one['verb'][0]} of {json.dumps(one['operations'])[:200]}"
        self.failures.append(number)
        self.faults[place] += 1
        if self.faults[place] == 1:
            print(json.dumps(one))
            print(f"    input {number}, {place}: {result['fault'][-900:]}", flush=True)

    def save(self) -> None:
        if self.path is None:
            return
        rows = [
            {"kind": kind, "verb": verb, "outcome": code, "inputs": count}
            for (kind, verb, code), count in sorted(self.outcomes.items())
        ]
        snapshot = {
            "seed": self.seed, "first": self.first, "next": self.next, "sources": self.sources,
            "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
            "seconds": round(self.seconds_before + time.monotonic() - self.began, 1),
            "slowest_s": round(self.slowest_s, 1), "most_bytes": self.most_bytes, "faults": dict(self.faults),
            "failed": self.failures, "outcomes": rows,
        }  # fmt: skip
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(snapshot, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="N", help="number of the first input")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="inputs to try")
    parser.add_argument("--state", type=Path, help="keep the counts there, and go on from them")
    options = parser.parse_args()
    search = Search(options.seed, options.first, options.state)
    logging.disable()
    deadline, end = time.monotonic() + options.seconds, options.first + options.count
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        root = Path(folder)
        _warm(root)
        batches = 0
        while search.next < end and time.monotonic() < deadline:
            numbers = range(search.next, min(search.next + BATCH, end))
            for number, one, result in _trials(root, search.seed, numbers):
                search.add(number, one, result)
            search.next, batches = numbers.stop, batches + 1
            if batches % SAVED_EVERY == 0:
                search.save()
    search.save()
    print(
        f"seed {search.seed}, inputs {search.first:,} to {search.next - 1:,}: {len(search.failures)} failures at "
        f"{len(search.faults)} places; slowest {search.slowest_s:.1f} s, {search.most_bytes / 1e9:.1f} GB"
    )
    for place, count in search.faults.most_common():
        print(f"{count:6} {place}")
    return 1 if search.faults else 0


def _warm(root: Path) -> None:
    """Make the bases, and run every command line on an unchanged input, which imports and compiles everything."""
    bases = root / "bases"
    bases.mkdir()
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        make_bases(bases)
    for base in WEIGHTS:
        for verb in VERBS[kind_of(base)]:
            outcome = run(bases, root / "one", base, [["pick", 0, ""]] if base == "words" else [], verb)
            if outcome.fault:
                sys.exit(f"{verb} of a sound {base}: {outcome.fault}")
            shutil.rmtree(root / "one")
    gc.collect()
    gc.freeze()  # children do not copy what they do not change


def _trials(root: Path, seed: int, numbers: range) -> Iterator[tuple[int, Message, Message]]:
    """Yield every input of a batch with its outcome; inputs that failed were tried twice."""
    at = numbers.start
    while at < numbers.stop:
        for result in _in_a_child(root, seed, range(at, numbers.stop)):
            if result["fault"] and len(numbers) > 1:
                [alone] = _in_a_child(root, seed, range(at, at + 1))
                company = f"only after inputs {numbers.start} to {at - 1}: {result['fault']}"
                result = alone if alone["fault"] else result | {"fault": company}  # noqa: PLW2901 - the better account
            yield at, case_of(seed, at, root / "bases"), result
            at += 1


def _in_a_child(root: Path, seed: int, numbers: range) -> list[Message]:
    """Return the outcomes of the first inputs, in order, up to the one that ended the child."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _serve(root, seed, numbers, write)
    os.close(write)
    results, rest, late = list[Message](), b"", False
    while True:
        ready, _, _ = select.select([read], [], [], WAITED_S + SECONDS)
        late = not ready
        data = os.read(read, 1 << 20) if ready else b""
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        results += [json.loads(line) for line in lines]
    if late:
        os.kill(child, 9)
    os.close(read)
    _, status, usage = os.wait4(child, 0)
    if len(results) < len(numbers):
        how = (
            f"took longer than {WAITED_S} s" if late else f"the process ended with {os.waitstatus_to_exitcode(status)}"
        )
        results.append({"code": None, "fault": how, "seconds": 0.0, "bytes": usage.ru_maxrss << 10})
    return results


def _serve(root: Path, seed: int, numbers: range, pipe: int) -> None:
    """Try the inputs in this process, which ends here, and write a line for each."""
    code = 1
    try:
        _limit_memory()
        terminal = os.open(root / "terminal", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(terminal, 1)
        os.dup2(terminal, 2)
        for number in numbers:
            one, place = case_of(seed, number, root / "bases"), root / "one"
            shutil.rmtree(place, ignore_errors=True)
            began = time.process_time()
            _limit_time(began)
            outcome = run(root / "bases", place, one["base"], one["operations"], one["verb"], everywhere=True)
            fault = outcome.fault
            if not fault and os.fstat(terminal).st_size:
                fault = f"written past Python to the terminal: {(root / 'terminal').read_bytes()[:900]!r}"
            result = {
                "code": outcome.code, "fault": fault, "seconds": time.process_time() - began,
                "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            }  # fmt: skip
            os.ftruncate(terminal, 0)
            os.write(pipe, json.dumps(result).encode() + b"\n")
        code = 0
    finally:
        os._exit(code)


def _limit_memory() -> None:
    now = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))


def _limit_time(now: float) -> None:
    """Let SIGXCPU end the process if compiled code does not return within `SECONDS`."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(now) + SECONDS + 30, resource.RLIM_INFINITY))


def _sources() -> str:
    """Return a digest of the code that draws and tries inputs, so that only the same search continues a state."""
    text = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(text).hexdigest()[:16]


def _place(fault: str) -> str:
    """Return the last line of this project in a traceback, or the beginning of the fault."""
    lines = re.findall(r'File "[^"]*?/((?:tileprof|analysis|viz)/[^"]*)", line (\d+)', fault)
    return " ".join(lines[-1]) if lines else fault[:80]


if __name__ == "__main__":
    sys.exit(main())
