"""The convolutions that are harvested, and those that are held out to judge the tables by.

A case is `COLUMNS`: a layer of ``convolution_layers.csv.gz``, a pass, a type, a layout and a number of images. Layers
in one dimension are layers in two with a height of 1, as PyTorch runs them. Layers come from whole lists of models
(``tests/gpu/harvest/convolution_layers.py``). Models of which calls are held out are not in the list; what other models
have in common with them is.
"""

from __future__ import annotations

import csv
import gzip
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.record.model.tiles.convolutions.convolution_key import (
    COLUMNS,
    LAYER_COLUMNS,
    Dtype,
    Layout,
    Pass,
    costs,
    result_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    from numpy.typing import NDArray

HELD_OUT: Final = 300
WEIGHT_COLUMNS: Final = (
    "rank", "transposed", "groups", "channels_in", "channels_out", "kd", "kh", "kw", "sd", "sh", "sw"
)  # fmt: skip
"""Columns that identify a weight, whatever the sizes of images, batch and type."""
HELD_OUT_WEIGHTS_FILE: Final = Path(__file__).with_name("convolution_held_out_weights.csv")
LAYERS_FILE: Final = Path(__file__).with_name("convolution_layers.csv.gz")
HELD_OUT_FILE: Final = Path(__file__).with_name("convolution_held_out.csv")
_SIZE: Final = slice(6, 9)
"""Depth, height and width of a layer."""
_SEED: Final = 20261124
_MOST_FLOPS: Final = (5e11, 1e11, 5e11, 5e11)
"""The most operations per type: a few milliseconds of an H200."""
_MOST_ELEMENTS: Final = 1 << 27
"""The most elements of one tensor."""
_BATCHES: Final = ((1, 0.26), (2, 0.13), (4, 0.13), (8, 0.19), (16, 0.12), (32, 0.1), (64, 0.07))


_TRAINING: Final = 0.22
"""The share of the drawn cases that come in all three passes."""
_DTYPES: Final = ((Dtype.TF32, 0.27), (Dtype.FP32, 0.06), (Dtype.FP16, 0.37), (Dtype.BF16, 0.3))


CAPTURED_KINDS: Final = {
    "product": 0.26, "3x3": 0.2, "strided": 0.14, "depthwise": 0.13, "grouped": 0.11, "line": 0.06, "transposed": 0.04,
    "other": 0.06,
}  # fmt: skip
"""How often calls of each kind of layer are captured: more often for kinds that near calls predict worse."""
_CAPTURED_PASSES: Final = ((Pass.FORWARD, 0.5), (Pass.INPUT_GRADIENT, 0.2), (Pass.WEIGHT_GRADIENT, 0.3))
_CAPTURED_DTYPES: Final = ((Dtype.TF32, 0.3), (Dtype.FP32, 0.1), (Dtype.FP16, 0.3), (Dtype.BF16, 0.3))
_CAPTURED_LAST: Final = 0.45
_AS_IT_IS, _OTHER_IMAGE = 0.45, 0.7
"""Up to so much of the draws are real layers, and real layers at the image size of another one; other draws have
channels that no model may have together."""
_MOST_IMAGES: Final = 64


def layers() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the layers ``[layers, LAYER_COLUMNS]`` with ``images`` for one sample, and in how many models each is."""
    with gzip.open(LAYERS_FILE, "rt", newline="") as file:
        table = np.array([[int(value) for value in row] for row in list(csv.reader(file))[1:]], np.int64)
    return table[:, 1:], table[:, 0]


@cache
def held_out() -> NDArray[np.int64]:
    """Return the held-out cases, which were drawn before anything was harvested."""
    with HELD_OUT_FILE.open(newline="") as file:
        rows = list(csv.reader(file))
    return np.array([[int(value) for value in row[1:]] for row in rows[1:]], np.int64)


@cache
def held_out_weights() -> frozenset[tuple[int, ...]]:
    """Return the weights (`WEIGHT_COLUMNS`) that trees are judged by: every tenth of the first table, drawn by a seed
    before trees were grown.
    """
    with HELD_OUT_WEIGHTS_FILE.open(newline="") as file:
        rows = list(csv.reader(file))
    return frozenset(tuple(map(int, row)) for row in rows[1:])


def weights(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the weight of each case, as `WEIGHT_COLUMNS`."""
    return keys[:, [COLUMNS.index(name) for name in WEIGHT_COLUMNS]]


def captured(random: Random, kind: str | None = None) -> Iterator[tuple[int, ...]]:
    """Yield different cases without end, for `tileprof.harvest.convolutions.convolution_captures`: real layers, real
    layers at other image sizes, and layers of mixed channels. None is held out, nor has a weight that is. ``kind``: one
    of `CAPTURED_KINDS` alone.
    """
    some, models = layers()
    by_kind: dict[str, list[int]] = {}
    for number, name in enumerate(_kinds(some)):
        by_kind.setdefault(name, []).append(number)
    often = {name: list(accumulate(np.sqrt(models[numbers]).tolist())) for name, numbers in by_kind.items()}
    rows = some.tolist()
    earlier_cases = {tuple(row) for row in held_out().tolist()}
    while True:
        own = kind or _choice(random, CAPTURED_KINDS.items())
        one, other, third = (rows[n] for n in random.choices(by_kind[own], cum_weights=often[own], k=3))
        layer = _crossed_layer(one, other, third, random.random())
        dtype = _choice(random, _CAPTURED_DTYPES)
        batch = _choice(random, _BATCHES) if random.random() < 0.85 else random.randint(1, _MOST_IMAGES)
        several, fits = fitting(np.array([layer], np.int64), np.array([batch]), np.array([dtype]))
        head = (int(_choice(random, _CAPTURED_PASSES)), int(dtype), int(random.random() < _CAPTURED_LAST))
        case = (*head, *several[0].tolist())
        weight = tuple(weights(np.array([case], np.int64))[0].tolist())
        if fits[0] and case not in earlier_cases and weight not in held_out_weights():
            earlier_cases.add(case)
            yield case


def _choice(random: Random, options: Iterable[tuple[Any, float]]) -> Any:
    values, often = zip(*options, strict=True)
    return random.choices(values, often)[0]


def _crossed_layer(one: list[int], other: list[int], third: list[int], kind: float) -> list[int]:
    """Return a layer, with the image of ``other`` from `_AS_IT_IS` on, and with other channels from `_OTHER_IMAGE`
    on: groups and channels of a group are those of ``other`` and ``third``.
    """
    if kind < _AS_IT_IS:
        return one
    layer = list(one)
    layer[_SIZE] = other[_SIZE]
    if kind < _OTHER_IMAGE:
        return layer
    groups = third[2]
    inside, outside = one[4] // one[2], (other[5] // other[2])
    if one[2] > 1:
        outside = max(1, one[5] * inside // one[4])  # as many filters per channel as the layer has
    layer[2], layer[4], layer[5] = groups, groups * inside, groups * outside
    return layer


def _kinds(some: NDArray[np.int64]) -> list[str]:
    """Return the kind of each layer, as `CAPTURED_KINDS` names them."""
    groups, taps, stride = some[:, 2], some[:, 9:12], some[:, 12:15].max(1)
    one, line = taps.prod(1) == 1, (some[:, 7] == 1) & (taps[:, 1] == 1)
    alone = (some[:, 0] == 2) & (taps[:, 1:] == 3).all(1)  # fmt: skip
    conditions = {
        "transposed": some[:, 1] == 1, "depthwise": (groups > 1) & (groups == some[:, 4]), "grouped": groups > 1,
        "product": one & (stride == 1), "line": line & ~one, "strided": stride > 1, "3x3": alone,
    }  # fmt: skip
    kinds: list[str] = np.select(list(conditions.values()), list(conditions), "other").tolist()
    return kinds


def drawn(count: int, layer: NDArray[np.int64], models: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return ``count`` different cases of the layers: every layer comes once per round, with a type, layout and batch
    of its own, most often forward, else in all three passes; layers of many models come first in a round.
    """
    random = np.random.default_rng(seed)
    cases: dict[tuple[int, ...], None] = {}
    likely_last = np.where((layer[:, 0] == 2) & (layer[:, 7] > 1), 0.4, 0.05)
    for _ in range(256):
        order = np.argsort(random.exponential(size=len(layer)) / np.sqrt(models))
        dtype = random.choice([d for d, _ in _DTYPES], len(layer), p=[p for _, p in _DTYPES])
        layout = (random.random(len(layer)) < likely_last).astype(int)
        batch = random.choice([b for b, _ in _BATCHES], len(layer), p=[p for _, p in _BATCHES])
        training = random.random(len(layer)) < _TRAINING
        one, fits = fitting(layer, batch, dtype)
        rows = zip(dtype[order], layout[order], training[order], fits[order], one[order].tolist(), strict=True)
        for kind, last, all_passes, possible, sizes in rows:
            if not possible:
                continue
            for what in Pass if all_passes else (Pass.FORWARD,):
                cases[int(what), int(kind), int(last), *sizes] = None
            if len(cases) >= count:
                return np.array(list(cases)[:count], np.int64)
    return np.array(list(cases), np.int64)


def fitting(
    layer: NDArray[np.int64], batch: NDArray[np.int64], dtype: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the layers with ``batch`` samples each, fewer if that takes too long or too much memory, and whether they
    fit at all.
    """
    limit = np.array(_MOST_FLOPS)[dtype]
    batch = batch.copy()
    while True:
        several = layer.copy()
        several[:, 3] *= np.maximum(batch, 1)
        flops, elements = costs(several)
        large = (flops > limit) | (elements > _MOST_ELEMENTS)
        if not (large & (batch > 1)).any():
            return several, ~large & (result_sizes(several) > 0).all(1)
        batch = np.where(large, batch // 2, batch)


def harvested(count: int) -> NDArray[np.int64]:
    """Return ``count`` cases, none of which is held out."""
    layer, models = layers()
    cases = drawn(count + HELD_OUT, layer, models, _SEED)
    held_keys = {tuple(row) for row in held_out().tolist()}
    return np.array([row for row in cases.tolist() if tuple(row) not in held_keys][:count], np.int64)


__all__ = [
    "CAPTURED_KINDS", "COLUMNS", "HELD_OUT", "HELD_OUT_FILE", "HELD_OUT_WEIGHTS_FILE", "LAYERS_FILE", "LAYER_COLUMNS",
    "WEIGHT_COLUMNS", "Dtype", "Layout", "Pass", "captured", "costs", "drawn", "fitting", "harvested", "held_out",
    "held_out_weights", "layers", "result_sizes", "weights",
]  # fmt: skip
