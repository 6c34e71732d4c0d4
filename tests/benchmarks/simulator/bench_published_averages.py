"""Averages that schedulers' authors published, beside ours on programs, GPUs and launch costs like theirs.

What is theirs and what is assumed is said in `notebooks/studies/published_averages.py` and the generators that it
names. Nothing is fitted to a gain: what the papers do not say is varied, and ours is the range of the means.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, header, table

sys.path.insert(0, str(ROOT / "notebooks"))

from studies import published_averages as published


def main():
    header("published averages, and ours on programs like theirs")
    actual = [*published.acs(), *published.blockmaestro(), *published.wireframe(), *published.spawn(scale=14)]
    names = ["scheduler", "programs", "published", "ours, geometric means", "ours, best", ""]
    table(names, [row(c) for c in actual])
    print("\n".join(dict.fromkeys(f"- {c.scheduler}, {c.programs}: {c.why}." for c in actual)))
    print("\nOf single programs, under each assumption:\n")
    for c in actual:
        for assumption, gains in c.ours.items():
            each = ", ".join(f"{name} {gain:.2f}x" for name, gain in gains.items())
            print(f"- {c.scheduler}, {c.programs}{f', {assumption}' if assumption else ''}: {each}")


def row(c):
    best = "" if c.best is None else f", {c.best:.2f}x best"
    low, high = c.means
    ours = f"{low:.2f}x" if low == high else f"{low:.2f}x to {high:.2f}x"
    return c.scheduler, c.programs, f"{c.mean:.2f}x mean{best}", ours, f"{c.most:.2f}x", c.verdict


if __name__ == "__main__":
    main()
