"""The matrix products that are harvested, and those that are held out to judge the tables by.

A case is nine integers (`COLUMNS`): ``d[m, n] = a[m, k] @ b[k, n]``, ``batch`` times. ``column_a`` and ``column_b`` say
that an operand is the transpose of a contiguous matrix, as the weight of a linear layer is.

Shapes are those of layers: widths of the models that transformers knows (`model_widths.csv`, from the defaults of its
configurations), batches and lengths of many kinds, and each layer's three products: forward, gradient of the input,
gradient of the weight. A seventh of the distinct models is set aside: their layers are in no list but the held-out one.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.record.model.tiles.products import problem as problems

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS: Final = ("op", "dtype", "column_a", "column_b", "batch", "m", "n", "k", "variant")
_WIDTHS: Final = Path(__file__).with_name("model_widths.csv")
HELD_OUT: Final = 1000
_SEED, _HELD_OUT_SEED = 20261124, 7
_HELD_OUT_SHARE: Final = 0.15
_MOST_ELEMENTS: Final = 1 << 30
"""The largest number of elements of one operand."""
_MOST_FLOPS: Final = {"FP32": 1e11, "TF32": 1e12, "FP16": 4e12, "BF16": 4e12, "FP8": 4e12}
"""About five milliseconds of an H200."""


_FLOPS_PER_S: Final = {"FP32": 45e12, "TF32": 300e12, "FP16": 700e12, "BF16": 700e12, "FP8": 1200e12}
_COMMON_S: Final = 100e-6
"""Products of up to about this time are taken without further conditions."""


class Op(IntEnum):
    """The function that PyTorch is asked for."""

    MM = 0
    ADDMM = 1
    """The product with a bias of one dimension: the epilogue of a linear layer."""
    ADDMM_MATRIX = 2
    """The product with a matrix to add."""
    BMM = 3
    BADDBMM = 4
    GROUPED = 5
    """``batch`` groups of rows, ``m`` rows in all."""
    SCALED = 6
    """fp8 with scales of the whole matrices."""


class Dtype(IntEnum):
    """Types of operands; TF32 is float32 on tensor cores, FP8 is e4m3 with results in bf16."""

    FP32 = 0
    TF32 = 1
    FP16 = 2
    BF16 = 3
    FP8 = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer of ``inputs`` to ``outputs``; ``heads`` and ``head`` where it is attention's scores instead."""

    inputs: int
    outputs: int
    heads: int = 0


@cache
def models() -> tuple[tuple[int, ...], ...]:
    """Return the distinct widths of models: hidden, heads, kv_heads, head_dim, intermediate, expert, vocabulary."""
    with _WIDTHS.open(newline="") as file:
        rows = {tuple(map(int, list(row.values())[1:])) for row in csv.DictReader(file)}
    return tuple(sorted(row for row in rows if row[0] >= 32))


@cache
def _split() -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return the models that are harvested, and those that are held out; no two of them have the same two widths."""
    pairs = sorted({(row[0], row[4]) for row in models()})
    test_pairs = set(Random(_HELD_OUT_SEED).sample(pairs, max(1, int(_HELD_OUT_SHARE * len(pairs)))))
    return (
        tuple(row for row in models() if (row[0], row[4]) not in test_pairs),
        tuple(row for row in models() if (row[0], row[4]) in test_pairs),
    )


def layers(model: tuple[int, ...]) -> Iterator[Layer]:
    """Yield the distinct linear layers of a model: query, key, fused, output, up, gated, down, head."""
    hidden, heads, kv_heads, head, inner, expert, vocabulary = model
    query, key = heads * head, kv_heads * head
    widths = {(hidden, query), (hidden, key), (hidden, query + 2 * key), (query, hidden)}
    widths |= {(hidden, inner), (hidden, 2 * inner), (inner, hidden)}
    if expert:
        widths |= {(hidden, expert), (expert, hidden), (hidden, 2 * expert)}
    if vocabulary:
        widths.add((hidden, vocabulary))
    yield from (Layer(i, o) for i, o in sorted(widths) if i > 0 and o > 0)
    if heads and head:
        yield Layer(head, head, heads)


_BATCHES: Final = (1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 32, 3, 6, 12, 64)
_LENGTHS: Final = (
    *(1, 1, 1, 1, 1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 128, 256, 256, 512, 512, 512, 1024, 1024, 1024, 2048, 2048, 4096),
    *(
        7,
        10,
        17,
        20,
        40,
        48,
        50,
        77,
        96,
        100,
        144,
        196,
        197,
        200,
        224,
        257,
        300,
        384,
        400,
        448,
        576,
        577,
        640,
        729,
        768,
    ),
    *(784, 1000, 1500, 1536, 3072, 3136, 6144, 8192),
)
_TOKENS: Final[tuple[int, ...]] = (
    *range(1, 17), *range(20, 65, 4), *range(72, 257, 8), *range(288, 513, 32), *range(576, 1025, 64),
    *(1152, 1280, 1408, 1536, 1792, 2048, 2304, 2560, 3072, 3584, 4096, 5120, 6144, 8192, 16384),
)  # fmt: skip
_MOST_TOKENS: Final = 32768


def _tokens(random: Random, *, real: bool) -> int:
    """Draw a number of rows: of a real batch and length, of a regular list, or any."""
    kind = random.random()
    if real or kind < 0.4:
        return min(random.choice(_BATCHES) * random.choice(_LENGTHS), _MOST_TOKENS)
    if kind < 0.85:
        return random.choice(_TOKENS)
    return int(math.exp(random.uniform(0, math.log(_MOST_TOKENS))))


def _dtype(random: Random) -> Dtype:
    return random.choices((Dtype.FP32, Dtype.TF32, Dtype.FP16, Dtype.BF16), (0.25, 0.15, 0.2, 0.4))[0]


Case = tuple[int, ...]


def _of_layer(layer: Layer, random: Random, *, real: bool) -> Case:
    dtype = _dtype(random)
    way = random.random()
    if layer.heads:
        return _of_attention(layer, dtype, random)
    rows = _tokens(random, real=real)
    if way < 0.56:  # forward: x @ weight.T, with a bias or without
        draw = random.random()
        op = Op.ADDMM if draw < 0.45 else Op.MM
        column_b = int(random.random() > 0.1)  # a tenth as GPT-2 stores its weights
        if draw > 0.98:
            op = Op.ADDMM_MATRIX
        return (op, dtype, 0, column_b, 1, rows, layer.outputs, layer.inputs, 0)
    if way < 0.78:  # gradient of the input: grad @ weight
        return (Op.MM, dtype, 0, 0, 1, rows, layer.inputs, layer.outputs, 0)
    return (Op.MM, dtype, 1, 0, 1, layer.outputs, layer.inputs, rows, 0)  # gradient of the weight: grad.T @ x


def _of_attention(layer: Layer, dtype: Dtype, random: Random) -> Case:
    """Scores, their product with values, or the gradients of both."""
    batch = min(random.choice(_BATCHES), 16) * layer.heads
    length = min(random.choice(_LENGTHS), 2048)
    queries = length if random.random() < 0.8 else random.choice((1, 1, 1, 4, 64, 128))
    while batch * queries * length > _MOST_ELEMENTS // 8 and batch > 1:
        batch //= 2
    op = Op.BADDBMM if random.random() < 0.06 else Op.BMM
    m, n, k, column_a, column_b = (
        (queries, length, layer.inputs, 0, 1),
        (queries, layer.inputs, length, 0, 0),
        (length, layer.inputs, queries, 1, 0),
        (queries, length, layer.inputs, 0, 1),
    )[random.randrange(4)]
    return (op, dtype, column_a, column_b, batch, m, n, k, 0)


def _of_experts(model: tuple[int, ...], random: Random) -> Case:
    """A grouped product of a mixture of experts, in bf16."""
    inner = model[5] or model[4]
    groups = random.choice((2, 4, 8, 16, 32, 60, 64, 128))
    rows = max(1, min(_tokens(random, real=False) * random.choice((1, 2, 4, 8)), 65536))
    n, k = ((inner, model[0]), (2 * inner, model[0]), (model[0], inner))[random.randrange(3)]
    return (Op.GROUPED, Dtype.BF16, 0, int(random.random() < 0.7), groups, rows, n, k, 0)


def _of_any_widths(random: Random) -> Case:
    """Widths that no model of the list has: multiples of 8, 32, 64 or 128, some odd."""

    def width() -> int:
        step = random.choices((1, 8, 32, 64, 128), (0.08, 0.17, 0.2, 0.3, 0.25))[0]
        return max(step, round(math.exp(random.uniform(math.log(16), math.log(16384))) / step) * step)

    layer = Layer(width(), width())
    return _of_layer(layer, random, real=False)


def _fits(case: Case) -> bool:
    op, dtype, _, _, batch, m, n, k, _ = case
    groups = batch if op == Op.GROUPED else 1
    products = 1 if op == Op.GROUPED else batch
    elements = max(products * m * k, max(products, groups) * k * n, products * m * n)
    return elements <= _MOST_ELEMENTS and 2.0 * products * m * n * k <= _MOST_FLOPS[Dtype(dtype).name]


def _likely(case: Case, random: Random) -> bool:
    """Return whether a case is taken: the longer it runs, the less likely. Large products vary little."""
    flops = 2.0 * case[5] * case[6] * case[7] * (1 if case[0] == Op.GROUPED else case[4])
    return random.random() < float((_COMMON_S * _FLOPS_PER_S[Dtype(case[1]).name] / flops) ** 0.7)


def held_out() -> NDArray[np.int64]:
    """Return the held-out cases ``[1000, columns]``: layers of the models that are set aside, real batches and
    lengths.
    """
    random = Random(_HELD_OUT_SEED)
    _, away = _split()
    cases: dict[Case, None] = {}
    while len(cases) < HELD_OUT:
        model = random.choice(away)
        some = list(layers(model))
        case = _of_layer(random.choice(some), random, real=True)
        if _fits(case):
            cases[case] = None
    return np.array(list(cases), np.int64)


def harvested(count: int) -> NDArray[np.int64]:
    """Return ``count`` distinct cases ``[count, columns]``, none of which is held out."""
    random = Random(_SEED)
    near, _ = _split()
    of_models = sorted({(layer.inputs, layer.outputs, layer.heads) for model in near for layer in layers(model)})
    linear = [Layer(*words) for words in of_models if not words[2]]
    scores = [Layer(*words) for words in of_models if words[2]]
    experts = [model for model in near if model[5]]
    away = set(map(tuple, held_out().tolist()))
    cases: dict[Case, None] = {}
    while len(cases) < count:
        kind = random.random()
        if kind < 0.62:
            case = _of_layer(random.choice(linear), random, real=False)
        elif kind < 0.82:
            case = _of_any_widths(random)
        elif kind < 0.95:
            case = _of_layer(random.choice(scores), random, real=False)
        elif kind < 0.97:
            case = _of_experts(random.choice(experts), random)
        else:
            layer = random.choice(linear)
            inputs, outputs = (-(-size // 16) * 16 for size in (layer.inputs, layer.outputs))
            case = (Op.SCALED, Dtype.FP8, 0, 1, 1, _tokens(random, real=False), outputs, inputs, 0)
        if case not in away and _fits(case) and _likely(case, random):
            cases[case] = None
    return np.array(list(cases), np.int64).reshape(-1, len(COLUMNS))


@cache
def held_out_pairs() -> frozenset[tuple[int, int]]:
    """Return the widths, the smaller one first, of linear layers of models that are set aside and of no other."""
    near, away = ({_widths(layer) for model in some for layer in layers(model) if not layer.heads} for some in _split())
    return frozenset(away - near)


_CAPTURED_TYPES: Final = ((Dtype.FP32, Dtype.TF32, Dtype.FP16, Dtype.BF16), (0.28, 0.2, 0.17, 0.35))
_FLOAT32_TYPES: Final = ((Dtype.FP32, Dtype.TF32), (0.55, 0.45))
_HALF_TYPES: Final = ((Dtype.FP16, Dtype.BF16), (0.4, 0.6))
_HEADS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64, 96, 128)
_HEAD_WIDTHS: Final = (8, 16, 24, 32, 32, 40, 48, 56, 64, 64, 64, 72, 80, 88, 96, 112, 128, 128, 128, 160, 192, 256)
_STEPS: Final = ((1, 8, 16, 32, 64, 128, 256), (0.04, 0.1, 0.08, 0.13, 0.3, 0.25, 0.1))
"""What widths are multiples of, and how often."""
_WIDEST: Final = 32768
_PAIRS: Final = 0.6
_ODD_STEPS: Final = ((1, 2, 4), (0.6, 0.25, 0.15))
_MOST_WORDS: Final = 1 << 18
_ODD_LENGTHS: Final = tuple(length for length in _LENGTHS if length % 8)


class Drawn(NamedTuple):
    """Which cases are drawn (`captured`); files of captures hold these flags."""

    wide: bool = False
    """Most widths and heads are drawn freely, so that nets see layers of many kinds."""
    float32: bool = False
    """No 16-bit types."""
    half: bool = False
    """No float32."""
    odd: bool = False
    """Only cases in which rows of an operand do not begin at multiples of 16 bytes, widths drawn freely."""
    pairs: bool = False
    """Most layers have two widths of models, but not of one model; the others are wide."""


def captured(random: Random, drawn: Drawn = Drawn()) -> Iterator[Case]:  # noqa: B008 - immutable
    """Yield cases without end, for `tileprof.harvest.products.product_captures`: real rows most of the time, widths of
    models also in pairs that no model has, and more products with a matrix to add; none is held out, nor of a layer
    that is.

    The models have few distinct widths. Widths that are drawn freely (`Drawn`) are no pair of a layer held out, either.
    """
    near, _ = _split()
    of_models = sorted({(layer.inputs, layer.outputs, layer.heads) for model in near for layer in layers(model)})
    linear = [Layer(*words) for words in of_models if not words[2]]
    scores = [Layer(*words) for words in of_models if words[2]]
    test_pairs = held_out_pairs()
    widths = [layer.inputs for layer in linear] + [layer.outputs for layer in linear]
    types = _FLOAT32_TYPES if drawn.float32 else _HALF_TYPES if drawn.half else _CAPTURED_TYPES
    cases = set(map(tuple, held_out().tolist()))
    while True:
        kind, real = random.random(), random.random() < 0.75
        if drawn.wide or drawn.odd or drawn.pairs:
            if drawn.pairs and kind < _PAIRS:
                layer = Layer(random.choice(widths), random.choice(widths))
            else:
                layer = _odd_layer(random, widths) if drawn.odd else _wide_layer(random, widths, scores)
            if not layer.heads and _widths(layer) in test_pairs:
                continue
            case = _of_layer(layer, random, real=real)
            if drawn.odd and layer.heads:
                case = _with_odd_length(case, random)
        elif kind < 0.45:
            case = _of_layer(random.choice(linear), random, real=real)
        elif kind < 0.75:
            layer = Layer(random.choice(widths), random.choice(widths))
            case = _of_layer(layer, random, real=real)
            if _widths(layer) in test_pairs:
                continue
        elif kind < 0.85:
            case = _of_any_widths(random)
        else:
            case = _of_layer(random.choice(scores), random, real=real)
        op = case[0]
        if op == Op.BMM and random.random() < 0.12:
            op = Op.BADDBMM
        elif op == Op.ADDMM and random.random() < 0.1:
            op = Op.ADDMM_MATRIX
        case = (op, random.choices(*types)[0], *case[2:])
        if drawn.odd and not _is_odd(case):
            continue
        if case not in cases and _fits(case):
            yield case


def _wide_layer(random: Random, widths: list[int], scores: list[Layer]) -> Layer:
    """Draw a layer: attention of a model or of any heads, or two widths, each of a model or of any size."""
    kind = random.random()
    if kind < 0.05:
        return random.choice(scores)
    if kind < 0.15:
        head = random.choice(_HEAD_WIDTHS)
        return Layer(head, head, random.choice(_HEADS))

    def width() -> int:
        if random.random() < 0.4:
            return random.choice(widths)
        step = random.choices(*_STEPS)[0]
        return max(step, round(math.exp(random.uniform(math.log(32), math.log(_WIDEST))) / step) * step)

    return Layer(width(), width())


def _odd_layer(random: Random, widths: list[int]) -> Layer:
    """Draw a layer one side of which is odd, often a vocabulary, the other of a model or any; or attention."""
    if random.random() < 0.3:
        head = random.choice(_HEAD_WIDTHS)
        return Layer(head, head, random.choice(_HEADS))
    step = random.choices(*_ODD_STEPS)[0]
    odd = max(1, round(math.exp(random.uniform(0, math.log(_MOST_WORDS))) / step)) * step
    other = random.choice(widths)
    if random.random() < 0.5:
        step = random.choices(*_STEPS)[0]
        other = max(step, round(math.exp(random.uniform(math.log(32), math.log(_WIDEST))) / step) * step)
    return Layer(odd, other) if random.random() < 0.4 else Layer(other, odd)


def _with_odd_length(case: Case, random: Random) -> Case:
    """Return a case of attention with another length."""
    op, dtype, column_a, column_b, batch, m, n, k, variant = case
    length = random.choice(_ODD_LENGTHS) if random.random() < 0.7 else random.randint(1, 1500)
    m = length if m > 1 and not column_a else m
    n, k = (length, k) if column_b else (n, length if not column_a else k)
    return (op, dtype, column_a, column_b, batch, length if column_a else m, n, k, variant)


def _is_odd(case: Case) -> bool:
    """Return whether rows of an operand or of the result do not begin at multiples of 16 bytes."""
    _, dtype, column_a, column_b, _, m, n, k, _ = case
    unit = 4 if dtype in (Dtype.FP32, Dtype.TF32) else 8
    return any(size % unit for size in (m if column_a else k, k if column_b else n, n))


def of_held_out_layers(keys: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return which problems ``[problems, 8]`` (the first columns of cases) are linear layers of `held_out_pairs`."""
    one, n = np.where(keys[:, 2] == 1, keys[:, 5], keys[:, 7]).astype(np.int64), keys[:, 6].astype(np.int64)
    pairs = np.array(sorted(held_out_pairs()), np.int64)
    own = (np.minimum(one, n) << 32) | np.maximum(one, n)
    return np.asarray((keys[:, 0] <= Op.ADDMM_MATRIX) & np.isin(own, (pairs[:, 0] << 32) | pairs[:, 1]))


def are_held_out(keys: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return which problems (the first columns of ``keys``) are products of `held_out`, with a matrix to add or
    without, which get the same kernels: no table has them.
    """
    own, away = (np.ascontiguousarray(problems.twins(some[:, : len(problems.KEY)])) for some in (keys, held_out()))
    words = np.dtype((np.void, own.itemsize * own.shape[1]))
    return np.isin(own.view(words)[:, 0], away.view(words)[:, 0])


def _widths(layer: Layer) -> tuple[int, int]:
    return min(layer.inputs, layer.outputs), max(layer.inputs, layer.outputs)
