"""Grows the trees that choose launches for convolutions that were not measured.

Trees see what a call's near entries in the package's table offer
(`tileprof.record.model.tiles.convolutions.convolution_trees`), and are grown to put what the GPU launched first::

    RANKER=tileprof.harvest.convolutions.convolution_ranker
    python -m $RANKER examples convolutions-cudnn-9.19.npz -o alone.npz
    python -m $RANKER examples convolutions-cudnn-9.19.npz --engines -o engines.npz
    python -m $RANKER grow convolutions-cudnn-9.19.npz alone.npz engines.npz -o convolution-ranker-cudnn-9.19.npz

The second command is run where `nvidia-matmul-heuristics` is installed, the first where it is not: trees learn how
right the products are that they see. `lightgbm` is needed to grow, a GPU is not. Every tenth weight of the first table
(channels, groups, window and stride, whatever the image size, type and batch) is left out of growing, and judged: for
its calls no entry of the same weight is near. Half of the calls that trees learn from see entries of their own weight,
as calls of other models do, half do not.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.devices import get
from tileprof.harvest.convolutions import convolution_cases
from tileprof.harvest.grown_trees import of_lightgbm, write_trees
from tileprof.record.model.tables import Table, read
from tileprof.record.model.tiles.convolutions import convolution_table, convolution_trees
from tileprof.record.model.tiles.convolutions.convolution_key import Dtype, Layout, Pass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


GROUPS: Final = tuple(
    group + more
    for more in (0, convolution_trees.ENGINES)
    for group in (convolution_trees.PLAIN, convolution_trees.WINDOWS)
)
CALLS_PER_KIND: Final = (8000, 22000)
"""Examples of products and of other calls."""
_SEED: Final = 20261125
_SEE_OWN: Final = 0.5
_GROWING: Final = {
    "objective": "lambdarank", "lambdarank_truncation_level": 12, "label_gain": [0, 1], "learning_rate": 0.06,
    "min_data_in_leaf": 40, "feature_fraction": 0.3, "bagging_fraction": 0.7, "bagging_freq": 1, "max_bin": 127,
    "num_threads": 2, "deterministic": True, "force_row_wise": True, "seed": 1, "verbose": -1,
}  # fmt: skip


def weights(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for the weight of each call."""
    _, number = np.unique(convolution_cases.weights(keys), axis=0, return_inverse=True)
    return number.reshape(-1)


def held_out(keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which calls are of weights that trees are judged by."""
    away = convolution_cases.held_out_weights()
    return np.array([tuple(weight) in away for weight in convolution_cases.weights(keys).tolist()], bool)


def drawn(table: Table, random: np.random.Generator) -> NDArray[np.int64]:
    """Return the entries to learn from and to judge by."""
    plain = convolution_trees.is_plain(table.keys)
    kinds_of_calls = (plain, CALLS_PER_KIND[0]), (~plain, CALLS_PER_KIND[1])
    some = [random.permutation(np.flatnonzero(inside))[:count] for inside, count in kinds_of_calls]
    return random.permutation(np.concatenate(some))


def examples(table: Table, part: int, parts: int, *, engines: bool) -> dict[str, NDArray[Any]]:
    """Return what trees learn from: candidates ``X`` ``[candidates, features]``, whether each is right ``y``, how many
    each call has ``q``, and of each call ``meta``: its entry, whether it is held out, and the group of trees, which is
    another one with ``engines``, where cuDNN's engine is known.
    """
    device = get(str(table.about["gpu"]).removeprefix("NVIDIA "))
    number, away = weights(table.keys), held_out(table.keys)
    derived, slices = convolution_trees.lists(table), convolution_trees.slices_of(table)
    random = np.random.default_rng(_SEED)
    sees_own = random.random(len(table)) < _SEE_OWN
    features, right, group_sizes, meta = [], [], [], []
    for row in drawn(table, random)[part::parts].tolist():
        key = tuple(table.keys[row].tolist())
        without = number == number[row]
        if not away[row]:
            if sees_own[row]:
                without = np.arange(len(table)) == row
            without |= away
        engine = int(table.columns["engine"][row]) if engines else None
        candidates = convolution_table.candidates(table, key, device, engine, without=without)
        if candidates is None:
            continue
        features.append(candidates.features)
        same = candidates.alike == derived.alike[table.columns["sequence"][row]]
        right.append(same & (candidates.slices == slices[row]))
        group_sizes.append(len(same))
        meta.append((row, away[row], convolution_trees.group_of(key, engine=engines)))
    return {
        "X": np.concatenate(features),
        "y": np.concatenate(right),
        "q": np.array(group_sizes),
        "meta": np.array(meta),
    }


def grow(
    some: dict[str, NDArray[Any]], group: int, trees: int, leaves: int
) -> tuple[Any, NDArray[np.int64], NDArray[np.bool_]]:
    """Return the trees of a group of calls, the entries of held-out calls, and of each whether the nearest entry's
    launches, the chosen ones, and any candidate's are right.
    """
    import lightgbm  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra of this command alone

    ends = np.cumsum(some["q"])
    begins = ends - some["q"]
    rows, away = some["meta"][:, 0], some["meta"][:, 1] == 1
    inside = some["meta"][:, 2] == group
    hopeful = np.array([some["y"][b:e].any() and e - b > 1 for b, e in zip(begins, ends, strict=True)])
    training_groups = np.flatnonzero(inside & ~away & hopeful)
    chosen = np.concatenate([np.arange(begins[i], ends[i]) for i in training_groups])
    data = lightgbm.Dataset(some["X"][chosen], label=some["y"][chosen].astype(int), group=some["q"][training_groups])
    model = lightgbm.train(_GROWING | {"num_leaves": leaves}, data, trees)
    verdicts = []
    test_groups = np.flatnonzero(inside & away)
    for i in test_groups:
        own = some["y"][begins[i] : ends[i]]
        worth = np.asarray(model.predict(some["X"][begins[i] : ends[i]], num_threads=1))
        verdicts.append((own[0], own[worth.argmax()], own.any()))
    return model, rows[test_groups], np.array(verdicts, bool)


def kinds(keys: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Return kinds of calls that are reported one by one."""
    taps, groups = keys[:, 12:15], keys[:, 5]
    line = (keys[:, 3] == 2) & (keys[:, 10] == 1) & (taps[:, 1] == 1)
    depthwise = (groups > 1) & (groups == keys[:, 7])
    one = groups == 1
    return {
        "1x1": one & (taps.prod(1) == 1),
        "3x3": one & ~line & (taps[:, 1:] == 3).all(1) & (keys[:, 15:18].max(1) == 1),
        "strided": one & (taps.prod(1) > 1) & (keys[:, 15:18].max(1) > 1) & (keys[:, 4] == 0),
        "transposed": keys[:, 4] == 1, "depthwise": depthwise, "grouped": (groups > 1) & ~depthwise,
        "1-d": line & (taps.prod(1) > 1),
        **{f"{one.name.lower()}": keys[:, 1] == one for one in Dtype},
        **{one.name.lower().replace("_", " "): keys[:, 2] == one for one in Layout},
        **{one.name.lower().replace("_", " "): keys[:, 0] == one for one in Pass},
    }  # fmt: skip


def report(keys: NDArray[np.int64], judged: NDArray[np.bool_]) -> Iterator[str]:
    """Yield how often the nearest entry, the choice and any candidate is right, by kind of call."""
    for name, inside in {"all": np.ones(len(keys), bool), **kinds(keys)}.items():
        if inside.any():
            nearest, chosen, any_of_them = judged[inside].mean(axis=0)
            yield f"{name}: {inside.sum()}, nearest {nearest:.1%}, chosen {chosen:.1%}, any {any_of_them:.1%}"


def main(words: list[str] | None = None) -> int:
    """Gather examples, or grow trees."""
    parser = ArgumentParser(
        "python -m tileprof.harvest.convolutions.convolution_ranker", description="learn what cuDNN launches"
    )
    steps = parser.add_subparsers(dest="step", required=True)
    gathering = steps.add_parser("examples", help="what near entries offer")
    gathering.add_argument("table", type=Path, help="the table of the package")
    gathering.add_argument("--engines", action="store_true", help="with the engines of cuDNN, which the table has")
    gathering.add_argument("--part", default="0/1", metavar="K/N", help="every Nth call, from the Kth on")
    growing = steps.add_parser("grow", help="trees from examples")
    growing.add_argument("table", type=Path, help="the table of the package")
    growing.add_argument("examples", type=Path, nargs="+")
    growing.add_argument("--trees", type=int, default=160)
    growing.add_argument("--leaves", type=int, default=31)
    for step in (gathering, growing):
        step.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(words)
    table = read(options.table)
    if options.step == "examples":
        part, parts = map(int, options.part.split("/"))
        np.savez(options.output, allow_pickle=False, **examples(table, part, parts, engines=options.engines))
        return 0
    loaded = [np.load(path) for path in options.examples]
    some = {name: np.concatenate([part[name] for part in loaded]) for name in ("X", "y", "q", "meta")}
    grown, rows, verdicts = {}, [], []
    for group in GROUPS:
        model, own_rows, own = grow(some, group, options.trees, options.leaves)
        grown[group] = of_lightgbm(model)
        rows.append(own_rows)
        verdicts.append(own)
    for title, which in (("tables alone", slice(0, 2)), ("with cuDNN's engine", slice(2, 4))):
        lines = report(table.keys[np.concatenate(rows[which])], np.concatenate(verdicts[which]))
        sys.stdout.write("".join(f"{line}\n" for line in (title, *lines)))
    size = write_trees(options.output, table.about, grown, "python -m tileprof.harvest.convolutions.convolution_ranker")
    sys.stdout.write(f"{size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
