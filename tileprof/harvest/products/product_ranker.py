r"""Trains the nets that choose kernels for products of 16 bits that were not measured: ``python -m
tileprof.harvest.products.product_ranker``.

They learn from what PyTorch would launch for millions of products (`tileprof.harvest.products.product_captures`): the
shortlist net to give the launched kernel the largest likelihood, the ranking net to give it the largest worth among
the shortlisted candidates (`tileprof.record.model.tiles.products.product_nets`). Folders of captures and tables of one
GPU give them::

    python -m tileprof.harvest.products.product_captures -o CAPTURES --seconds 100
    python -m tileprof.harvest.products.product_ranker CAPTURES products-cublas-13.1.npz -o product-nets-cublas-13.1.npz

It needs PyTorch; with a GPU, minutes are enough. Every 25th layer is left out of training, to test the nets.
Products of float32 have trees instead (`tileprof.harvest.products.product_trees`).
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tileprof.harvest.products.product_lessons import concluded, gathered, of_whole_blocks, parser, prepared, say
from tileprof.harvest.products.product_table import launched, thin
from tileprof.record.model.tables import read, write
from tileprof.record.model.tables.product_entries import KINDS, RECIPE
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products import product_nets, weighing
from tileprof.record.model.tiles.products.weighing import Shapes

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tileprof.harvest.products.product_lessons import Lesson, Menu, Problems
    from tileprof.record.model.tables import Table

_KIND: Final = RECIPE.index("kind")
_SHAPE: Final = [RECIPE.index(name) for name in ("m", "n", "cluster_m", "cluster_n", "split")]


class Widths(NamedTuple):
    """Widths of the layers of a group's nets."""

    shortlist: tuple[int, int, int]
    trunk: tuple[int, int]
    ranking: tuple[int, int]


GROUPS: Final = {
    product_nets.GROUPS[problems.BF16]: Widths((512, 256, 64), (448, 224), (448, 160)),
    product_nets.ODD: Widths((384, 192, 64), (384, 192), (384, 128)),
}
"""Groups of products that have nets."""
RANK: Final = 24
"""Width of what is learnt about a kernel."""
_STEP, _RANKING_STEP, _AT_ONCE = 32768, 16384, 4096
"""Problems of a step: with fewer, a GPU waits for the CPU."""
_RATE, _DECAY, _LONGEST = 2e-3, 1e-3, 2.0
_COST: Final = 8.0
"""The largest logarithm of a price."""
_FINE: Final = ("cost", "worth", "shortlist_bias")
"""Parameters of kernels or candidates that are kept in 16 bits."""
_LEVELS: Final = {
    "shortlist": 31,
    "shortlist0": 63,
    "shortlist1": 63,
    "shortlist2": 63,
    "trunk0": 63,
    "trunk1": 63,
    "problem": 63,
}
_MOST_LEVELS, _LEAST_STEP = 127, 1e-9
"""The largest number that a column of a matrix is rounded to: training sees the rounded numbers."""
_FIRST_PRICES: Final = (1.0, 1.0, 0.25, 1.0, 2.0)
"""Prices (`weighing.modelled_times`) of kernels that nothing is known of."""
_NONE: Final = -1e4
_TESTED: Final = 20_000


class Trainer:
    """Trains nets for a menu, from a lesson."""

    def __init__(self, menu: Menu, lesson: Lesson, group: int, device: str) -> None:
        import torch  # noqa: PLC0415 - heavy, and needed by this command alone

        self.torch, self.device = torch, device
        self.menu, self.lesson, self._widths = menu, lesson, GROUPS[group]
        self._keys = self._on(lesson.keys.astype(np.float32))
        self._category, self._candidate = self._on(lesson.category), self._on(lesson.candidate)
        self._eligible, self._kernel = self._on(menu.eligible), self._on(menu.kernel)
        self._shapes = Shapes(*map(self._on, product_nets.shapes_of(menu.recipes, group)))
        self._nameless = self._on(product_nets.nameless(menu.recipes))
        self.best: Any = None
        """Shortlisted candidates, ``[problems, product_nets.SHORTLISTED]``; -1 where there are fewer."""
        self.prior: Any = None
        """Logarithms of their likelihoods."""
        torch.manual_seed(0)
        self.scales: dict[str, Any] = {}
        self.net = self._net()

    def _on(self, values: NDArray[Any]) -> Any:
        return self.torch.as_tensor(values, device=self.device)

    def _net(self) -> dict[str, Any]:
        """Return the parameters of nets that know nothing, by the names of `product_nets`; measures what they see."""
        torch, menu = self.torch, self.menu
        training_rows = self.lesson.training_rows
        some = self._on(training_rows[:: max(1, len(training_rows) // 20_000)])
        features = weighing.problem_features(torch, self._keys[some])
        # Candidates are measured as they are offered, not as they are chosen.
        offered = self._on(np.random.default_rng(0).integers(0, len(menu.recipes), (len(some[:4000]), 16)))
        tiles = self._tiles(self._keys[some[:4000]], offered)
        of_tiles = weighing.tile_features(torch, self._keys[some[:4000]], tiles)
        self.scales = {
            "problem_mean": features.mean(0), "problem_width": features.std(0) + 0.02,
            "tile_mean": of_tiles.mean((0, 1)), "tile_width": of_tiles.std((0, 1)) + 0.05,
        }  # fmt: skip
        kernels = int(menu.kernel.max()) + 1
        whole, (first, second) = features.shape[1], self._widths.ranking
        tile_inputs = of_tiles.shape[2] + len(weighing.COSTS) + 2 * product_nets.COST_WAYS * weighing.WORKS + 2
        shortlist = [whole, *self._widths.shortlist, len(menu.recipes)]
        sizes = dict(zip(product_nets.SHORTLIST, itertools.pairwise(shortlist), strict=True))
        trunk = self._widths.trunk
        sizes |= {"trunk0": (whole, trunk[0]), "trunk1": trunk, "problem": (trunk[1], first)}
        sizes |= {"cross": (trunk[1], RANK), "tile": (tile_inputs, first), "scale": (RANK, first)}
        sizes |= {"shift": (RANK, first), "second": self._widths.ranking, "last": (second, 1)}

        def drawn(shape: tuple[int, ...], width: float) -> Any:
            return (torch.randn(shape, device=self.device) * width).requires_grad_()

        net = {name: drawn(size, (0.2 if name == "scale" else 0.6) * size[0] ** -0.5) for name, size in sizes.items()}
        net |= {f"{name}_bias": drawn((size[1],), 0.02) for name, size in sizes.items()}
        first = self._on(np.log([[own] for own in _FIRST_PRICES], dtype=np.float32)).T
        prices = drawn((kernels, product_nets.COST_WAYS, weighing.PRICES), 0.1).detach() + first
        prices[..., 1] += torch.log(torch.arange(1, product_nets.COST_WAYS + 1, device=self.device))
        net |= {"of_kernel": drawn((kernels, RANK), 1.0), "cost": prices.flatten(1).requires_grad_()}
        return net | {"worth": drawn((len(menu.recipes),), 0.0), "prior": (drawn((1,), 0.0) + 0.5).detach()}

    def _tiles(self, keys: Any, candidates: Any) -> Shapes:
        """Return candidates ``[problems, some]`` as they would be launched."""
        torch, shapes = self.torch, self._shapes.take(candidates)
        even = self._nameless[candidates]
        sides = [
            torch.where(even, torch.ceil(size / torch.ceil(size / tile)), tile)
            for size, tile in ((keys[:, 5:6], shapes.m), (keys[:, 6:7], shapes.n))
        ]
        return shapes._replace(m=sides[0], n=sides[1])

    def _layer(self, values: Any, name: str) -> Any:
        return values @ self._matrix(name) + self.net[f"{name}_bias"]

    def _matrix(self, name: str) -> Any:
        """Return a matrix as it will be stored, with the gradient of the matrix itself."""
        whole = self.net[name]
        exact = whole.detach()
        step = exact.abs().amax(0).clamp(min=_LEAST_STEP) / _LEVELS.get(name, _MOST_LEVELS)
        return whole + ((exact / step).round() * step - exact)

    def _problem(self, rows: Any) -> Any:
        features = weighing.problem_features(self.torch, self._keys[rows])
        return (features - self.scales["problem_mean"]) / self.scales["problem_width"]

    def likely(self, rows: Any) -> Any:
        """Return the shortlist net's logarithms of likelihoods, not normalised, of all candidates of problems."""
        hidden = self._problem(rows)
        for name in product_nets.SHORTLIST[:-1]:
            hidden = self._layer(self.torch.relu(hidden) if name != product_nets.SHORTLIST[0] else hidden, name)
        return self._layer(hidden, product_nets.SHORTLIST[-1]).masked_fill(~self._eligible[self._category[rows]], _NONE)

    def worth(self, rows: Any) -> tuple[Any, Any]:
        """Return the ranking net's values of the shortlisted candidates, and which these are."""
        torch, net, ways = self.torch, self.net, product_nets.COST_WAYS
        some = self.best[rows].long()
        there, some = some >= 0, some.clamp(min=0)
        keys, kernel, prior = self._keys[rows], self._kernel[some], self.prior[rows].float()
        tiles = self._tiles(keys, some)
        features = weighing.tile_features(torch, keys, tiles)
        prices = torch.exp(net["cost"].clamp(-_COST, _COST)[kernel]).unflatten(-1, (ways, weighing.PRICES))
        times = self._above_least(weighing.modelled_times(torch, keys, tiles, prices), there)
        likely = torch.stack([prior, prior - prior.amax(1, keepdim=True)], -1) / product_nets.PRIOR_UNIT
        inputs = torch.cat([
            (features - self.scales["tile_mean"]) / self.scales["tile_width"],
            self._above_least(features[..., list(weighing.COSTS)], there),
            times, torch.sqrt(times + product_nets.NEAREST), likely,
        ], -1)  # fmt: skip
        whole = torch.relu(self._layer(torch.relu(self._layer(self._problem(rows), "trunk0")), "trunk1"))
        of_kernel = self._matrix("of_kernel")[kernel]
        first = self._layer(inputs, "tile") * (1 + self._layer(of_kernel, "scale")) + self._layer(of_kernel, "shift")
        first = first + self._layer(whole, "problem")[:, None]
        last = self._layer(torch.relu(self._layer(torch.relu(first), "second")), "last")[..., 0]
        crossed = (of_kernel * self._layer(whole, "cross")[:, None]).sum(-1)
        worth = last + net["worth"][some] + crossed + net["prior"] * prior
        return worth.masked_fill(~there, _NONE), self.best[rows].long()

    def _above_least(self, values: Any, there: Any) -> Any:
        least = values.masked_fill(~there[..., None], -_NONE).amin(1, keepdim=True)
        return (values - least).clamp(0, product_nets.FARTHEST)

    def train_shortlist(self, seconds: float) -> int:
        """Train the shortlist net for a time, and shortlist the candidates of each problem; how many it was shown."""
        entropy = self.torch.nn.functional.cross_entropy
        example_count = self._train(
            [name for name in self.net if name.startswith("shortlist")],
            lambda rows: entropy(self.likely(rows), self._candidate[rows]), _STEP, seconds,
        )  # fmt: skip
        self.shortlist()
        return example_count

    def shortlist(self) -> None:
        """Keep the likeliest candidates of each problem."""
        torch, count = self.torch, len(self._keys)
        candidate_count = min(product_nets.SHORTLISTED, len(self.menu.recipes))
        self.best = torch.empty((count, candidate_count), dtype=torch.int16, device=self.device)
        self.prior = torch.empty((count, candidate_count), dtype=torch.float16, device=self.device)
        for rows in self._pieces(np.arange(count)):
            likely, best = torch.log_softmax(self.likely(rows), -1).topk(candidate_count, dim=1)
            self.best[rows] = torch.where(likely > _NONE / 2, best, -1).to(torch.int16)
            self.prior[rows] = likely.clamp(min=product_nets.UNLIKELIEST).half()

    def train_ranking(self, seconds: float) -> int:
        """Train the ranking net for a time; how many problems it was shown."""
        return self._train(
            [name for name in self.net if not name.startswith("shortlist")], self.surprise, _RANKING_STEP, seconds
        )

    def surprise(self, rows: Any) -> Any:
        """Return the mean surprise at what is launched, among the shortlisted candidates."""
        worth, some = self.worth(rows)
        right = some == self._candidate[rows][:, None]
        there = right.any(1)
        return ((self.torch.logsumexp(worth, 1) - (worth * right).sum(1)) * there).sum() / there.sum().clamp(min=1)

    def _train(self, names: list[str], loss: Callable[[Any], Any], step: int, seconds: float) -> int:
        torch, example_count = self.torch, 0
        own = [self.net[name].requires_grad_() for name in names]
        optimizer = torch.optim.AdamW(own, lr=_RATE, weight_decay=_DECAY, fused=self.device != "cpu")
        if self.device != "cpu":  # features of all candidates are some hundred kernels, unless they are fused
            loss = torch.compile(loss, dynamic=False)
            loss(self._on(self.lesson.training_rows)[: min(step, len(self.lesson.training_rows))]).backward()
        rows = self._on(self.lesson.training_rows)
        step = min(step, len(rows))
        order, at = torch.randperm(len(rows), device=self.device), 0
        began = time.monotonic()
        while (time_share := (time.monotonic() - began) / seconds) < 1:
            if at + step > len(order):
                order, at = torch.randperm(len(rows), device=self.device), 0
            for group in optimizer.param_groups:
                group["lr"] = (
                    _RATE * min(1, 25 * time_share + 0.04) * (0.5 + 0.5 * math.cos(math.pi * time_share)) + 1e-6
                )
            value = loss(rows[order[at : at + step]])
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(own, _LONGEST)
            optimizer.step()
            at, example_count = at + step, example_count + step
            if example_count // step % 8 == 0 and not torch.isfinite(value.detach()).item():  # also waits for the GPU
                raise RuntimeError("the loss is not finite: the nets would learn nothing")
        for name in names:
            self.net[name] = self.net[name].detach()
        return example_count

    def round(self) -> None:
        """Round the parameters to what is stored of them."""
        for name, values in self.net.items():
            whole, step = stored(name, values.detach().cpu().numpy())
            self.net[name] = self._on((whole.astype(np.float32) * step).astype(np.float32))

    def _pieces(self, rows: NDArray[np.int64]) -> Iterator[Any]:
        with self.torch.no_grad():
            for begin in range(0, len(rows), _AT_ONCE):
                yield self._on(rows[begin : begin + _AT_ONCE])

    def chosen(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the candidate that is chosen for each problem, -1 for none."""
        choices = []
        for some in self._pieces(rows):
            worth, candidates = self.worth(some)
            choices.append(candidates.gather(1, worth.argmax(1, keepdim=True))[:, 0].cpu().numpy())
        return np.concatenate(choices)

    def surely_chosen(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the candidate that is chosen for each problem, and how far its worth is above any other's."""
        choices, leads = [], []
        for some in self._pieces(rows):
            worth, candidates = self.worth(some)
            best, place = worth.topk(2, dim=1)
            choices.append(candidates.gather(1, place[:, :1])[:, 0].cpu().numpy())
            leads.append((best[:, 0] - best[:, 1]).cpu().numpy())
        return np.concatenate(choices), np.concatenate(leads)

    def parameters(self) -> dict[str, NDArray[Any]]:
        """Return the nets' parameters as `product_nets` wants them."""
        net = {name: values.detach().cpu().numpy() for name, values in self.net.items()}
        net["cost"] = net["cost"].clip(-_COST, _COST)
        return stored_all(net, {name: values.cpu().numpy() for name, values in self.scales.items()})


def stored(name: str, values: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return a parameter as it is stored: matrices as whole numbers of 6 to 8 bits, with a step per column."""
    if values.ndim == 1 or name == "cost":
        return values.astype(np.float16 if name in _FINE else np.float32), np.ones(1, np.float32)
    step = np.maximum(np.abs(values).max(axis=0), _LEAST_STEP).astype(np.float32) / _LEVELS.get(name, _MOST_LEVELS)
    return np.rint(values / step).astype(np.int8), step


def stored_all(net: dict[str, NDArray[Any]], scales: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return all parameters of a group as `product_nets` reads them."""
    columns = {name: values.astype(np.float32) for name, values in scales.items()}
    for name, values in net.items():
        columns[name], step = stored(name, values)
        if columns[name].dtype == np.int8:
            columns[f"{name}_step"] = step
    return columns


def write_nets(path: Path, about: dict[str, Any], nets: dict[int, tuple[Menu, dict[str, NDArray[Any]]]]) -> int:
    """Write menus and nets of all groups; the bytes of the file."""
    keys: list[tuple[int, int]] = []
    columns: dict[str, NDArray[Any]] = {}
    for group, (menu, parameters) in nets.items():
        keys += [(group, number) for number in range(len(menu.recipes))]
        columns[f"category{group}"] = menu.categories.astype(np.int32)
        columns[f"eligible{group}"] = np.packbits(menu.eligible, axis=1)
        columns |= {f"{name}{group}": values for name, values in parameters.items()}
    columns["recipes"] = np.concatenate([menu.recipes for menu, _ in nets.values()])
    columns["kernel"] = np.concatenate([menu.kernel for menu, _ in nets.values()]).astype(np.int16)
    write(path, about | {"made": "python -m tileprof.harvest.products.product_ranker"}, ("group", "candidate"),
          np.array(keys, np.int64), columns)  # fmt: skip
    return path.stat().st_size


_OPS: Final = ("mm", "addmm", "addmm with a matrix", "bmm", "baddbmm")
_TYPES: Final = {problems.FP32: "fp32", problems.TF32: "tf32", problems.FP16: "fp16", problems.BF16: "bf16"}


def accuracies(
    menu: Menu, lesson: Lesson, rows: NDArray[np.int64], chosen: NDArray[np.int64]
) -> Iterator[dict[str, Any]]:
    """Yield how right choices for problems are, tile, cluster and slices of k, by call, type and kernel."""
    keys, real = lesson.keys[rows], lesson.candidate[rows]
    shapes = menu.recipes[:, _SHAPE]
    right = (shapes[chosen] == shapes[real]).all(axis=1) & (real >= 0) & (chosen >= 0)
    subsets = [
        (f"{_OPS[op]} {_TYPES[dtype]}", (keys[:, :2] == (op, dtype)).all(axis=1))
        for op, dtype in np.unique(keys[:, :2], axis=0).tolist()
    ]
    subsets += [(f"kernel {KINDS[kind]}", (menu.recipes[real, _KIND] == kind) & (real >= 0))
              for kind in np.unique(menu.recipes[:, _KIND]).tolist()]  # fmt: skip
    for name, own in [*subsets, ("all", np.ones(len(rows), bool))]:
        if own.any():
            yield {"of": name, "problems": int(own.sum()), "right": float(right[own].mean())}


@dataclass(frozen=True, slots=True)
class SureChoices:
    """What nets surely choose for entries of a table: their rows, and recipes as they would be launched."""

    rows: NDArray[np.int64]
    recipes: NDArray[np.int32]


def sure_choices(trainer: Trainer, every: Problems, group: int, keys: NDArray[np.int64], sms: int) -> SureChoices:
    """Return what nets surely choose (`product_nets.Expected.sure`) for those of ``keys`` that they were given."""
    own = {key: place for place, key in enumerate(map(bytes, every.keys[every.of_group(group)]))}
    pairs = [(row, own.get(key, -1)) for row, key in enumerate(map(bytes, keys.astype(np.int32)))]
    rows, places = np.array([pair for pair in pairs if pair[1] >= 0], np.int64).reshape(-1, 2).T
    chosen, lead = trainer.surely_chosen(places)
    nvjet = trainer.menu.recipes[chosen, _KIND] == KINDS.index("nvjet")
    sure = lead >= np.where(nvjet, product_nets.SURE_OF_NVJET, product_nets.SURE)
    sure &= [
        not product_nets.is_uneven(KINDS[kind], n)
        for kind, n in zip(trainer.menu.recipes[chosen, _KIND].tolist(), keys[rows, 6].tolist(), strict=True)
    ]
    return SureChoices(rows[sure], launched(trainer.menu.recipes[chosen[sure]], keys[rows[sure]], sms))


def train_group(every: Problems, group: int, options: Namespace, entries: Table | None) -> dict[str, Any]:
    """Train the nets of a group of types, and test them on the layers that were left out.

    Returns menu, parameters and facts; with ``entries`` of a table also what the nets surely choose for them.
    """
    import torch  # noqa: PLC0415 - heavy

    if options.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    menu, lesson = prepared(every, group)
    trainer = Trainer(menu, lesson, group, options.device)
    facts: dict[str, Any] = {
        "types": [_TYPES[dtype] for dtype in np.unique(lesson.keys[:, 1]).tolist()],
        "group": group,
        "problems": len(lesson.training_rows), "candidates": len(menu.recipes), "kernels": int(menu.kernel.max()) + 1,
    }  # fmt: skip
    facts["shortlist was shown"] = trainer.train_shortlist(options.seconds / 3)
    facts["ranking was shown"] = trainer.train_ranking(options.seconds * 2 / 3)
    if options.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    trainer.round()
    trainer.shortlist()
    rows = np.random.default_rng(1).permutation(lesson.test_rows)[:_TESTED]
    facts["left out"] = list(accuracies(menu, lesson, rows, trainer.chosen(rows)))
    say(facts)
    trained = {"menu": menu, "parameters": trainer.parameters(), "facts": facts}
    if entries is not None:
        trained["sure choices"] = sure_choices(trainer, every, group, entries.keys, entries.about["sms"])
    return trained


def main(words: list[str] | None = None) -> int:
    """Train nets, test them on layers that were left out, and write them."""
    arguments = parser("product_ranker", "learn which kernel is chosen")
    arguments.add_argument("--seconds", type=float, default=180, help="of training per group (default: %(default)s)")
    arguments.add_argument("--thin", type=Path, metavar="FILE", help="write the table without entries that nets tell")
    arguments.add_argument("--report", type=Path, metavar="FILE", help="write how right they are about other layers")
    arguments.add_argument("--device", default="cuda")
    options = arguments.parse_args(words)
    return concluded("product_ranker", lambda: _train_all(options))


def _train_all(options: Namespace) -> None:
    """Train, write and test the nets."""
    every, about = gathered(options.sources, options.seed, options.processes)
    every = of_whole_blocks(every)
    entries = next((read(path) for path in options.sources if path.is_file()), None) if options.thin else None
    trained = {group: train_group(every, group, options, entries) for group in GROUPS}
    nets = {group: (own["menu"], own["parameters"]) for group, own in trained.items()}
    say({"bytes": write_nets(options.output, about, nets)})
    if entries is not None:
        recipes = np.full((len(entries), len(RECIPE)), -1, np.int32)
        for sure in (own["sure choices"] for own in trained.values()):
            recipes[sure.rows] = sure.recipes
        say(thin(entries, recipes, options.thin))
    if options.report is not None:
        options.report.write_text(
            json.dumps(about | {"groups": [own["facts"] for own in trained.values()]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    sys.exit(main())
