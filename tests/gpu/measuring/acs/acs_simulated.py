"""Foretell what `measure_acs_simulated.py` measured, from its recordings and the times of single kernels; needs no GPU.

    python tests/gpu/measuring/acs/acs_simulated.py FOLDER [-o ROWS.json]

A step's kernels take what each took alone in stream order. The gap between two of them is what stream order leaves: its
measured step without its kernels, by the number of kernels. What a join of branches costs is the difference between two
measured graphs, whose branches cross or do not. Launches that the table did not know in the run order everything around
them. A program whose GPU is busy for less than half of a step in stream order rests: it takes as long as that, without
what the driver took of the program's thread (`acs-sw:queued=1`). The time under ACS is not used but to compare with.
``FOLDER/eager.json`` of `measure_acs_eager.py` needs no recordings.
"""

from __future__ import annotations

import json
import re
import statistics
import tarfile
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np

import tileprof
from tileprof import devices
from tileprof.analysis.simulate.schedulers.acs import QUEUE_NS, AcsSoftware
from tileprof.analysis.simulate.schedulers.graph import Graph
from tileprof.analysis.simulate.simulator import Simulator

WINDOW = 128
"""As `tileprof run --scheduler acs` looks back."""


def _letters(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "", name.removeprefix("void ").replace("(anonymous namespace)", ""))[:40]


def last_step(names: list[str], kernels: list[str]) -> tuple[int, float]:
    """Return where among the launches the last run of the kernels begins, and the share of names that agree there."""
    mine, theirs = [_letters(name) for name in names], [_letters(name) for name in kernels]
    best = (0, 0.0)
    for at in range(len(mine) - len(theirs), -1, -1):
        share = sum(a == b for a, b in zip(mine[at:], theirs, strict=False)) / len(theirs)
        if share > best[1]:
            best = (at, share)
        if share == 1:
            break
    return best


def unknown(counts: dict[str, Any], count: int) -> list[int]:
    """Return the positions in a captured step of launches that the table did not know, without fills and copies."""
    begin = int(counts.get("capture_at", 0))
    return [at - begin for at in counts.get("unknown_at", []) if 0 <= at - begin < count]


def idle_us(count: int, plain_us: float) -> float:
    """Return the microseconds of a step of this many launches whose host is always busy, with an issuing thread."""
    return plain_us - count * (devices.get("H200").issue_ns() - QUEUE_NS) / 1e3


def of_eager(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for programs that issue their launches themselves and stay in stream order; those with a busy GPU are
    left out.
    """
    actual = []
    for words in dict.fromkeys(row["program"] for row in rows):
        times = {
            mode: [r["us"] for r in rows if r["program"] == words and r["mode"] == mode and r["us"]]
            for mode in ("plain", "thread")
        }
        kernels = next((r["kernels"] for r in rows if r["program"] == words and r.get("kernels")), [])
        if not (times["plain"] and times["thread"] and kernels):
            continue
        plain, acs = (statistics.median(times[mode]) for mode in ("plain", "thread"))
        if sum(kernels) < plain / 2:
            row = {"program": words, "plain_us": plain, "acs_us": acs, "kernels": len(kernels)}
            actual.append({**row, "plain": plain, "acs": idle_us(len(kernels), plain), "rests": True})
    return actual


def line(row: dict[str, Any]) -> str:
    """Measured and simulated times of a program."""
    return (
        f"{row['program']:54s} {row['plain_us']:9.1f} {row['acs_us']:8.1f} {row['acs']:10.1f} "
        f"{row['acs'] / row['acs_us'] - 1:+8.1%} {row['plain_us'] / row['acs_us']:5.2f}x "
        f"{row['plain'] / row['acs']:8.2f}x"
    )


def predicted(
    path: Path, kernels: list[dict[str, Any]], plain_us: float, *, captured: bool, barriers: list[int], join_ns: float
) -> dict[str, Any]:
    """Return the simulated microseconds of a step in stream order and under ACS."""
    trace = tileprof.load(path)
    count = len(kernels)
    times = np.array([kernel["us"] for kernel in kernels]) * 1e3
    facts = {"kernels": count, "kernels_us": float(times.sum() / 1e3), "unknown": len(barriers)}
    if not captured and times.sum() < plain_us * 1e3 / 2:
        return {**facts, "plain": plain_us, "acs": idle_us(count, plain_us), "rests": True}
    of_kernels = np.flatnonzero(trace.launches["tiles"].to_numpy() > 0)
    names = trace.launches["kernel"].to_numpy()
    of_kernels = of_kernels[[not str(names[row]).startswith(("memcpy", "memset")) for row in of_kernels]]
    at, share = last_step(names[of_kernels].tolist(), [kernel["name"] for kernel in kernels])
    if share < 0.98:
        return {"error": f"of {count} kernels only {share:.0%} are found in a row among the recorded launches"}
    mine = of_kernels[at : at + count]
    duration = trace.launches["duration_ns"].to_numpy(np.int64, copy=True)
    duration[mine] = times
    coverage = trace.launches["coverage"].astype(str).to_numpy(object)
    coverage[coverage == "conservative"] = "inferred"
    coverage[mine[barriers]] = "conservative"
    trace.launches["duration_ns"], trace.launches["coverage"] = duration, coverage
    simulator = Simulator(trace.graph())
    picks = range(int(mine[0]), int(mine[-1]) + 1)
    each = plain_us * 1e3 / count
    gap = max(0.0, (plain_us * 1e3 - times.sum()) / count)
    if captured:
        order, ours = Graph(gap_ns=gap), AcsSoftware(captured=1, window=WINDOW, gap_ns=gap, hop_ns=join_ns)
    else:
        order, ours = Graph(gap_ns=gap), AcsSoftware(events=1, queued=1, window=WINDOW, issue_ns=each)
    actual = {name: simulator.run(way, launches=picks).time_ns / 1e3 for name, way in (("plain", order), ("acs", ours))}
    return {**facts, "gap_ns": gap, **actual}


def main() -> None:
    """Print measured times beside simulated ones."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", type=Path)
    options = parser.parse_args()
    measured_rows = json.loads((options.folder / "rows.json").read_text())
    rows = []
    gaps = measured_rows["graph gaps, us"]
    join = max(0.0, gaps["two crossed: per kernel"] - gaps["two: per kernel"]) * 1e3
    print(f"a join costs {join:.0f} ns")
    print(
        "program                                                 order us   ACS us  simulated    error   gain predicted"
    )
    with tempfile.TemporaryDirectory() as place:
        for path in options.folder.glob("*.tar.xz"):
            with tarfile.open(path) as tar:
                tar.extractall(place, filter="data")
        for words in dict.fromkeys(row["program"] for row in measured_rows["rows"]):
            mine = [row for row in measured_rows["rows"] if row["program"] == words]
            times = {
                mode: [row["us"] for row in mine if row["mode"] == mode and row["us"]] for mode in ("plain", "streams")
            }
            kernels = next((row["kernels"] for row in mine if row.get("kernels")), [])
            kernels = [
                each for each in kernels if not each["name"].startswith("memcpy")
            ]  # the driver's own, for copies
            if not (times["plain"] and times["streams"] and kernels):
                print(f"{words:55s} was not measured")
                continue
            plain, acs = (statistics.median(times[mode]) for mode in ("plain", "streams"))
            path = Path(place) / words.replace(" --", "-").replace(" ", "_") / "recorded.tileprof"
            row = {"program": words, "plain_us": plain, "acs_us": acs}
            captured = "--graph" in words
            barriers = next((unknown(each["counts"], len(kernels)) for each in mine if each["mode"] == "streams"), [])
            barriers = barriers if captured else []
            row |= predicted(path, kernels, plain, captured=captured, barriers=barriers, join_ns=join)
            rows.append(row)
            if "error" in row:
                print(f"{words:54s} {plain:9.1f} {acs:8.1f}  {row['error']}")
                continue
            print(line(row))
    eager = options.folder / "eager.json"
    for row in of_eager(json.loads(eager.read_text())) if eager.exists() else []:
        rows.append(row)
        print(line(row))
    if options.o:
        options.o.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
