"""Predicted against published gains of cuSync, point by point: GPT-3 MLP (V100, A100) and convolutions of ResNet-38
(V100); LLaMA's MLP is held out.

What calibrates and what explains is in `notebooks/studies/cusync_gains.py`; times in
``tests/data/cusync_published_times.csv``.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, header, table

sys.path.insert(0, str(ROOT / "notebooks"))

from studies import cusync_gains as cusync
from studies.cusync_pairs import Interference

DATA = Path(__file__).parents[2] / "data"
CONTEXT = ("streamk", "torch")


def main():
    header("cuSync's published gains over stream order, and predicted")
    points, llama = (points_of(name) for name in ("published", "llama"))
    c = cusync.calibrate(points)
    frame = cusync.predictions(points, c)
    sentence(c)
    correlations(points, c, frame)
    choices(frame)
    for key, rows in frame.groupby(["kind", "arch"], sort=False):
        each_point(key, rows, {p.m: p.published_us for p in points if (p.kind, p.arch) == key})
    print("## Held out: LLaMA's MLP\n")
    apart = cusync.predictions(llama, cusync.held_out(c, llama)).assign(tests=True)
    actual = cusync.agreement(apart)
    table(list(actual.columns), actual.round(2).to_numpy().tolist())
    choices(apart)
    for key, rows in apart.groupby(["kind", "arch"], sort=False):
        each_point(key, rows, {p.m: p.published_us for p in llama if (p.kind, p.arch) == key})
    print("## All sets, as in docs/simulator-accuracy.md\n")
    print("\n".join(cusync.rows_of_sets(frame, apart)))


def points_of(name):
    return cusync.published(*(pd.read_csv(DATA / f"cusync_{what}.csv") for what in (f"{name}_times", "configurations")))


def sentence(c):
    print(
        f"host {c.host_us:.1f} us per pair of convolutions, of which cuSync spares {c.saved_us:.1f} us; "
        f"SM share {c.interference['v100'].sm:.2f}"
    )
    for arch, us in c.poll_us.items():
        print(
            f"{arch}: a wait in the loop costs {us:.2f} us; a full wave takes {c.interference[arch].device:.0%} longer "
            "than a tile alone"
        )
    print()


def correlations(points, c, frame):
    print("Correlation with the published gains and mean error in points, over points that do not calibrate:\n")
    own_times = "waves alone, each point's own tile times"
    versions = {
        own_times: without(points, c, own=True, waits=False, slowing=False, traffic=False),
        "+ tile times of all token counts": without(points, c, waits=False, slowing=False, traffic=False),
        "+ tiles slow each other down": without(points, c, waits=False, traffic=False),
        "+ waits in the main loop": without(points, c, traffic=False),
        "+ traffic where memory is the limit": frame,
    }
    actual = {name: cusync.agreement(version) for name, version in versions.items()}
    actual["the other policy's tile times"] = cusync.agreement(frame, "from_other")
    keys = list(zip(*(actual[own_times][k] for k in ("kind", "arch", "policy")), strict=True))
    by_kernel = {name: a.set_index(["kind", "arch", "policy"]) for name, a in actual.items()}
    rows = [
        [name, *(f"{a.loc[key, 'correlation']:.2f} ({a.loc[key, 'mean_error']:.1f})" for key in keys)]
        for name, a in by_kernel.items()
    ]
    table(["", *(" ".join(key) for key in keys)], rows)


def without(points, c, *, own=False, waits=True, slowing=True, traffic=True):
    """Predictions without some of the mechanisms; what calibrates without them stays as it is except for tile times."""
    if not slowing:
        c = replace(c, interference={a: Interference(sm=i.sm) for a, i in c.interference.items()})
    if not waits:
        c = replace(c, poll_us=dict.fromkeys(c.poll_us, 0.0))
    groups = [[p] for p in points] if own else [points]
    parts = []
    for group in groups:
        with_rates = replace(c, rates=cusync.rates(group, c.interference), traffic=traffic)
        parts.append(cusync.predictions(group, with_rates))
    return pd.concat(parts, ignore_index=True)


def choices(frame):
    for stream in (False, True):
        best = cusync.best_policies(frame, stream=stream)
        right = best["published"] == best["predicted"]
        what = "Best of stream order and both policies" if stream else "Better of both policies"
        print(
            f"{what}, where the two best differ by more than 3%: {right.sum()} of {len(best)} as published "
            f"({right.mean():.0%}).\n"
        )
        counts = best.groupby(["published", "predicted"]).size().reset_index(name="points")
        table(list(counts.columns), counts.to_numpy().tolist())
        for row in best[~right].itertuples(index=False):
            print(
                f"- {row.kind} {row.arch} {row.m} ({row.channels}): published {row.published}, predicted "
                f"{row.predicted}, {row.difference:.1f}%"
            )
        print()


def each_point(key, rows, published_us):
    kind, arch = key
    print(f"{kind} {arch}: gains in %; c: calibrates; most: what constant tile times allow\n")
    names = ["channels", "batch"] if kind == "conv" else ["tokens"]
    for policy, part in rows.groupby("policy", sort=False):
        lines = []
        for row in part.itertuples(index=False):
            place = [row.channels, row.m] if kind == "conv" else [row.m]
            gains = [row.published, row.predicted, row.from_other, row.most]
            context = [] if kind == "conv" else [gain(published_us[row.m], name) for name in CONTEXT]
            lines.append(
                [
                    *place,
                    *(f"{g:.1f}" for g in gains),
                    "" if row.time_ratio != row.time_ratio else f"{row.time_ratio:.2f}",
                    *context,
                    "" if row.tests else "c",
                ]
            )
        context = [] if kind == "conv" else list(CONTEXT)
        print(f"{policy}\n")
        table([*names, "published", "predicted", "other's tile times", "most", "time ratio", *context, ""], lines)


def gain(us, name):
    return f"{100 * (1 - us[name] / us['baseline']):.1f}" if name in us else ""


if __name__ == "__main__":
    main()
