"""Which launches a library chooses for a convolution that no table has, learnt from its choices.

Candidates are the lists of launches that near entries of the table got. The trees see, for each list, how near and how
many those entries are, what kind of kernel computes, how many blocks its tile makes of the problem and how full they
and the last wave are; of products (windows of one tap) also what the table of products would launch. The candidate of
the largest sum is chosen. `tileprof.harvest.convolutions.convolution_ranker` grows the trees.

Features are rounded, sums are in float64, and a difference of 1e-9 counts as none, so that every machine chooses alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tileprof.record.model.tables.trees import worth
from tileprof.record.model.tiles.convolutions import launch_grids
from tileprof.record.model.tiles.convolutions.convolution_key import Layout, Pass, result_sizes
from tileprof.record.model.tiles.convolutions.library_kernels import MAINS, Role, parse_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.record.model.tables import Table

COMPARED: Final = 256
"""How many near entries give candidates."""
PLAIN, WINDOWS, ENGINES = 0, 1, 2
"""Groups of trees: products (windows of one tap without stride), and all others; so much more where cuDNN's engine is
known."""
_UNKNOWN: Final = -1
_NEARER: Final = (1, 4, 16, 64, 256)
_NEAR, _FAR = 0.3, 64.0
_STEPS: Final = 4096.0
"""Steps per unit to which features are rounded."""
_SAME: Final = 1e-9
_SMS: Final = 132.0
_LIBRARIES: Final = (
    r"^nvjet", r"sm90_xmma_gemm", r"xmma_gemm", r"Kernel2", r"sm90_xmma_\w*depthwise", r"sm90_xmma_\w*indexed",
    r"sm90_xmma_", r"xmma_\w*indexed", r"xmma_", r"optimized|Optimized", r"analytic|Analytic",
    r"few_channels|fixed_channels", r"cutlass", r"engine_float_NHWC", r"implicit_convolve", r"sgemm|precomputed",
    r"conv_depthwise", r"c1_k1_nhwc", r"c1_k1_nchw", r"grouped_direct", r"dgrad_engine|wgrad_alg", r"winograd", r"fft",
    r"gemv|gemmSN|gemmk1", r"shmem_tiling",
)  # fmt: skip
_TYPE_WORDS: Final = (
    (r"13__nv_bfloat16|6__half", "H"), (r"__nv_bfloat16|__half", "H"), (r"10bfloat16_t|6half_t", "H"),
    (r"bfloat16_t|half_t", "H"), (r"N3c108BFloat16E|N3c104HalfE", "H"), (r"c10::BFloat16|c10::Half", "H"),
    (r"bf16", "f16"), (r"(nvjet_sm\d+_)tst", r"\1hsh"), (r"(Kernel2?I)\d+", r"\1"),
)  # fmt: skip


@cache
def kind(name: str) -> str:
    """Return the name of a kernel without its 16-bit type."""
    for words, short in _TYPE_WORDS:
        name = re.sub(words, short, name)
    return name


@dataclass(frozen=True, slots=True)
class Lists:
    """What the sequences of a table are: ``alike`` ``[sequences]`` numbers those of the same kernels, ``traits``
    ``[sequences, TRAITS]`` what trees see of them, ``main`` which launch computes.
    """

    alike: NDArray[np.int64]
    traits: NDArray[np.float32]
    main: NDArray[np.int64]


class Product(NamedTuple):
    """What cuBLAS would launch for a call that is a product, as the name of a kernel says it: tile and cluster, first
    along the axis that comes first there, and slices of k. ``certain``: 2 if it was measured, 1 if NVIDIA's library
    proposes it.
    """

    m: int
    n: int
    along_m: int
    along_n: int
    slices: int
    certain: int


TRAITS: Final = (
    "library", "m", "n", "k", "cluster_x", "cluster_y", "along_m", "along_n", "launches", "copies", "fills",
    "reductions", "mains", "stages", "aligned", "threads", "registers", "turned", "shared",
)  # fmt: skip
_TRAIT: Final = {name: number for number, name in enumerate(TRAITS)}


def lists(table: Table) -> Lists:
    """Return what is derived from the names of a table's kernels; computed once."""
    if "lists" not in table.derived:
        first, kernel = table.columns["first"].astype(np.int64), table.columns["kernel"].astype(np.int64)
        names, shapes = table.columns["name"].tolist(), table.columns["shape"].tolist()
        words = [(kind(name), tuple(shape[3:6])) for name, shape in zip(names, shapes, strict=True)]
        roles = [parse_name(name).role for name in names]
        list_numbers: dict[tuple[object, ...], int] = {}
        alike, traits, main = [], [], []
        for low, high in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
            some = kernel[low:high].tolist()
            alike.append(list_numbers.setdefault(tuple(words[k] for k in some), len(list_numbers)))
            mains = [at for at, k in enumerate(some) if roles[k] in MAINS]
            main.append(mains[0] if mains else 0)
            own = some[main[-1]]
            traits.append(_traits(names[own], shapes[own], [roles[k] for k in some]))
        table.derived["lists"] = Lists(np.array(alike), np.array(traits, np.float32), np.array(main))
    derived: Lists = table.derived["lists"]
    return derived


def _traits(name: str, shape: Sequence[int], roles: Sequence[Role]) -> list[float]:
    kernel = parse_name(name)
    library = next((number for number, word in enumerate(_LIBRARIES) if re.search(word, name)), len(_LIBRARIES))
    stages = re.search(r"stage(\d+)|_\d+x\d+_\d+x(\d+)_", name)
    aligned = re.search(r"align[ac]?(\d+)", name)
    return [
        library, *(kernel.tile or (0, 0, 0)), max(1, shape[3]), max(1, shape[4]), *kernel.cluster, len(roles),
        sum(role in (Role.TRANSPOSE, Role.COPY) for role in roles), roles.count(Role.FILL), roles.count(Role.REDUCE),
        sum(role in MAINS for role in roles), int(stages[1] or stages[2]) if stages else 0,
        int(aligned[1]) if aligned else 0, int(np.prod(shape[:3])), shape[6], "_h_" in name, shape[7] / 1024,
    ]  # fmt: skip


def slices_of(table: Table) -> NDArray[np.int64]:
    """Return the slices of k of each entry's kernel (1 without)."""
    slices: NDArray[np.int64] = table.columns["slices"].astype(np.int64)
    return slices


def is_plain(keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which calls are products: one tap, one group, neither stride nor padding."""
    plain: NDArray[np.bool_] = (
        (keys[:, 5] == 1) & (keys[:, 12:15].prod(1) == 1) & (keys[:, 15:18].prod(1) == 1) & (keys[:, 18:21].sum(1) == 0)
        & (keys[:, 4] == 0)
    )  # fmt: skip
    return plain


@dataclass(frozen=True, slots=True)
class Candidates:
    """Lists of launches that near entries got: the first entry of each, in order of distance, what tells them apart
    (``alike`` and ``slices``), ``features`` ``[candidates, features]``, and all near entries with their distances.
    """

    entries: NDArray[np.int64]
    alike: NDArray[np.int64]
    slices: NDArray[np.int64]
    features: NDArray[np.float32]
    near: NDArray[np.int64]
    apart: NDArray[np.float64]


def candidates(
    key: Sequence[int],
    table: Table,
    near: NDArray[np.int64],
    apart: NDArray[np.float64],
    product: Product | None,
    engine: int | None = None,
) -> Candidates:
    """Return what the entries ``near``, so far ``apart``, offer; ``product`` is what the table of products has for the
    call, ``engine`` the number of cuDNN's engine in the table.
    """
    derived = lists(table)
    sequence = table.columns["sequence"][near].astype(np.int64)
    slices = slices_of(table)[near]
    identity = derived.alike[sequence] * 1024 + slices
    _, begins, group = np.unique(identity, return_index=True, return_inverse=True)
    order = np.argsort(begins)
    begins, back = begins[order], np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    group = back[group.reshape(-1)]
    weight = (apart + _NEAR) ** -2.0
    near_counts = [np.bincount(group[:some], minlength=len(order)) for some in _NEARER]
    traits = derived.traits[sequence[begins]]
    own = features(np.array([key], np.int64), traits, slices[begins])
    there = _sizes(table.keys[near[begins]])
    between = _sizes(np.array([key], np.int64)) - there
    same = _same_product(traits, slices[begins], product)
    votes = [_votes(traits[:, [_TRAIT[name]]], group, weight, len(order)) for name in ("library", "launches")]
    total = np.bincount(group, weight, len(order))
    divisible = (aligned(table.keys[near]) == aligned(np.array([key], np.int64))).all(axis=1)
    nearest_divisible = np.full(len(order), _FAR)
    np.minimum.at(nearest_divisible, group[divisible], apart[divisible])
    same_engine = np.full(len(near), _UNKNOWN) if engine is None else table.columns["engine"][near] == engine
    matched = [np.bincount(group, weight * some, len(order)) / total for some in (divisible, same_engine)]
    columns = [
        np.log2(begins + 1.0), apart[begins], apart[begins] - apart[0],
        total / weight.sum(), *near_counts, *votes, *matched, nearest_divisible, table.keys[near[begins], 1] == key[1],
        *between.T, np.abs(between).sum(axis=1), np.full(len(order), len(order)), *same.T,
    ]  # fmt: skip
    costs = own[:, : len(_COSTS)]
    inputs = np.column_stack([*columns, own, costs - costs.min(axis=0)])
    rounded = (np.round(inputs * _STEPS) / _STEPS).astype(np.float32)
    return Candidates(near[begins], derived.alike[sequence[begins]], slices[begins], rounded, near, apart)


def aligned(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for channels in and out how far they are divisible by 2, up to 8."""
    channels = keys[:, 7:9]
    divisible: NDArray[np.int64] = sum((channels % power == 0).astype(np.int64) for power in (2, 4, 8))
    return divisible


def _votes(
    traits: NDArray[np.float32], group: NDArray[np.int64], weight: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """Return for each candidate the share of the weight of all candidates of the same trait."""
    _, which = np.unique(traits, axis=0, return_inverse=True)
    own = np.bincount(group, weight, count)
    totals: NDArray[np.float64] = np.bincount(which.reshape(-1), own)[which.reshape(-1)] / weight.sum()
    return totals


def of_product(table: Table, product: Product) -> NDArray[np.bool_]:
    """Return which entries have a product's tile, cluster and slices."""
    same = _same_product(lists(table).traits, np.full(len(lists(table).traits), product.slices), product)[:, 1] == 1
    is_equal: NDArray[np.bool_] = same[table.columns["sequence"]] & (slices_of(table) == product.slices)
    return is_equal


def _same_product(
    traits: NDArray[np.float32], slices: NDArray[np.int64], product: Product | None
) -> NDArray[np.float64]:
    """Return whether a candidate's tile, cluster and slices are those of the product, and how certain that is; -1 where
    there is none.
    """
    if product is None:
        return np.full((len(traits), 5), -1.0)
    tile = (traits[:, _TRAIT["m"]] == product.m) & (traits[:, _TRAIT["n"]] == product.n)
    cluster = (traits[:, _TRAIT["along_m"]] == product.along_m) & (traits[:, _TRAIT["along_n"]] == product.along_n)
    same = [tile, tile & cluster, tile & (slices == product.slices), np.log2(slices / product.slices)]
    return np.column_stack([*same, np.full(len(traits), product.certain)]).astype(float)


_COSTS: Final = ("waves", "rounds", "computed", "loaded", "rounded", "moved")


def features(keys: NDArray[np.int64], traits: NDArray[np.float32], slices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what trees see of lists of launches for one call, ``[candidates, features]``; `_COSTS` come first."""
    key = tuple(keys[0].tolist())
    trait = {name: traits[:, number].astype(float) for name, number in _TRAIT.items()}
    plain = bool(is_plain(keys)[0])
    last = key[2] == Layout.CHANNELS_LAST or max(key[9:12]) == 1
    product = launch_grids.product_of(key, each_image=plain and not last)
    turned = plain and (last or key[0] == Pass.WEIGHT_GRADIENT)
    m, n = (trait["n"], trait["m"]) if turned else (trait["m"], trait["n"])
    m, n = np.maximum(m, 1), np.maximum(n, 1)
    down, across = np.ceil(product.rows / m), np.ceil(product.columns / n)
    depth = _depth(key)
    log = np.log2
    together = np.maximum(trait["cluster_x"] * trait["cluster_y"], 1)
    named_so = trait["along_m"] * trait["along_n"] > 1  # nvjet; others put clusters across x and down y
    along_m, along_n = (trait["along_n"], trait["along_m"]) if turned else (trait["along_m"], trait["along_n"])
    high = np.where(named_so, along_m, np.maximum(trait["cluster_y"], 1))
    wide = np.where(named_so, along_n, np.maximum(trait["cluster_x"], 1))
    clusters = np.ceil(down / high) * np.ceil(across / wide) * product.number * slices
    waves = clusters / np.array([launch_grids.CLUSTERS_AT_ONCE.get(int(n), max(1, 132 // int(n))) for n in together])
    rounds = np.ceil(waves)
    steps = np.ceil(depth / slices / np.maximum(trait["k"], 1))
    costs = [
        log(waves), log(rounds), log(m * n * rounds * depth / slices), log((m + n) * rounds * depth / slices),
        log(down * m * across * n / (product.rows * product.columns)),
        log(down * product.columns + across * product.rows),
    ]  # fmt: skip
    more = [
        waves / rounds, waves - np.floor(waves), log(np.maximum(steps, 1)), log(product.rows / m),
        log(product.columns / n), log(slices),
        log(depth / slices), *trait.values(),
    ]  # fmt: skip
    sizes = _sizes(keys)[0]
    inside, outside = (key[7] // key[5], key[8] // key[5])
    aligned = [min(8, size & -size) for size in (key[7], key[8], inside, outside)]
    pixels = int(np.prod(key[9:12]))
    whole = [
        *key[:3], key[3], key[4], *sizes, *aligned, *key[13:15], max(key[16:18]), max(key[19:21]), max(key[22:24]),
        key[10] == 1, log(product.rows), log(product.columns), log(depth), log(product.number), pixels % 8, key[12] > 1,
        log(product.rows * product.columns * product.number / _SMS), inside <= 4,
    ]  # fmt: skip
    ones = np.ones(len(traits))
    return np.column_stack([np.asarray(column, float) * ones for column in (*costs, *more, *whole)])


def _depth(key: tuple[int, ...]) -> int:
    """Return what each result of a call's product sums over."""
    inside, outside, taps = key[7] // key[5], key[8] // key[5], int(np.prod(key[12:15]))
    if key[0] == Pass.WEIGHT_GRADIENT:
        return key[6] * int(np.prod(result_sizes(np.array(key[3:], np.int64))))
    return (inside if key[0] == Pass.FORWARD else outside) * taps


def _sizes(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return logarithms of images, groups, channels of a group, and pixels of input and results."""
    groups = keys[:, 5]
    results = result_sizes(keys[:, 3:]).prod(1)
    sizes = np.column_stack(
        [keys[:, 6], groups, keys[:, 7] // groups, keys[:, 8] // groups, keys[:, 9:12].prod(1), results]
    )
    logarithms: NDArray[np.float64] = np.log2(np.maximum(sizes, 1).astype(float))
    return logarithms


def alike(table: Table, near: NDArray[np.int64], entry: int) -> NDArray[np.int64]:
    """Return the places among ``near`` of entries that got the same kernels and slices as ``entry``."""
    sequence = table.columns["sequence"]
    numbers, slices = lists(table).alike, slices_of(table)
    same = (numbers[sequence[near]] == numbers[sequence[entry]]) & (slices[near] == slices[entry])
    return np.flatnonzero(same)


def group_of(key: Sequence[int], *, engine: bool) -> int:
    """Return the group of trees for a call, of which cuDNN's engine is known or not."""
    plain = bool(is_plain(np.array([key], np.int64))[0])
    return (PLAIN if plain else WINDOWS) + (ENGINES if engine else 0)


def best(candidates: Candidates, trees: Table, group: int) -> int:
    """Return which candidate a library launches, as a group of trees expects."""
    sums = worth(candidates.features, trees, group)
    return int(np.flatnonzero(sums >= sums.max() - _SAME)[0])
