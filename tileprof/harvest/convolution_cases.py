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
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
    from numpy.typing import NDArray

HELD_OUT: Final = 300
LAYERS_FILE: Final = Path(__file__).with_name("convolution_layers.csv.gz")
HELD_OUT_FILE: Final = Path(__file__).with_name("convolution_held_out.csv")
_SEED: Final = 20261124
_MOST_FLOPS: Final = (5e11, 1e11, 5e11, 5e11)
"""The most operations per type: a few milliseconds of an H200."""
_MOST_ELEMENTS: Final = 1 << 27
"""The most elements of one tensor."""
_BATCHES: Final = ((1, 0.26), (2, 0.13), (4, 0.13), (8, 0.19), (16, 0.12), (32, 0.1), (64, 0.07))


_TRAINING: Final = 0.22
"""The share of the drawn cases that come in all three passes."""
_DTYPES: Final = ((Dtype.TF32, 0.27), (Dtype.FP32, 0.06), (Dtype.FP16, 0.37), (Dtype.BF16, 0.3))


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


def drawn(count: int, layer: NDArray[np.int64], models: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return ``count`` different cases of the layers: every layer comes once per round, with a type, layout and batch
    of its own, most often forward, else in all three passes; layers of many models come first in a round.
    """
    random = np.random.default_rng(seed)
    chosen: dict[tuple[int, ...], None] = {}
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
                chosen[int(what), int(kind), int(last), *sizes] = None
            if len(chosen) >= count:
                return np.array(list(chosen)[:count], np.int64)
    return np.array(list(chosen), np.int64)


def fitting(
    layer: NDArray[np.int64], batch: NDArray[np.int64], dtype: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the layers with so many samples each, fewer where that takes too long or too much memory, and whether
    they fit at all.
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
    "COLUMNS", "HELD_OUT", "HELD_OUT_FILE", "LAYERS_FILE", "LAYER_COLUMNS", "Dtype", "Layout", "Pass", "costs", "drawn",
    "fitting", "harvested", "held_out", "layers", "result_sizes",
]  # fmt: skip
