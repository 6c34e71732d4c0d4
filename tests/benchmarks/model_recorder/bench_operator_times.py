"""How well the table of operators' times predicts its own entries, each left out: by kind of kernel, largest first; and
calls of attention that are in no table (`tests/gpu/harvest/held_out_attention_h200.csv`).

``-o`` writes the results (`tests/benchmarks/results/operator_times.json`). No GPU is needed.
"""

import argparse
import csv
import json
import sys
from pathlib import Path

import numpy as np

from tileprof import devices
from tileprof.record.model import operator_times, tables

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import header, table

HELD_OUT = Path(__file__).parents[2] / "gpu" / "harvest" / "held_out_attention_h200.csv"


def errors(measured, count):
    """Per kind: relative errors, and sums of predicted and of real ns, of ``count`` entries drawn with a fixed seed."""
    kinds = {}
    for row in np.random.default_rng(0).permutation(len(measured))[:count].tolist():
        name = str(measured.columns["name"][measured.keys[row, 0]])
        prediction = operator_times.looked_up(measured, name, tuple(measured.keys[row, 1:].tolist()), without=row)
        real = float(np.exp(measured.columns["time"][row] / operator_times.TIME_SCALE))
        some = kinds.setdefault(operator_times.kind(name), {"without": 0, "errors": []})
        if prediction is None:
            some["without"] += 1
        else:
            some["errors"].append(prediction[0] / real - 1)
    return kinds


def held_out_errors(measured):
    """Relative errors of the launches of held-out calls, and how many have no entry of their kind."""
    with HELD_OUT.open(newline="") as file:
        _, *lines = csv.reader(file)
    found = [operator_times.looked_up(measured, name, tuple(map(int, of))) for name, *of, _ in lines]
    real = [float(line[-1]) for line in lines]
    return np.array([f[0] / ns - 1 for f, ns in zip(found, real, strict=True) if f is not None]), found.count(None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="entries that are left out, one by one")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    header("Times of operators, each entry of the table left out")
    measured = tables.table(operator_times.FAMILY, devices.get("H200"))
    kinds = errors(measured, options.count)
    every = np.concatenate([some["errors"] for some in kinds.values()])
    rows = {kind: np.array(some["errors"]) for kind, some in kinds.items() if some["errors"]}
    ordered = sorted(rows.items(), key=lambda item: -len(item[1]))
    table(
        ("kind", "entries", "median error", "90% below"),
        [(kind, f"{len(e)}", f"{np.median(abs(e)):.0%}", f"{np.quantile(abs(e), 0.9):.0%}") for kind, e in ordered],
    )
    median, most = (round(float(np.quantile(abs(every), part)), 4) for part in (0.5, 0.9))
    without = sum(some["without"] for some in kinds.values())
    result = {
        "entries": len(measured), "left_out": len(every), "without": without, "median_error": median, "below_90": most
    }  # fmt: skip
    attention, none = held_out_errors(measured)
    result["attention"] = {
        "launches": len(attention), "without": none, "median_error": round(float(np.median(np.abs(attention))), 4),
        "below_90": round(float(np.quantile(np.abs(attention), 0.9)), 4),
    }  # fmt: skip
    print("held-out attention: {launches} launches, {without} without an entry, median error {median_error:.1%}, "
          "90% below {below_90:.0%}".format(**result["attention"]))  # fmt: skip
    print(f"all: median error {result['median_error']:.1%}, 90% below {result['below_90']:.0%}")
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
