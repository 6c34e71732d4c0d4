"""What ``--scheduler auto`` would have gained and lost on the chains that were measured on an H200: its choice by the
model, the time by measurement.

python tests/benchmarks/policies/bench_auto_choice.py     no GPU; rows: ``tests/gpu/results/runtime.json``
"""

import json
import sys
from pathlib import Path

from tileprof.runtime.measuring.cases import cases
from tileprof.runtime.persistent.cost import clusters_on
from tileprof.runtime.scheduler_choice import choose

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, header, table

sys.path.insert(0, str(ROOT))

from tests.gpu.measuring.chains.chain_summary import by_chain, gain, mean

RESULTS = ROOT / "tests/gpu/results/runtime.json"
H200 = (9, 0), clusters_on(132)
"""Compute capability, and the clusters that 132 SMs hold."""


def outcomes():
    """(chain, scheduler, measured stream order over measured choice) of every chain that the persistent kernel was
    measured on.
    """
    rows_by_chain = by_chain(json.loads(RESULTS.read_text())["rows"])
    for case in cases():
        rows = rows_by_chain.get(case.name, {})
        if case.persistent and "persistent" in rows:
            choice = choose(case.wide.policy(), case.wide, *H200).scheduler
            yield case.name, choice, rows["persistent-stages"]["us"] / rows[choice]["us"], rows


def main():
    header("auto on the measured chains")
    actual = list(outcomes())
    lines = []
    for kind in ("MLP", "convolutions"):
        mine = [o for o in actual if kind in o[0]]
        gains = [share for _, _, share, _ in mine]
        other_choices = sum(choice != "persistent" for _, choice, _, _ in mine)
        pdl = mean([rows["persistent-stages"]["us"] / rows["persistent-pdl"]["us"] for *_, rows in mine])
        free = mean([rows["persistent-stages"]["us"] / rows["persistent-unsynchronised"]["us"] for *_, rows in mine])
        cells = (f"{mean(gains):.3f}x", f"{min(gains):.3f}x", f"{max(gains):.3f}x", f"{pdl:.3f}x", f"{free:.3f}x")
        lines.append((kind, str(len(mine)), str(other_choices), *cells))
    table(
        ("chains", "rows", "left in stream order", "auto, mean", "least", "most", "PDL alone, mean", "no waits, mean"),
        lines,
    )
    misses = [100 * (gain(rows) - rows["persistent"]["predicted_gain"]) for *_, rows in actual]
    within = sum(abs(miss) <= 5 for miss in misses)
    small = [
        rows["PyTorch in a graph"]["us"] / rows["persistent"]["us"]
        for name, _, _, rows in actual
        if name.endswith(("batch 1", "batch 4", "batch 8"))
    ]
    print(
        f"predicted gains within 5 points: {within} of {len(misses)}; {sum(map(abs, misses)) / len(misses):.1f} off in "
        "the mean"
    )
    print(
        f"convolutions at batch 1 to 8 at least 1.5x PyTorch: {sum(ratio >= 1.5 for ratio in small)} of {len(small)}; "
        f"{mean(small):.2f}x in the mean"
    )


if __name__ == "__main__":
    main()
