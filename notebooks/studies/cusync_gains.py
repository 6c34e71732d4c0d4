"""cuSync's published times, predicted point by point; what explains them, and what does not.

Times: github.com/parasailteam/cusync (``mlp-gpt3-*.csv``, ``mlp-llama-*.csv``, ``resnet_results.csv``); tiles, slices
and optimisations of each program: ``tile_sizes_db.py`` and ``eval_resnet.py`` there. Every program ran by itself,
stream order first, after all had been compiled.

What calibrates, and on which points
    *Tile times*: stream order alone. A GEMM's is the median over all token counts with the same tile and slices
    (`Calibration.rates`), so that one program's clock is not taken for the kernel's; a convolution's is its own
    point's.
    *Interference*: stream order alone (`_device_interference`, `_sm_interference`), each GPU's from its own times.
    *Host*: convolutions in stream order end with the host waiting for the GPU between the two kernels; what that costs
    follows from stream order (`_host_us`), what cuSync saves of it from RowSync at batch 1. *Waits*: what one costs a
    product follows from the difference between TileSync and RowSync at one token count for each GPU; a convolution's
    cost nothing. Points that calibrate (`CALIBRATES`) are not tests.

What was taken out, since it did not carry over to points that it was not made for
    A *switch of the tile time* at 1,280 tokens on the A100, fitted to RowSync of GPT-3: it made LLaMA's errors 13.1 and
    10.8 points. The *share of an SM* of the V100's convolutions for the A100's products. The *cost of a wait* of the
    V100's products for convolutions: VGG's TileSync gains nothing with it, and is published to gain 7.9 and 12.9%.

What explains the gains
    *Waves*: filling partial waves. *Tiles slow each other down*: on a V100 a wave of 256 x 256 tiles takes longer the
    more of them run, so a filled wave saves less than it seems to. *Waits in the main loop* cost TileSync what makes it
    lose to RowSync wherever the arithmetic is the limit. *Other slices*: a policy runs with other slices and tiles than
    its stream order, and slices of a convolution are padded. *Traffic*: where memory is the limit and both kernels are
    one wave, TileSync runs at the higher rate of the two (`_traffic_us`).

How much hangs on what calibrates
    Little: RowSync's correlation on the V100's MLP is 0.91 with every share of an SM and cost of a wait, and 0.89 to
    0.92 with `_device_interference` from 0 to 0.4; the convolutions' is 0.87 or more with shares from 0.6 to 0.8 and 20
    to 40 us of host. `_SATURATED` from 0.7 to 0.8 is the same on GPT-3; at 0.85 the point of 64 tokens, which changes
    its slices, is no longer explained, and TileSync's correlation is 0.69.

What the A100's residual is
    The GPU's *speed*. In stream order a 128 x 256 x 6144 tile takes 181 to 186 us at nine of eleven token counts and
    150 us at 3072; at 2048, 2304, 2816 and 3072 it is the same kernel (`stream_time_ratio`). At 2560, between the two,
    the standard deviation is 200 times that of others. One ratio of tile times per token count explains RowSync and
    TileSync together, so it is the GPU's and not a policy's: each predicted with the ratio of the *other*
    (``from_other``) is within 1.3 points of percent on average. Why programs that run later, and longer, are faster is
    not published; a clock that rises under load would do it. So, as against stream order, these gains cannot be
    predicted from stream order, and those above `most_gain` cannot come from waves.

What is held out
    LLaMA's MLP: no constant was changed for it, and only tile times are its own (`held_out`). On the V100 its gains are
    predicted as well as GPT-3's. TileSync's are not at 8 to 32 tokens, where the second kernel reaches 0.76 to 0.79 of
    the sustained bandwidth, just below `_SATURATED`, and TileSync gains nevertheless. On the A100 gains are not
    predicted; at seven of eleven token counts both policies again have one time ratio to 1%, and at 2048 and 2560
    TileSync's is 0.85 and 0.88 of RowSync's: each program has one of two.

V100's stream order at 768 tokens, and from 1280 on, does up to 1.32 times the arithmetic of the GPU's peak
(`peak_share`): those kernels cannot have done all their products (the evaluation runs with ``--check false``). As all
three programs share them, gains are compared nevertheless.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from studies.cusync_pairs import POLICIES, STREAM, Interference, Kernel, Pair, overlapped_ns, stream_ns

from tileprof.devices import Device, get

DEVICES: Final = {"v100": "V100", "a100": "A100-80GB"}
_POLL_AT: Final = {"v100": 2048, "a100": 1536}
CALIBRATES: Final = frozenset(
    [("mlp", arch, m, policy) for arch, m in _POLL_AT.items() for policy in POLICIES] + [("conv", "v100", 1, "rowsync")]
)
"""Kind, GPU, tokens or batch, and policy of published times of a policy that a number is taken from."""

Rate = tuple[str, int, int, tuple[int, int, int], int]


@dataclass(frozen=True, slots=True)
class Point:
    """One shape. ``m``: tokens or batch; ``channels``: of a convolution, else the hidden size; ``kernel_us`` of stream
    order, where published.
    """

    kind: str
    arch: str
    m: int
    channels: int
    pairs: Mapping[str, Pair]
    published_us: Mapping[str, float]
    kernel_us: tuple[float, float] | None

    @property
    def device(self) -> Device:
        return _device(self.arch)

    @property
    def stream_us(self) -> float:
        return self.published_us[STREAM]

    def gain(self, us: float) -> float:
        """Percent of the stream-order time."""
        return 100.0 * (1.0 - us / self.stream_us)


def published(times: pd.DataFrame, configurations: pd.DataFrame) -> list[Point]:
    """Points from the tables ``cusync_published_times.csv`` and ``cusync_configurations.csv``."""
    keys = ["kind", "arch", "m", "H"]
    kernels = {key: _pair(rows) for key, rows in configurations.groupby([*keys, "policy"], sort=False)}
    points = []
    for key, rows in times.groupby(keys, sort=False):
        programs = {row["policy"]: row for row in reversed(rows.to_dict("records"))}  # the first of repeated ones
        base = programs[STREAM]
        pairs = {name: kernels[(*key, name)] for name in (STREAM, *POLICIES) if name in programs}
        each = None if np.isnan(base["k1_us"]) else (float(base["k1_us"]), float(base["k2_us"]))
        us = {str(name): float(row["time_us"]) for name, row in programs.items()}
        points.append(Point(base["kind"], base["arch"], int(base["m"]), int(base["H"]), pairs, us, each))
    return points


def _pair(rows: pd.DataFrame) -> Pair:
    first, second = (_kernel(row) for row in rows.sort_values("op").to_dict("records"))
    return first, second


def _kernel(row: Mapping[Hashable, Any]) -> Kernel:
    return Kernel(
        rows=int(row["rows"]),
        columns=int(row["columns"]),
        inner=int(row["inner"]),
        tile_rows=int(row["tile_m"]),
        tile_columns=int(row["tile_n"]),
        tile_inner=int(row["tile_k"]),
        warp_rows=int(row["warp_m"]),
        warp_columns=int(row["warp_n"]),
        stages=int(row["stages"]),
        slices=int(row["split_k"]),
        convolution=row["kind"] == "conv",
    )


@cache
def _device(arch: str) -> Device:
    return get(DEVICES[arch])


@cache
def _at_unit_rate_ns(kernel: Kernel, arch: str, interference: Interference) -> float:
    """Time of a kernel with the GPU to itself, if a tile alone on it took 1 ns a multiply-add."""
    return stream_ns(kernel, float(kernel.tile_work), _device(arch), interference)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What predictions are made from; times in microseconds.

    ``rates`` maps GPU, hidden size, place in the pair, tile and slices of stream order to ns a multiply-add of a tile
    alone; ``poll_us`` is what a wait costs a product, ``host_us`` the host's part of the stream-order time of two
    convolutions, ``saved_us`` what cuSync spares of it. ``traffic``: whether TileSync's time is that of its traffic
    where memory is the limit.
    """

    interference: Mapping[str, Interference]
    rates: Mapping[Rate, float]
    poll_us: Mapping[str, float]
    host_us: float
    saved_us: float
    traffic: bool = True

    def tile_ns(self, point: Point, policy: str) -> tuple[float, float]:
        """Return the tile times of both kernels under a policy, alone on the GPU: work at the rate of stream order."""
        interference = self.interference[point.arch]
        times = []
        for i, (base, kernel) in enumerate(zip(point.pairs[STREAM], point.pairs[policy], strict=True)):
            if point.kernel_us is None:
                half_ns = 500.0 * (point.stream_us - self.host_us)
                rate = half_ns / _at_unit_rate_ns(base, point.arch, interference)
            else:
                rate = self.rates[_rate_key(point, i)]
            times.append(rate * kernel.tile_work)
        return times[0], times[1]

    def predicted_us(self, point: Point, policy: str, time_ratio: float = 1.0) -> float:
        """``time_ratio``: how long tiles take, as a multiple of the time in stream order."""
        if policy == "tilesync" and self.traffic and (us := _traffic_us(point)):
            return us
        first, second = self.tile_ns(point, policy)
        poll_ns = 1e3 * self.poll_us[point.arch] if point.kind == "mlp" else 0.0
        interference = self.interference[point.arch]
        tile_ns = first * time_ratio, second * time_ratio
        us = overlapped_ns(point.pairs[policy], tile_ns, policy, point.device, interference, poll_ns) / 1e3
        return us if point.kernel_us else us + self.host_us - self.saved_us

    def time_ratio(self, point: Point, policy: str) -> float:
        """Return the time ratio at which the prediction is the published time; NaN where it depends on none."""
        if policy == "tilesync" and self.traffic and _traffic_us(point):
            return float("nan")
        time_ratio, step = 1.0, 0.01
        for _ in range(8):
            here, beside = (self.predicted_us(point, policy, time_ratio + d) for d in (0.0, step))
            missing = point.published_us[policy] - here
            if abs(missing) < 1e-4 * here:
                break
            time_ratio = max(0.1, time_ratio + step * missing / (beside - here))
        return time_ratio


def _rate_key(point: Point, i: int) -> Rate:
    kernel = point.pairs[STREAM][i]
    return point.arch, point.channels, i, (kernel.tile_rows, kernel.tile_columns, kernel.tile_inner), kernel.slices


def calibrate(points: list[Point]) -> Calibration:
    """From stream order, and from the points of `CALIBRATES` what stream order does not have. Points to be held out
    must not be among these.
    """
    interference = {}
    for arch in sorted({p.arch for p in points}):
        own = [p for p in points if p.arch == arch]
        gemms = [p for p in own if p.kernel_us]
        interference[arch] = Interference(_sm_interference(own), _device_interference(gemms))
    c = Calibration(interference, rates(points, interference), dict.fromkeys(interference, 0.0), _host_us(points), 0.0)
    c = replace(c, poll_us={arch: _poll_us(c, points, arch) for arch in interference})
    one = [p for p in points if p.kind == "conv" and p.m == 1]
    saved = np.median([c.predicted_us(p, "rowsync") - p.published_us["rowsync"] for p in one]) if one else 0.0
    return replace(c, saved_us=float(saved))


def held_out(c: Calibration, points: list[Point]) -> Calibration:
    """For points that nothing was calibrated on: tile times from their own stream order, all else as it is."""
    return replace(c, rates=rates(points, c.interference))


def rates(points: list[Point], interference: Mapping[str, Interference]) -> dict[Rate, float]:
    """`Calibration.rates` from stream-order times of GEMMs: the median over points with the same tile and slices."""
    values: dict[Rate, list[float]] = {}
    for p in points:
        for i, us in enumerate(p.kernel_us or ()):
            kernel = p.pairs[STREAM][i]
            work_ns = _at_unit_rate_ns(kernel, p.arch, interference[p.arch])
            values.setdefault(_rate_key(p, i), []).append(1e3 * us / work_ns)
    return {key: float(np.median(rates)) for key, rates in values.items()}


_SATURATED: Final = 0.8
"""Share of the bandwidth that the GPU sustains from which on memory is taken for the limit: 64 tokens reach 0.83 and
0.95, 128 tokens 0.62 and 0.84.
"""

_DEVICE_INTERFERENCES = np.arange(0.0, 0.61, 0.05)


def _device_interference(points: list[Point]) -> float:
    """Return the exponent with which kernels of the same tile and slices have the most even rates over token counts, of
    those with an SM for each tile.

    It makes a last wave with few tiles shorter than a full one. Rates are compared by mean absolute deviation, since a
    GPU with two speeds has outliers.
    """
    alone_on_sm = [p for p in points if max(k.blocks_per_sm(p.device) for k in p.pairs[STREAM]) == 1]
    if not alone_on_sm:
        return 0.0
    spreads = [_spread(alone_on_sm, Interference(device=float(d))) for d in _DEVICE_INTERFERENCES]
    return float(_DEVICE_INTERFERENCES[int(np.argmin(spreads))])


def _spread(points: list[Point], interference: Interference) -> float:
    groups: dict[Rate, list[float]] = {}
    for p in points:
        for i, us in enumerate(p.kernel_us or ()):
            kernel = p.pairs[STREAM][i]
            work_ns = _at_unit_rate_ns(kernel, p.arch, interference)
            groups.setdefault(_rate_key(p, i), []).append(np.log(us / work_ns))
    return float(sum(np.abs(np.array(g) - np.median(g)).sum() for g in groups.values()))


def _convolution(points: list[Point], channels: int, *batches: int) -> NDArray[np.float64]:
    return np.array([p.stream_us for p in points if p.kind == "conv" and p.channels == channels and p.m in batches])


def _host_us(points: list[Point]) -> float:
    """64 channels at batch 20 and 24 are two waves of 256 x 64 tiles per kernel, at 28 and 32 three: what is left at
    none is the host's.
    """
    two, three = _convolution(points, 64, 20, 24), _convolution(points, 64, 28, 32)
    return float(3 * two.mean() - 2 * three.mean()) if len(two) and len(three) else 0.0


def _sm_interference(points: list[Point]) -> float:
    """128 channels in 128 x 128 tiles: batch 12 has one tile on an SM, batch 20 and 24 have two, which take longer by
    twice the share.
    """
    one, two = _convolution(points, 128, 12), _convolution(points, 128, 20, 24)
    host_us = _host_us(points)
    return float((two.mean() - host_us) / (one.mean() - host_us) / 2) if len(one) and len(two) else 1.0


def _poll_us(c: Calibration, points: list[Point], arch: str) -> float:
    """With which TileSync is as much slower than RowSync as published, at one token count."""
    for p in points:
        if (p.kind, p.arch, p.m) == ("mlp", arch, _POLL_AT[arch]):
            gap_us = p.published_us["tilesync"] - p.published_us["rowsync"]
            time_ratio = c.time_ratio(p, "rowsync")
            us = {}
            for poll in (0.5, 1.0):
                calibration = replace(c, poll_us={arch: poll})
                us[poll] = calibration.predicted_us(p, "tilesync", time_ratio) - calibration.predicted_us(
                    p, "rowsync", time_ratio
                )
            return 0.5 + 0.5 * (gap_us - us[0.5]) / (us[1.0] - us[0.5])
    return 0.0


def _traffic_us(point: Point) -> float:
    """Where memory is the limit of both kernels in stream order: the bytes of both at the higher of their two rates;
    else 0.

    The kernel whose grid fits the GPU better fills the bandwidth that the other leaves, if its tiles need not wait for
    the other's last.
    """
    if point.kernel_us is None:
        return 0.0
    kernel_bytes = [_bytes(k) for k in point.pairs[STREAM]]
    rates = [b / us for b, us in zip(kernel_bytes, point.kernel_us, strict=True)]
    if min(rates) < _SATURATED * point.device.sustained_bytes_per_s / 1e6:
        return 0.0
    return sum(kernel_bytes) / max(rates)


def _bytes(kernel: Kernel) -> float:
    return 2.0 * (kernel.rows * kernel.inner + kernel.inner * kernel.columns + kernel.rows * kernel.columns)


def stream_time_ratio(c: Calibration, point: Point) -> float:
    """How long tiles take in stream order at this point, as a multiple of the median of all points with the same tiles
    and slices; 1 for a convolution.
    """
    if point.kernel_us is None:
        return 1.0
    own = rates([point], c.interference)
    return float(np.mean([rate / c.rates[key] for key, rate in own.items()]))


def most_gain(c: Calibration, point: Point, policy: str) -> float:
    """Percent that any schedule could gain while a tile takes as long as in stream order at this point: slots never
    empty, or one tile after another.
    """
    kernels = point.pairs[STREAM]
    each = point.kernel_us or ((point.stream_us - c.host_us) / 2,) * 2
    area_us, longest_us = 0.0, 0.0
    for base, kernel, us in zip(kernels, point.pairs[policy], each, strict=True):
        slots = point.device.sms * base.blocks_per_sm(point.device)
        tile_us = us / ceil(base.tiles / slots)
        area_us += tile_us * base.tiles / slots * (kernel.tile_work * kernel.tiles) / (base.tile_work * base.tiles)
        longest_us = max(longest_us, tile_us * kernel.tile_work / base.tile_work)
    host_us = 0.0 if point.kernel_us else c.host_us - c.saved_us
    return point.gain(max(area_us, longest_us) + host_us)


def predictions(points: list[Point], c: Calibration) -> pd.DataFrame:
    """One row per point and policy: gains in percent of the stream-order time, published and predicted.

    ``from_other``: predicted with the time ratio of the other policy at the same point (the published time of this one
    is not used); ``time_ratio``: with which the prediction is the published time; ``most``: see `most_gain`;
    ``peak_share``: arithmetic that stream order's time implies, over the GPU's peak; ``tests``: not in `CALIBRATES`.
    """
    rows = []
    for p in points:
        time_ratios = {policy: c.time_ratio(p, policy) for policy in POLICIES}
        peak_us = sum(k.flops for k in p.pairs[STREAM]) / p.device.peak_flops["fp16"] * 1e6
        for policy, other in zip(POLICIES, reversed(POLICIES), strict=True):
            us = c.predicted_us(p, policy)
            crossed = (
                us
                if np.isnan(time_ratios[other]) or np.isnan(time_ratios[policy])
                else c.predicted_us(p, policy, time_ratios[other])
            )
            rows.append(
                {
                    "kind": p.kind, "arch": p.arch, "m": p.m, "channels": p.channels, "policy": policy,
                    "stream_us": p.stream_us,
                    "published_us": p.published_us[policy], "predicted_us": us, "from_other_us": crossed,
                    "published": p.gain(p.published_us[policy]), "predicted": p.gain(us), "from_other": p.gain(crossed),
                    "stream_time_ratio": stream_time_ratio(c, p),
                    "most": most_gain(c, p, policy), "time_ratio": time_ratios[policy],
                    "peak_share": peak_us / p.stream_us,
                    "tests": (p.kind, p.arch, p.m, policy) not in CALIBRATES,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def agreement(frame: pd.DataFrame, column: str = "predicted") -> pd.DataFrame:
    """For each kind, GPU and policy, over the points that test: how many, correlation with the published gains, and
    mean error in points of percent, of the predictions and of answering always with the mean of the published gains
    (``mean_alone``).
    """
    rows = []
    for key, part in frame[frame["tests"]].groupby(["kind", "arch", "policy"], sort=False):
        published, predicted = part["published"].to_numpy(), part[column].to_numpy()
        errors = [float(np.abs(published - guess).mean()) for guess in (predicted, published.mean())]
        rows.append((*key, len(part), float(np.corrcoef(published, predicted)[0, 1]), *errors))
    return pd.DataFrame(rows, columns=["kind", "arch", "policy", "points", "correlation", "mean_error", "mean_alone"])


SETS: Final = {
    ("gpt3", "mlp", "v100"): ("GPT-3 MLP, V100", "fitted"),
    ("gpt3", "conv", "v100"): ("ResNet-38, V100", "fitted"),
    ("gpt3", "mlp", "a100"): ("GPT-3 MLP, A100", "fitted"),
    ("llama", "mlp", "v100"): ("LLaMA MLP, V100", "unfitted"),
    ("llama", "mlp", "a100"): ("LLaMA MLP, A100", "unfitted"),
}
"""What a set of published times is called, and whether constants were taken from it."""


def rows_of_sets(fitted: pd.DataFrame, unfitted: pd.DataFrame) -> list[str]:
    """The table of docs/simulator-accuracy.md: correlation and errors of every set, RowSync / TileSync, in Markdown."""
    statistics = {
        (name, *key): part.set_index("policy")
        for name, frame in (("gpt3", fitted), ("llama", unfitted.assign(tests=True)))
        for key, part in agreement(frame).groupby(["kind", "arch"])
    }
    rows = []
    for key, (name, kind) in SETS.items():
        part = statistics[key]
        numbers = [
            " / ".join(format(part.loc[policy, column], digits) for policy in POLICIES)
            for column, digits in (("correlation", ".2f"), ("mean_error", ".1f"), ("mean_alone", ".1f"))
        ]
        rows.append(f"| {' | '.join([name, kind, *numbers])} |")
    return rows


def best_policies(frame: pd.DataFrame, least: float = 3.0, stream: bool = False) -> pd.DataFrame:
    """One row a point of which both policies test and the two best differ by more than ``least`` percent of the
    stream-order time: the best as published and as predicted. ``stream``: stream order is a choice too.
    """
    rows = []
    for key, part in frame.groupby(["kind", "arch", "m", "channels"], sort=False):
        if not part["tests"].all():
            continue
        gains = part.set_index("policy")[["published", "predicted"]]
        if stream:
            gains.loc[STREAM] = 0.0
        ordered = gains["published"].sort_values(ascending=False)
        if ordered.iloc[0] - ordered.iloc[1] > least:
            rows.append((*key, ordered.index[0], gains["predicted"].idxmax(), ordered.iloc[0] - ordered.iloc[1]))
    return pd.DataFrame(rows, columns=["kind", "arch", "m", "channels", "published", "predicted", "difference"])
