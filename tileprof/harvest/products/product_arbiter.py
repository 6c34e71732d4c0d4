r"""Grows the trees that choose between the nets and NVIDIA's library: ``python -m
tileprof.harvest.products.product_arbiter``.

Folders of captures and tables give the problems, as for `tileprof.harvest.products.product_ranker`. Only layers that
the nets did not learn from count, because the nets are too sure of those that they did::

    python -m tileprof.harvest.products.product_arbiter CAPTURES products-cublas-13.1.npz \
        --nets product-nets-cublas-13.1.npz --table products-cublas-13.1.npz -o product-arbiter-cublas-13.1.npz

It needs `nvidia-matmul-heuristics` and scikit-learn, and no GPU. Where both name another kernel, and one of them is
right, the trees learn which. They are tested by two halves of the layers, each with trees from the other half.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof import devices
from tileprof.errors import UserError
from tileprof.harvest.grown_trees import of_boosting, write_trees
from tileprof.harvest.products.product_lessons import concluded, gathered, held_out_layers, layer, parser, say
from tileprof.record.model.tables import read
from tileprof.record.model.tables.product_entries import RECIPE
from tileprof.record.model.tiles.products import arbiter, gemm_kernel_choice, library_heuristic, product_nets
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.problem import Problem

if TYPE_CHECKING:
    from argparse import Namespace

    from numpy.typing import NDArray

    from tileprof.devices import Device
    from tileprof.harvest.products.product_lessons import Problems
    from tileprof.record.model.tables import Table

_SHAPE: Final = [RECIPE.index(name) for name in ("m", "n", "cluster_m", "cluster_n", "split")]
_GROWING: Final = {
    "n_estimators": 100, "max_depth": 3, "learning_rate": 0.08, "min_samples_leaf": 10, "random_state": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Examples:
    """Problems for which the nets expect an nvjet kernel and the library proposes one: ``keys [problems, 8]``, what the
    trees see ``[problems, features]``, and who is right.
    """

    keys: NDArray[np.int64]
    features: NDArray[np.float32]
    nets: NDArray[np.bool_]
    library: NDArray[np.bool_]


def examples(every: Problems, count: int, nets: Table, table: Table, device: Device) -> Examples:
    """Return examples among ``count`` problems of layers that the nets did not learn from."""
    keys = problems.twins(every.keys)
    some = (product_nets.groups(keys) == product_nets.GROUPS[problems.FP16]) & held_out_layers(layer(keys))
    rows = np.random.default_rng(0).permutation(np.flatnonzero(some))[:count]
    examined = []
    for row in rows.tolist():
        problem = Problem(*keys[row].tolist())
        expected = product_nets.choose(problem, nets, device.sms)
        proposed = gemm_kernel_choice.library_proposal(problem, table, device)
        if expected is None or proposed is None or expected.recipe.kind != "nvjet":
            continue
        real = tuple(every.recipes[every.recipe[row]][_SHAPE].tolist())
        shapes = [(own.m, own.n, *own.cluster, own.split) for own in (expected.recipe, proposed)]
        seen = arbiter.features(problem, expected, shapes[1])
        examined.append((row, seen, shapes[0] == real, shapes[1] == real))
    columns = list(zip(*examined, strict=True)) or [(), (), (), ()]
    return Examples(
        keys[np.array(columns[0], np.int64)], np.array(columns[1], np.float32).reshape(-1, arbiter.FEATURES),
        np.array(columns[2], bool), np.array(columns[3], bool),
    )  # fmt: skip


def grown(features: NDArray[np.float32], library: NDArray[np.bool_]) -> Any:
    """Return boosted trees that tell whether the library is right."""
    from sklearn.ensemble import (  # type: ignore[import-untyped]  # noqa: PLC0415 - needed by this command alone
        GradientBoostingClassifier,
    )

    return GradientBoostingClassifier(**_GROWING).fit(features, library)


def tested(some: Examples) -> dict[str, Any]:
    """Return how often the nets, the library and the choice between them are right, each half of the layers with trees
    from the other half.
    """
    half = layer(some.keys) % 1000003 % 2 == 0
    differ = some.nets != some.library
    right = some.nets.copy()
    for own in (half, ~half):
        decided = differ & ~own
        if len(np.unique(some.library[decided])) == 2:
            chosen = grown(some.features[decided], some.library[decided]).predict(some.features[own])
            right[own] = np.where(chosen, some.library[own], some.nets[own])
    shares = {"nets": some.nets, "library": some.library, "either": some.nets | some.library, "arbiter": right}
    return {"problems": len(half), "one is right": int(differ.sum())} | {
        name: round(float(own.mean()), 4) for name, own in shares.items()
    }


def main(words: list[str] | None = None) -> int:
    """Ask nets and library, grow trees, test and write them."""
    arguments = parser("product_arbiter", "learn whether nets or NVIDIA's library are right")
    arguments.add_argument("--nets", type=Path, required=True, metavar="FILE", help="the table of the nets")
    arguments.add_argument("--table", type=Path, required=True, metavar="FILE", help="the table of products")
    arguments.add_argument("--count", type=int, default=40_000, help="number of problems (default: %(default)s)")
    arguments.add_argument("--device", default="H200")
    options = arguments.parse_args(words)
    return concluded("product_arbiter", lambda: _grow(options))


def _grow(options: Namespace) -> None:
    device = devices.get(options.device)
    if not library_heuristic.proposals(Problem(0, problems.BF16, 0, 1, 1, 1024, 1024, 1024), device):
        raise UserError("the library does not answer: pip install nvidia-matmul-heuristics")
    every, about = gathered(options.sources, options.seed, options.processes)
    some = examples(every, options.count, read(options.nets), read(options.table), device)
    say(tested(some))
    decided = some.nets != some.library
    trees = {0: of_boosting(grown(some.features[decided], some.library[decided]))}
    say({"bytes": write_trees(options.output, about, trees, "python -m tileprof.harvest.products.product_arbiter")})


if __name__ == "__main__":
    sys.exit(main())
