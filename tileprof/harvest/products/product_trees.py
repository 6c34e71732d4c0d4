r"""Grows the trees that choose kernels for products of float32: ``python -m tileprof.harvest.products.product_trees``.

They are grown from what PyTorch would launch for millions of products (`tileprof.harvest.products.product_captures`),
as `tileprof.record.model.tiles.products.kernel_trees` walks them::

    python -m tileprof.harvest.products.product_captures -o CAPTURES --seconds 105 --wide --single-precision
    python -m tileprof.harvest.products.product_trees CAPTURES products-cublas-13.1.npz -o product-trees-cublas-13.1.npz

`scikit-learn` is needed to grow, a GPU is not. Every 25th layer is left out, and the trees are judged by these layers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.errors import UserError
from tileprof.harvest.products.product_lessons import Menu, concluded, gathered, of_whole_blocks, parser, prepared, say
from tileprof.harvest.products.product_table import launched
from tileprof.record.model.tables import read, write
from tileprof.record.model.tables.product_entries import KINDS, RECIPE
from tileprof.record.model.tables.trees import LEAF
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import as_launched, cuts_at_lines
from tileprof.record.model.tiles.products.kernel_trees import TREES, candidates, kernel_features, slice_features
from tileprof.record.model.tiles.products.product_nets import GROUPS

if TYPE_CHECKING:
    from argparse import Namespace

    from numpy.typing import NDArray

    from tileprof.harvest.products.product_lessons import Lesson
    from tileprof.record.model.tables import Table

_KIND, _POST, _SPLIT = (RECIPE.index(name) for name in ("kind", "post", "split"))
_SHAPE: Final = [RECIPE.index(name) for name in ("m", "n", "cluster_m", "cluster_n", "split")]
_TILE_COUNT: Final = 14
"""Tiles by which the first tree counts blocks: those of the kernels that are chosen most."""
_MORE_SLICES: Final = 16
"""The most slices that may be asked for beyond those that are launched."""
_JUDGED: Final = 20_000
_FLOAT32: Final = tuple(GROUPS[dtype] for dtype in (problems.FP32, problems.TF32))


@dataclass(frozen=True, slots=True)
class StoredTree:
    """The feature of each node, bounds of those that are no leaf, and what the leaves tell."""

    feature: NDArray[np.uint8]
    bound: NDArray[np.int64]
    answer: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Grown:
    """Both trees of a group, as they are stored, the tiles that blocks are counted by, and the candidates."""

    menu: Menu
    tiles: NDArray[np.int64]
    trees: tuple[StoredTree, StoredTree]


def requested(lesson: Lesson, menu: Menu) -> NDArray[np.int32]:
    """Return the slices of k that were asked for, for each problem.

    Where k is cut at lines (`fitting`), fewer slices may be launched than were asked for. Several
    numbers may give the launched one: the one that explains most problems with the same kernel and number of blocks is
    taken.
    """
    recipes = menu.recipes[lesson.candidate]
    slices = recipes[:, _SPLIT].copy()
    cuts = cuts_at_lines(recipes[:, _KIND].astype(np.int64), recipes[:, _POST].astype(np.int64))
    rows = np.flatnonzero(cuts & (slices > 1) & (lesson.candidate >= 0))
    if not len(rows):
        return slices
    keys, own = lesson.keys[rows], recipes[rows].astype(np.int64)
    blocks = -(-keys[:, 5] // own[:, _SHAPE[0]]) * -(-keys[:, 6] // own[:, _SHAPE[1]]) * keys[:, 4]
    group = np.unique(np.column_stack([menu.kernel[lesson.candidate[rows]], blocks]), axis=0, return_inverse=True)[1]
    pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for more in range(_MORE_SLICES):
        shapes = own[:, None, _SHAPE]
        shapes[..., 4] += more
        flags = np.zeros((len(rows), 1), bool)
        same = as_launched(keys, shapes, flags, ~flags)[:, 0, 4] == own[:, _SPLIT]
        some = np.flatnonzero(same)
        pairs.append((some, own[some, _SPLIT] + more))
    place, number = (np.concatenate(part) for part in zip(*pairs, strict=True))
    _, word, count = np.unique(group.reshape(-1)[place] * 100_000 + number, return_inverse=True, return_counts=True)
    votes = count[word.reshape(-1)]
    order = np.lexsort([-number, votes, place])  # the last one of each problem has most votes, and the fewest slices
    last = np.flatnonzero(np.r_[place[order][1:] != place[order][:-1], True])
    slices[rows[place[order][last]]] = number[order][last]
    return slices


def stored(tree: Any) -> StoredTree:
    """Return a classifier's tree with nodes in order of depth, and bounds of whole numbers."""
    inner = tree.tree_
    order, at = [0], 0
    while at < len(order):
        node = order[at]
        if inner.children_left[node] >= 0:
            order += [inner.children_left[node], inner.children_right[node]]
        at += 1
    nodes = np.array(order)
    leaf = inner.children_left[nodes] < 0
    return StoredTree(
        np.where(leaf, LEAF, inner.feature[nodes]).astype(np.uint8),
        np.floor(inner.threshold[nodes[~leaf]]).astype(np.int64),
        tree.classes_[inner.value[nodes[leaf], 0].argmax(axis=1)].astype(np.int64),
    )


def grow(lesson: Lesson, menu: Menu, *, most: int, bits: float) -> Grown:
    """Grow both trees from ``most`` problems at most; each split tells ``bits`` or more of its problems' answers."""
    rows = lesson.training_rows
    if len(rows) > most:
        rows = np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
    kernel = menu.kernel[lesson.candidate[rows]]
    tiles = _tiles(menu, np.bincount(kernel, minlength=int(menu.kernel.max()) + 1))
    first = _grown(kernel_features(lesson.keys[rows], tiles), kernel, bits)
    return grow_slices(lesson, menu, rows, first, tiles, bits)


def grow_slices(
    lesson: Lesson, menu: Menu, rows: NDArray[np.int64], first: StoredTree, tiles: NDArray[np.int64], bits: float
) -> Grown:
    """Grow the second tree, from those of the problems ``rows`` whose kernel is launched with several slices."""
    menu, candidate = _with_requested(lesson, menu)
    kernel = menu.kernel[candidate[rows]]
    several = (np.bincount(menu.kernel) > 1)[kernel]
    rows, kernel = rows[several], kernel[several]
    shapes = menu.recipes[np.unique(menu.kernel, return_index=True)[1][kernel]].astype(np.int64)
    second = _grown(slice_features(lesson.keys[rows], shapes, kernel), candidate[rows], bits)
    return Grown(menu, tiles, (first, second))


def _grown(features: NDArray[np.int64], answers: NDArray[np.int64], bits: float) -> StoredTree:
    """Return the tree of splits that tell ``bits`` or more: with those that tell less, it would be twice as large and
    right less often.
    """
    try:
        from sklearn.tree import DecisionTreeClassifier  # type: ignore[import-untyped]  # noqa: PLC0415 - for this command
    except ImportError as error:
        raise UserError(f"trees are grown by scikit-learn ({error}): pip install scikit-learn") from error

    return stored(
        DecisionTreeClassifier(
            criterion="entropy", min_impurity_decrease=bits / len(answers), random_state=0
        ).fit(features.astype(np.float32), answers)
    )  # fmt: skip


def _with_requested(lesson: Lesson, menu: Menu) -> tuple[Menu, NDArray[np.int64]]:
    """Return candidates with slices as they are asked for, and the candidate of each problem among them."""
    there = np.flatnonzero(lesson.candidate >= 0)
    own = lesson.candidate[there]
    words = np.column_stack([menu.kernel[own], requested(lesson, menu)[there], menu.recipes[own, _POST]])
    some, first, place = np.unique(words, axis=0, return_index=True, return_inverse=True)
    recipes = menu.recipes[own[first]]
    recipes[:, _SPLIT] = some[:, 1]
    candidate = np.full(len(lesson.candidate), -1, np.int64)
    candidate[there] = place.reshape(-1)
    return Menu(recipes, some[:, 0], menu.categories, menu.eligible), candidate


def _tiles(menu: Menu, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tiles of the kernels that are chosen most, of those whose names tell one."""
    count: dict[tuple[int, int], int] = {}
    for number, row in zip(*np.unique(menu.kernel, return_index=True), strict=True):
        kind, tile = KINDS[menu.recipes[row, _KIND]], tuple(menu.recipes[row, _SHAPE[:2]].tolist())
        if kind in ("cutlass", "xmma"):
            count[tile] = count.get(tile, 0) + int(chosen[number])
    return np.array(sorted(count, key=lambda tile: (-count[tile], tile))[:_TILE_COUNT], np.int64).reshape(-1, 2)


def write_trees(path: Path, about: dict[str, Any], groups: dict[int, Grown]) -> int:
    """Write the trees of all groups; the bytes of the file."""
    keys = [(group, number) for group, own in groups.items() for number in range(len(own.menu.recipes))]
    columns: dict[str, NDArray[Any]] = {
        "recipes": np.concatenate([own.menu.recipes for own in groups.values()]).astype(np.int32),
        "kernel": np.concatenate([own.menu.kernel for own in groups.values()]).astype(np.int16),
    }
    for group, own in groups.items():
        columns[f"tiles{group}"] = own.tiles.astype(np.int16)
        for name, tree in zip(TREES, own.trees, strict=True):
            columns[f"{name}{group}_feature"] = tree.feature
            columns[f"{name}{group}_bound"] = tree.bound.astype("<i4").view(np.uint8).reshape(-1, 4).T
            columns[f"{name}{group}_answer"] = tree.answer.astype(np.int16)
    made = about | {"made": "python -m tileprof.harvest.products.product_trees"}
    write(path, made, ("group", "candidate"), np.array(keys, np.int64), columns)
    return path.stat().st_size


def right(table: Table, group: int, lesson: Lesson, menu: Menu, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for which problems the trees of a table choose the tile, cluster and slices of k that are launched."""
    keys, real, sms = lesson.keys[rows], lesson.candidate[rows], table.about["sms"]
    own = launched(table.columns["recipes"][candidates(keys, group, table)], keys, sms)
    same = own[:, _SHAPE] == launched(menu.recipes[real], keys, sms)[:, _SHAPE]
    return np.asarray(same.all(axis=1) & (real >= 0))


def main(words: list[str] | None = None) -> int:
    """Grow trees, write them, and judge them by layers that were left out."""
    arguments = parser("product_trees", "learn which kernel of float32 is chosen")
    arguments.add_argument("--most", type=int, default=10_000_000, help="problems to grow from, of each type")
    arguments.add_argument("--bits", type=float, default=2.5, help="that a split has to tell of the answers")
    options = arguments.parse_args(words)
    return concluded("product_trees", lambda: _grow_all(options))


def _grow_all(options: Namespace) -> None:
    """Grow, write and judge the trees of both types."""
    every, about = gathered(options.sources, options.seed, options.processes)
    every = of_whole_blocks(every)
    lessons = {group: prepared(every, group) for group in _FLOAT32}
    groups = {
        group: grow(lesson, menu, most=options.most, bits=options.bits) for group, (menu, lesson) in lessons.items()
    }
    say({"bytes": write_trees(options.output, about, groups)})
    table = read(options.output)
    for group, (menu, lesson) in lessons.items():
        rows = np.random.default_rng(1).permutation(lesson.test_rows)[:_JUDGED]
        share = float(right(table, group, lesson, menu, rows).mean())
        say({"group": group, "nodes": [len(tree.feature) for tree in groups[group].trees], "left out": share})


if __name__ == "__main__":
    sys.exit(main())
