"""The table of predicted and measured gains in docs/simulator-accuracy.md, computed again from the results."""

import json
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "tests" / "gpu" / "results"

CHAINS = {
    "persistent": "chains, the persistent kernel over stream order",
    "cusync": "chains, Triton's kernels, `cusync` over stream order",
    "pdl": "chains, Triton's kernels, PDL over stream order",
}
LEAST = 0.01
"""A gain below one point has no sign: the same program varies by as much."""


def gains_of_chains(row):
    rows = json.loads((RESULTS / "runtime.json").read_text())["rows"]
    return np.array([(r["gain"], r["predicted_gain"]) for r in rows if r["row"] == row and "predicted_gain" in r])


def gains_of_models():
    """Return gains over Inductor of models that ran in the package's kernels; models that fell back have Inductor's
    time.
    """
    rows = json.loads((RESULTS / "models.json").read_text())["rows"].values()
    matches = []
    for row in rows:
        ours, inductor = row["us"]["tileprof"][0], row["us"]["inductor"][0]
        if row["predicted_us"] is not None and abs(ours / inductor - 1) > LEAST:
            matches.append((1 - ours / inductor, 1 - row["predicted_us"] / inductor))
    return np.array(matches)


def gains_of_recorded(which):
    """Return gains over stream order of programs that were recorded, exported and run."""
    rows = json.loads((RESULTS / "recorded.json").read_text())[which].values()
    return np.array(
        [(1 - r["policy_us"] / r["stream_us"], 1 - r["predicted_policy_us"] / r["predicted_stream_us"]) for r in rows]
    )


def line(name, source, gains):
    measured_gains, predicted = gains.T
    error, alone = (100 * np.abs(measured_gains - guess).mean() for guess in (predicted, measured_gains.mean()))
    has_sign = np.abs(measured_gains) > LEAST
    right = (np.sign(measured_gains) == np.sign(predicted))[has_sign].mean()
    return f"| {name} | {source} | {len(gains)} | {error:.1f} | {alone:.1f} | {right:.0%} of {has_sign.sum()} |"


def test_the_page_has_the_errors_of_our_own_measurements():
    lines = [line(name, "each stage's time alone", gains_of_chains(row)) for row, name in CHAINS.items()]
    lines.append(line("whole models over Inductor", "the cost models of their plans", gains_of_models()))
    name = "recorded programs, the persistent kernel over stream order"
    lines.append(line(name, "the recording alone", gains_of_recorded("rows")))
    lines.append(line(name.replace(",", ", held out,"), "the recording alone", gains_of_recorded("held_out")))
    page = (ROOT / "docs" / "simulator-accuracy.md").read_text()
    assert "\n".join(lines) in page, "\n" + "\n".join(lines)
