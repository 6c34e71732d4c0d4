"""Predictions of cuSync's published gains: their accuracy, and that no point is predicted from itself."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from studies.cusync_gains import (
    CALIBRATES,
    agreement,
    best_policies,
    calibrate,
    held_out,
    most_gain,
    predictions,
    published,
    rows_of_sets,
)
from studies.cusync_pairs import POLICIES, STREAM

ROOT = Path(__file__).parents[4]
DATA = ROOT / "tests" / "data"


def points_of(name):
    return published(*(pd.read_csv(DATA / f"cusync_{what}.csv") for what in (f"{name}_times", "configurations")))


@pytest.fixture(scope="module")
def points():
    return points_of("published")


@pytest.fixture(scope="module")
def calibration(points):
    return calibrate(points)


@pytest.fixture(scope="module")
def frame(points, calibration):
    return predictions(points, calibration)


@pytest.fixture(scope="module")
def llama(calibration):
    points = points_of("llama")
    return predictions(points, held_out(calibration, points))


def changed_points(points, factor_of):
    """Return points with other published times of policies."""
    return [
        dataclasses.replace(
            p,
            published_us={
                name: us * (factor_of(p, name) if name in POLICIES else 1.0) for name, us in p.published_us.items()
            },
        )
        for p in points
    ]


def test_every_published_point_of_both_policies_is_predicted(points, frame):
    assert len(points) == 20 + 11 + 36
    assert len(frame) == 2 * len(points)
    assert np.isfinite(frame[["predicted", "from_other"]].to_numpy()).all()


def test_a_gain_is_the_one_published(frame):
    row = frame[(frame["arch"] == "v100") & (frame["m"] == 1024) & (frame["policy"] == "rowsync")].iloc[0]
    assert row["published"] == pytest.approx(24.24, abs=0.01)


def test_gains_correlate_wherever_the_gpu_kept_its_speed(frame):
    correlations = agreement(frame).set_index(["kind", "arch", "policy"])["correlation"]
    for kind, policy in (("mlp", "rowsync"), ("mlp", "tilesync"), ("conv", "rowsync"), ("conv", "tilesync")):
        assert correlations[kind, "v100", policy] >= 0.9, (kind, policy)
    points = frame[(frame["kind"] == "mlp") & (frame["arch"] == "v100") & (frame["policy"] == "rowsync")]
    assert np.corrcoef(points["published"], points["predicted"])[0, 1] >= 0.9  # the points of calibration too


def test_the_a100s_two_policies_agree_on_the_pace_and_stream_order_does_not(frame):
    a100 = frame[frame["arch"] == "a100"]
    cross_agreement = agreement(a100, "from_other")
    assert (cross_agreement["correlation"] >= 0.95).all()
    assert (cross_agreement["mean_error"] < 1.5).all()
    assert (agreement(a100)["mean_error"] > agreement(a100)["mean_alone"]).all()  # the mean would have been closer
    assert (agreement(a100)["correlation"] < 0.6).all()  # relative to stream order they stay unexplained
    ratios = a100.pivot_table(index="m", columns="policy", values="time_ratio")
    apart = (ratios["tilesync"] / ratios["rowsync"] - 1).abs()
    assert (apart < 0.02).sum() == 10
    assert apart.idxmax() == 2048
    assert ratios["rowsync"].loc[:1024].between(0.98, 1.05).all()
    assert ratios["rowsync"].loc[1280:].between(0.8, 0.9).all()


def test_most_of_the_a100s_gains_cannot_come_from_waves(frame):
    above = frame[frame["published"] > frame["most"] + 0.5]
    a100 = above[above["arch"] == "a100"]
    assert set(a100[a100["policy"] == "rowsync"]["m"]) == {1280, 1536, 1792, 2048, 2304, 2560, 2816}
    assert set(above[above["arch"] == "v100"]["m"]) == {2560}  # its stream order ran slowly


def test_the_better_policy_is_predicted(frame):
    best = best_policies(frame)
    assert len(best) == 36
    assert (best["published"] == best["predicted"]).mean() >= 0.95
    with_stream = best_policies(frame, stream=True)
    assert (with_stream["published"] == with_stream["predicted"]).mean() >= 0.8


def test_no_point_that_tests_is_predicted_from_a_time_of_a_policy(points, frame):
    """The times under policies at test points do not change the prediction."""
    other = changed_points(points, lambda p, name: 1.0 if (p.kind, p.arch, p.m, name) in CALIBRATES else 1.7)
    again = predictions(other, calibrate(other))
    assert again["predicted_us"].tolist() == frame["predicted_us"].tolist()


def test_what_is_predicted_from_the_other_policy_does_not_use_its_own(points, calibration, frame):
    other = [p for p in changed_points(points, lambda _, name: 1.3 if name == "tilesync" else 1.0) if p.arch == "a100"]
    again = predictions(other, calibration)
    for policy, same in (("tilesync", True), ("rowsync", False)):
        now, before = (
            f[(f["arch"] == "a100") & (f["policy"] == policy)]["from_other_us"].to_numpy() for f in (again, frame)
        )
        assert (np.allclose(now, before)) == same


def test_llamas_gains_on_the_v100_follow_from_what_was_calibrated_without_it(llama):
    assert len(llama) == 2 * (20 + 11)
    correlations = agreement(llama.assign(tests=True)).set_index(["arch", "policy"])
    assert correlations["correlation"]["v100", "rowsync"] >= 0.9
    assert correlations["correlation"]["v100", "tilesync"] >= 0.8
    assert correlations["mean_error"]["v100", "rowsync"] < 3
    assert correlations["correlation"]["a100", "rowsync"] < 0.5  # as its docstring says


def test_the_page_has_the_table_of_all_sets(frame, llama):
    rows = rows_of_sets(frame, llama)
    page = (ROOT / "docs" / "simulator-accuracy.md").read_text()
    assert "\n".join(rows) in page, "\n".join(rows)


def test_the_v100s_large_products_were_faster_than_the_gpu_is(frame):
    mlp = frame[(frame["kind"] == "mlp") & (frame["policy"] == "rowsync")].set_index(["arch", "m"])["peak_share"]
    assert (mlp["v100"].loc[1280:] > 1.05).all()
    assert (mlp["a100"] < 0.9).all()


def test_no_schedule_gains_by_waves_where_all_of_them_are_full(points, calibration):
    (point,) = [p for p in points if p.arch == "v100" and p.m == 2560]
    assert {k.tiles % 80 for k in point.pairs[STREAM]} == {0}
    assert most_gain(calibration, point, "rowsync") == pytest.approx(0, abs=0.01)
