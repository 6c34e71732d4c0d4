"""How well the table of operators' times predicts its own entries, each left out: by kind of kernel, largest first.

``-o`` writes the results (`tests/benchmarks/results/operator_times.json`). No GPU is needed.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from tileprof import devices
from tileprof.record.model import operator_times, tables

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import header, table


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
    print(f"all: median error {result['median_error']:.1%}, 90% below {result['below_90']:.0%}")
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
