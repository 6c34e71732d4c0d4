r"""Grows the trees that choose kernels for unmeasured products: ``python -m tileprof.harvest.product_ranker``.

Trees see what a problem's near entries in the package's table offer (`tileprof.record.model.tiles.products.learned`)
and are grown to put the library's own choice first. Near entries of the same layer are left out, so that trees learn
from layers that the table lacks::

    python -m tileprof.harvest.product_table SLICES --captures CAPTURES --launched 52736 -o all.npz
    python -m tileprof.harvest.product_ranker examples all.npz products-cublas-13.1.npz -o examples.npz
    python -m tileprof.harvest.product_ranker grow products-cublas-13.1.npz examples.npz \
        -o product-ranker-cublas-13.1.npz

`lightgbm` is needed to grow, a GPU is not. Every 25th layer is left out of growing, and judged.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest.grown_trees import write_trees
from tileprof.record.model.tables import Table, read
from tileprof.record.model.tables.product_entries import recipe_of
from tileprof.record.model.tiles.products import learned, neighbours
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


HELD_OUT_EVERY: Final = 25
WANTED: Final = {
    problems.PLAIN: (6000, 5000, 4500, 7500), problems.BIAS: (3500, 2500, 3500, 4500), problems.MATRIX: (200,) * 4,
    problems.BATCHES: (2500, 2000, 2000, 2500), problems.BATCHES_AND_MATRIX: (200,) * 4,
}  # fmt: skip
"""Examples of each operation, by type: fp32, tf32, fp16, bf16."""
_SEED: Final = 3
_GROWING: Final = {
    "objective": "lambdarank", "lambdarank_truncation_level": 6, "label_gain": [0, 1], "learning_rate": 0.14,
    "min_data_in_leaf": 20, "feature_fraction": 0.5, "bagging_fraction": 0.7, "bagging_freq": 1, "max_bin": 127,
    "num_threads": 1, "deterministic": True, "force_row_wise": True, "seed": 1, "verbose": -1,
}  # fmt: skip


def layer(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a word for the layer of each problem: its two widths, or the batch and sizes of attention."""
    batch, m, n, k = (keys[:, i] for i in (4, 5, 6, 7))
    one = np.where(keys[:, 2] == 1, m, k)
    low, high = np.minimum(one, n), np.maximum(one, n)
    return np.where(batch > 1, (batch * 131 + m) * 1000003 + n * 131 + k, low * 2654435761 + high * 40503 * 7919)


def held_out_layers(words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which layers (`layer`) trees are judged by."""
    return np.asarray((words % 1000003 * 7919 + 13) % 1009 % HELD_OUT_EVERY == 0)


def drawn(table: Table, random: np.random.Generator) -> NDArray[np.int64]:
    """Return entries of a table of all products to learn from."""
    chosen = []
    for op, counts in WANTED.items():
        for dtype, count in enumerate(counts):
            rows = np.flatnonzero((table.keys[:, 0] == op) & (table.keys[:, 1] == dtype))
            chosen.append(random.choice(rows, min(count, len(rows)), replace=False))
    return random.permutation(np.concatenate(chosen))


def examples(every: Table, near: Table) -> dict[str, NDArray[Any]]:
    """Return what trees learn from: candidates ``X`` ``[candidates, features]``, whether each is right ``y``, how many
    each problem has ``q``, and of each problem the entry, whether it is held out, and its key's first two numbers.
    """
    words, known = layer(every.keys), layer(near.keys)
    order = np.argsort(known, kind="stable")
    away = held_out_layers(words)
    seen, right, number, meta = [], [], [], []
    for row in drawn(every, np.random.default_rng(_SEED)).tolist():
        problem = Problem(*every.keys[row].tolist())
        same = order[slice(*np.searchsorted(known[order], [words[row], words[row] + 1]))]
        entries, apart = neighbours.nearest(problem, near, learned.COMPARED, without=same)
        if not len(entries):
            continue
        found = learned.candidates(problem.key, near, entries, apart)
        real = recipe_of(every, row)
        if not every.columns["main_time"][row]:
            real = fitted(real, problem, int(every.about["sms"]))
        seen.append(found.seen)
        right.append((found.shapes == (real.m, real.n, *real.cluster, real.split)).all(axis=1))
        number.append(len(right[-1]))
        meta.append((row, away[row], problem.op, problem.dtype))
    return {"X": np.concatenate(seen), "y": np.concatenate(right), "q": np.array(number), "meta": np.array(meta)}


def grow(some: dict[str, NDArray[Any]], group: int, trees: int, leaves: int) -> tuple[Any, NDArray[np.float64]]:
    """Return the trees of a group of types, and of each held-out problem: operation, type, whether the nearest entry,
    the choice, and any candidate is right, and how likely the choice was thought.
    """
    import lightgbm  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra of this command alone

    ends = np.cumsum(some["q"])
    begins = ends - some["q"]
    inside = np.array([learned.GROUPS[dtype] == group for dtype in some["meta"][:, 3].tolist()])
    away = some["meta"][:, 1] == 1
    hopeful = np.array([some["y"][b:e].any() for b, e in zip(begins, ends, strict=True)])
    shown = np.flatnonzero(inside & ~away & hopeful)
    rows = np.concatenate([np.arange(begins[i], ends[i]) for i in shown])
    data = lightgbm.Dataset(some["X"][rows], label=some["y"][rows].astype(int), group=some["q"][shown])
    model = lightgbm.train(_GROWING | {"num_leaves": leaves}, data, trees)
    judged = []
    for i in np.flatnonzero(inside & away):
        own = some["y"][begins[i] : ends[i]]
        worth = model.predict(some["X"][begins[i] : ends[i]], num_threads=1)
        likely = np.exp(worth - worth.max())
        judged.append((*some["meta"][i, 2:4], own[0], own[worth.argmax()], own.any(), 1 / likely.sum()))
    return model, np.array(judged, float)


def _report(judged: NDArray[np.float64]) -> Iterator[str]:
    names = {0: "fp32", 1: "tf32", 2: "fp16", 3: "bf16"}
    for op, dtype in np.unique(judged[:, :2], axis=0).tolist():
        own = judged[(judged[:, 0] == op) & (judged[:, 1] == dtype)]
        nearest, chosen, any_of_them = own[:, 2:5].mean(axis=0)
        yield (
            f"op {op:.0f} {names[int(dtype)]}: {len(own)} held out, nearest {nearest:.1%}, chosen {chosen:.1%}, "
            f"among the candidates {any_of_them:.1%}"
        )
    for low in np.arange(0, 1, 0.1):
        own = judged[(judged[:, 5] >= low) & (judged[:, 5] < low + 0.1)]
        if len(own):
            yield f"likely {low:.1f}: {len(own)}, chosen {own[:, 3].mean():.1%}, nearest {own[:, 2].mean():.1%}"


def main(words: list[str] | None = None) -> int:
    """Gather examples, or grow trees."""
    parser = ArgumentParser("python -m tileprof.harvest.product_ranker", description="learn which kernel is chosen")
    steps = parser.add_subparsers(dest="step", required=True)
    gathering = steps.add_parser("examples", help="what near entries offer for products of other layers")
    gathering.add_argument("every", type=Path, help="a table of all products")
    gathering.add_argument("near", type=Path, help="the table of the package")
    growing = steps.add_parser("grow", help="trees from examples")
    growing.add_argument("near", type=Path, help="the table of the package")
    growing.add_argument("examples", type=Path, nargs="+")
    growing.add_argument("--trees", type=int, default=150)
    growing.add_argument("--leaves", type=int, default=47)
    for step in (gathering, growing):
        step.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(words)
    if options.step == "examples":
        np.savez(options.output, allow_pickle=False, **examples(read(options.every), read(options.near)))
        return 0
    parts = [np.load(path) for path in options.examples]
    some = {name: np.concatenate([part[name] for part in parts]) for name in ("X", "y", "q", "meta")}
    grown = {}
    for group in sorted(set(learned.GROUPS.values())):
        grown[group], judged = grow(some, group, options.trees, options.leaves)
        sys.stderr.write("".join(f"{line}\n" for line in _report(judged)))
        made = "python -m tileprof.harvest.product_ranker"
        sys.stdout.write(f"{write_trees(options.output, read(options.near).about, grown, made)} bytes\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
