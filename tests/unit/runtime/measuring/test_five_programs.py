"""Times that ``tileprof run`` prints become rows of the results file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "gpu" / "measuring" / "models"))

import five_programs

RESULTS = Path(__file__).parents[3] / "gpu/results/five_programs.json"


def test_printed_times_are_the_rows_of_the_results_file():
    rows = json.loads(RESULTS.read_text())["rows"]
    for (name, (title, _)), row in zip(five_programs.TITLES.items(), rows, strict=True):
        printed = (
            "Measured, median of replays of a CUDA graph, weights not in L2:\n"
            f"  PyTorch            {row['pytorch']:.1f} us   {row['over_pytorch']:+.1%}  (PyTorch in a graph)\n"
            f"  stream order       {row['stream']:5.1f} us   {row['over_stream']:+.1%}  (persistent-stages)\n"
            f"  this policy        {row['policy']:5.1f} us           (persistent)\n"
        )
        made = five_programs.row_of(name, printed)
        assert {key: made[key] for key in row if not key.startswith("over")} == {
            key: value for key, value in row.items() if not key.startswith("over")
        }, title
        assert all(abs(made[key] - row[key]) <= 0.006 for key in ("over_stream", "over_pytorch"))
        assert five_programs.row_of(name, printed.replace("this policy", "")) is None
