r"""Trains the nets that choose kernels for products nobody measured: ``python -m tileprof.harvest.product_ranker``.

They learn from what PyTorch would launch for millions of products (`tileprof.harvest.product_captures`), to give the
kernel that is launched the largest worth of all that are launched for any problem of its category
(`tileprof.record.model.tiles.products.learned`)::

    python -m tileprof.harvest.product_captures -o CAPTURES --seconds 100 --workers 13 --launched 52736
    python -m tileprof.harvest.product_ranker CAPTURES --launched 52736 -o product-ranker-cublas-13.1.npz

It needs PyTorch; with a GPU, minutes are enough. Every 25th layer is left out of training, and judged.
"""

from __future__ import annotations

import json
import math
import sys
import time
from argparse import ArgumentParser
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest import product_captures
from tileprof.record.model.tables import write
from tileprof.record.model.tables.product_entries import KINDS, RECIPE
from tileprof.record.model.tiles.products import learned, weighing
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import NAMELESS, as_launched, cuts_at_lines

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

HELD_OUT_EVERY: Final = 25
LEAST, SHARE = 5, 2000
"""How often a kernel with so many slices is chosen for problems of a category, at least, to become a candidate: so
often, but once per so many problems is enough."""
_KIND, _M, _N, _SPLIT, _POST = (RECIPE.index(name) for name in ("kind", "m", "n", "split", "post"))
_SHAPE: Final = [RECIPE.index(name) for name in ("m", "n", "cluster_m", "cluster_n", "split")]
_CLUSTER: Final = [RECIPE.index(name) for name in ("cluster_m", "cluster_n")]
_NAMELESS: Final = [KINDS.index(kind) for kind in sorted(NAMELESS)]
_SIEVE, _JUDGE = (32, 16), (256, 96)
"""Widths of the layers of a net that looks at all candidates, and of one that looks at the best of them."""
_RANK: Final = 24
"""Width of what is learnt of a kernel."""
_OF_ALL, _OF_BEST = 512, 2048
"""Problems of a step, with all of their candidates and with the best ones."""
_RATE, _DECAY, _LONGEST = 2e-3, 1e-4, 2.0
_FAR: Final = 1e9
_JUDGED: Final = 20_000
_SIEVING: Final = 0.25
"""Time of training a sieve, per time of training a net."""


def layer(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a word for the layer of each problem: its two widths, or the batch and sizes of attention."""
    batch, m, n, k = (keys[:, i] for i in (4, 5, 6, 7))
    one = np.where(keys[:, 2] == 1, m, k)
    low, high = np.minimum(one, n), np.maximum(one, n)
    return np.where(batch > 1, (batch * 131 + m) * 1000003 + n * 131 + k, low * 2654435761 + high * 40503 * 7919)


def held_out_layers(words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which layers (`layer`) nets are judged by."""
    return np.asarray((words % 1000003 * 7919 + 13) % 1009 % HELD_OUT_EVERY == 0)


def kernels_of(recipes: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the kernel of each recipe, and recipes whose kernels without a tile in their name have the largest one
    seen.

    Kernels differ in kind, tile, cluster and in what is launched behind them; where no name tells a tile, in threads,
    registers and shared memory instead.
    """
    nameless = np.isin(recipes[:, _KIND], _NAMELESS)
    named = np.where(nameless[:, None], 0, recipes[:, [_M, _N]])
    own = np.where(nameless[:, None], recipes[:, -3:], 0)
    words = np.column_stack([recipes[:, [_KIND, *_CLUSTER, _POST]], named, own])
    _, kernel = np.unique(words, axis=0, return_inverse=True)
    kernel = kernel.reshape(-1)
    largest = recipes.copy()
    for column in (_M, _N):
        most = np.zeros(kernel.max() + 1, np.int32)
        np.maximum.at(most, kernel, recipes[:, column])
        largest[:, column] = np.where(nameless, most[kernel], recipes[:, column])
    return kernel, largest


@dataclass(frozen=True, slots=True)
class Menu:
    """Candidates of a group: their recipes and kernels, categories, and which candidates each has."""

    recipes: NDArray[np.int32]
    kernel: NDArray[np.int64]
    categories: NDArray[np.int64]
    eligible: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Lesson:
    """Problems of a group on a device: keys, category, kernel (-1 where no candidate has it) and slices of k of each;
    which of them are learnt from, and which are judged. ``rows`` are their places among the answers.
    """

    rows: NDArray[np.int64]
    keys: Any
    category: Any
    kernel: Any
    split: Any
    shown: NDArray[np.int64]
    judged: NDArray[np.int64]


def prepared(answers: product_captures.Answers, group: int, device: str) -> tuple[Menu, Lesson]:
    """Return candidates and problems of a group of types (`learned.GROUPS`)."""
    import torch  # noqa: PLC0415 - heavy, and needed by this command alone

    inside = np.isin(answers.keys[:, 1], [dtype for dtype, own in learned.GROUPS.items() if own == group])
    keys, place = answers.keys[inside].astype(np.int64), answers.recipe[inside]
    kernel, recipes = kernels_of(answers.recipes)
    away = held_out_layers(layer(keys))
    often = np.bincount(place[~away], minlength=len(recipes))
    some, pair = np.unique(np.column_stack([kernel, recipes[:, _SPLIT]]), axis=0, return_inverse=True)
    pair = pair.reshape(-1)
    first = np.full(len(some), -1)  # the recipe of a candidate: the one that is seen most
    for row in np.argsort(often, kind="stable").tolist():
        first[pair[row]] = row
    categories, category = np.unique(np.asarray(weighing.categories(np, keys)), return_inverse=True)
    category = category.reshape(-1)
    times = np.zeros((len(categories), len(some)), np.int64)
    np.add.at(times, (category[~away], pair[place[~away]]), 1)
    eligible = times >= np.clip(times.sum(axis=1, keepdims=True) // SHARE, 1, LEAST)
    kept = np.flatnonzero(eligible.any(axis=0))
    eligible = eligible[:, kept]
    kernels, of_candidate = np.unique(some[kept, 0], return_inverse=True)
    of_candidate = of_candidate.reshape(-1)
    renamed = np.full(kernel.max() + 1, -1)
    renamed[kernels] = np.arange(len(kernels))
    menu = Menu(recipes[first[kept]], of_candidate, categories, eligible)
    own = renamed[kernel][place]
    usable = (own >= 0) & np.asarray(eligible.any(axis=1))[category]
    lesson = Lesson(
        np.flatnonzero(inside),
        torch.as_tensor(keys.astype(np.float32), device=device), torch.as_tensor(category, device=device),
        torch.as_tensor(own, device=device),
        torch.as_tensor(answers.recipes[place, _SPLIT].astype(np.float32), device=device),
        np.flatnonzero(~away & usable), np.flatnonzero(away),
    )  # fmt: skip
    return menu, lesson


class Trainer:
    """Trains nets for a menu, from a lesson."""

    def __init__(self, menu: Menu, lesson: Lesson, device: str) -> None:
        import torch  # noqa: PLC0415 - heavy

        self.torch, self.device = torch, device
        self.menu, self.lesson = menu, lesson
        counts = menu.eligible.sum(axis=1)
        self._some = self._on(np.concatenate([np.flatnonzero(row) for row in menu.eligible]))
        self._count, self._begin = self._on(counts), self._on(np.cumsum(counts) - counts)
        self._shapes = [self._on(menu.recipes[:, i].astype(np.float32)) for i in _SHAPE]
        self._nameless = self._on(np.isin(menu.recipes[:, _KIND], _NAMELESS))
        self._cuts = self._on(cuts_at_lines(menu.recipes[:, _KIND], menu.recipes[:, _POST]))
        self._kernel = self._on(menu.kernel)
        self.kernels = int(menu.kernel.max()) + 1
        self.best: Any = None
        """Candidates that the sieve leaves of each problem, ``[problems, learned.KEPT]``; -1 where there are fewer."""
        self.scales = self._scales()

    def _on(self, values: NDArray[Any]) -> Any:
        return self.torch.as_tensor(values, device=self.device)

    def _scales(self) -> tuple[Any, Any, Any, Any]:
        rows = self.lesson.shown[:: max(1, len(self.lesson.shown) // 1500)][:1500]
        seen = self.seen(self._on(rows))
        return (
            seen["tile"].mean(0), seen["tile"].std(0) + 0.05, seen["problem"].mean(0), seen["problem"].std(0) + 0.05,
        )  # fmt: skip

    def seen(self, rows: Any, *, best: bool = False) -> dict[str, Any]:
        """Return the candidates of problems, one behind the other, all or those that the sieve left: of each its
        problem, kernel, what nets see of it, and whether it is what is launched.
        """
        torch = self.torch
        if best:
            left = self.best[rows].to(torch.int64)
            problem, place = torch.nonzero(left >= 0, as_tuple=True)
            some = left[problem, place]
        else:
            category = self.lesson.category[rows]
            count = self._count[category]
            total = int(count.sum())
            problem = torch.repeat_interleave(torch.arange(len(rows), device=self.device), count, output_size=total)
            place = torch.arange(total, device=self.device) - (torch.cumsum(count, 0) - count)[problem]
            some = self._some[self._begin[category][problem] + place]
        keys = self.lesson.keys[rows]
        each = keys[problem]
        tile = as_launched(
            torch, each, [sizes[some][:, None] for sizes in self._shapes], self._nameless[some][:, None],
            self._cuts[some][:, None],
        )  # fmt: skip
        seen = torch.cat(weighing.tile_features(torch, each, tile), -1)
        costs = seen[:, weighing.COSTS]
        kernel = self._kernel[some]
        right = (kernel == self.lesson.kernel[rows][problem]) & (tile[4][:, 0] == self.lesson.split[rows][problem])
        return {
            "candidate": some, "of": problem, "kernel": kernel, "tile": seen, "right": right,
            "costs": (costs - self.least(costs, problem, len(rows))[problem]).clamp(max=learned.FARTHEST),
            "problem": torch.cat(weighing.problem_features(torch, keys), -1),
            "work": torch.cat(weighing.work(torch, each, tile), -1),
        }  # fmt: skip

    def least(self, values: Any, problem: Any, count: int) -> Any:
        """Return the least of each column among the candidates of each problem."""
        none = self.torch.full((count, values.shape[1]), _FAR, device=self.device)
        return none.scatter_reduce(0, problem[:, None].expand_as(values), values, "amin")

    def net(self, first: int, second: int) -> dict[str, Any]:
        """Return the parameters of a net of such layers that knows nothing."""
        torch, menu = self.torch, self.kernels
        tile, whole = len(self.scales[0]) + len(weighing.COSTS) + 3 * learned.COST_WAYS, len(self.scales[2])

        def drawn(*sizes: int, width: float) -> Any:
            return (torch.randn(sizes, device=self.device) * width).requires_grad_()

        return {
            "tile": drawn(tile, first, width=tile**-0.5), "problem": drawn(whole, first, width=whole**-0.5),
            "bias": drawn(first, width=0.1), "kernel": drawn(menu, _RANK, width=0.3),
            "to_scale": drawn(_RANK, first, width=0.05), "to_shift": drawn(_RANK, first, width=_RANK**-0.5),
            "cost": drawn(menu, 2 * learned.COST_WAYS, width=0.1), "worth": drawn(menu, width=0.01),
            "second": drawn(first, second, width=first**-0.5), "second_bias": drawn(second, width=0.1),
            "last": drawn(second, width=second**-0.5), "last_bias": drawn(1, width=0.01),
        }  # fmt: skip

    def worths(self, net: dict[str, Any], seen: dict[str, Any]) -> Any:
        """Return the worth of each candidate, as `learned` computes it."""
        torch = self.torch
        mean, width, whole_mean, whole_width = self.scales
        kernel, problem = seen["kernel"], seen["of"]
        cost, own = torch.exp(net["cost"][kernel]), seen["work"][:, 3]
        times = torch.stack([
            torch.log(own * cost[:, 2 * way] + 4 * (way + 1) * cost[:, 2 * way + 1]) + torch.log(seen["work"][:, i])
            for way in range(learned.COST_WAYS) for i in range(3)
        ], -1)  # fmt: skip
        times = (times - self.least(times, problem, len(seen["problem"]))[problem]).clamp(max=learned.FARTHEST)
        known = torch.cat([(seen["tile"] - mean) / width, seen["costs"], times], -1)
        of_kernel = net["kernel"][kernel]
        first = (known @ net["tile"]) * (1 + of_kernel @ net["to_scale"]) + of_kernel @ net["to_shift"]
        first = first + (((seen["problem"] - whole_mean) / whole_width) @ net["problem"] + net["bias"])[problem]
        second = torch.relu(torch.relu(first) @ net["second"] + net["second_bias"])
        return second @ net["last"] + net["last_bias"] + net["worth"][kernel]

    def loss(self, net: dict[str, Any], rows: Any) -> Any:
        """Return the mean surprise at what is launched, among the candidates of each problem."""
        torch = self.torch
        seen = self.seen(rows, best=self.best is not None)
        worth, problem, none = self.worths(net, seen), seen["of"], torch.zeros(len(rows), device=self.device)
        weight = torch.exp(worth - self.most(worth.detach(), problem, len(rows))[problem])
        every, right = (none.index_add(0, problem, some) for some in (weight, weight * seen["right"]))
        there = right > 0
        return (torch.log(every[there]) - torch.log(right[there])).mean()

    def most(self, worth: Any, problem: Any, count: int) -> Any:
        """Return the largest worth among the candidates of each problem."""
        return -self.least(-worth[:, None], problem, count)[:, 0]

    def train(self, rows: NDArray[np.int64], seconds: float, seed: int) -> tuple[dict[str, Any], int]:
        """Return a net trained on some problems for a time, and how many it was shown: a sieve before there is one."""
        torch = self.torch
        torch.manual_seed(seed)
        step, widths = (_OF_ALL, _SIEVE) if self.best is None else (_OF_BEST, _JUDGE)
        step = min(step, len(rows))
        net, shown = self.net(*widths), 0
        optimizer = torch.optim.AdamW(net.values(), lr=_RATE, weight_decay=_DECAY)
        some = self._on(rows)
        order, at = torch.randperm(len(some), device=self.device), 0
        began = time.monotonic()
        while (spent := (time.monotonic() - began) / seconds) < 1:
            if at + step > len(order):
                order, at = torch.randperm(len(some), device=self.device), 0
            for group in optimizer.param_groups:
                group["lr"] = _RATE * min(1, 20 * spent + 0.05) * (0.5 + 0.5 * math.cos(math.pi * spent)) + 1e-6
            loss = self.loss(net, some[order[at : at + step]])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.values(), _LONGEST)
            optimizer.step()
            at += step
            shown += step
        return net, shown

    def sift(self, sieve: dict[str, Any]) -> None:
        """Keep the candidates of the largest worth of each problem, as a sieve sees it."""
        torch, kept = self.torch, learned.KEPT
        count = len(self.lesson.keys)
        self.best = torch.full((count, kept), -1, dtype=torch.int16, device=self.device)
        needed = np.zeros(count, bool)
        needed[self.lesson.shown] = needed[self.lesson.judged] = True
        wanted = np.flatnonzero(needed & np.asarray(self.menu.eligible.any(axis=1))[self.lesson.category.cpu().numpy()])
        with torch.no_grad():
            for begin in range(0, len(wanted), _OF_BEST):
                rows = self._on(wanted[begin : begin + _OF_BEST])
                seen = self.seen(rows)
                worth, problem = self.worths(sieve, seen), seen["of"]
                order = torch.argsort(worth, descending=True)
                order = order[torch.argsort(problem[order], stable=True)]
                sizes = torch.bincount(problem, minlength=len(rows))
                place = torch.arange(len(order), device=self.device) - (torch.cumsum(sizes, 0) - sizes)[problem[order]]
                order, place = order[place < kept], place[place < kept]
                self.best[rows[problem[order]], place] = seen["candidate"][order].to(torch.int16)

    def judged(self, nets: Sequence[dict[str, Any]], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return of each problem whether the choice is right, and whether any candidate is, ``[problems, 2]``."""
        torch = self.torch
        found: list[NDArray[np.bool_]] = []
        step = _OF_ALL if self.best is None else _OF_BEST
        with torch.no_grad():
            for begin in range(0, len(rows), step):
                some = self._on(rows[begin : begin + step])
                seen = self.seen(some, best=self.best is not None)
                worth = sum(self.worths(net, seen) for net in nets)
                chosen = worth >= self.most(worth, seen["of"], len(some))[seen["of"]]
                for right in (seen["right"] & chosen, seen["right"]):
                    count = torch.zeros(len(some), device=self.device).index_add(0, seen["of"], right.float())
                    found.append((count > 0).cpu().numpy())
        return np.stack([np.concatenate(found[::2]), np.concatenate(found[1::2])], -1)

    def parameters(self, net: dict[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the parameters of a net as `learned` wants them."""
        scales = dict(zip(learned.SCALES, self.scales, strict=True))
        return {
            name: (scales | net)[name].detach().cpu().numpy().astype(np.float32 if name in scales else np.float16)
            for name in learned.PARAMETERS
        }


Parameters = dict[str, "NDArray[Any]"]


def write_nets(path: Path, about: dict[str, Any], grown: dict[int, tuple[Menu, Parameters, list[Parameters]]]) -> int:
    """Write menu, sieve and nets of all groups; the bytes of the file."""
    keys: list[tuple[int, int]] = []
    columns: dict[str, NDArray[Any]] = {}
    for group, (menu, sieve, nets) in grown.items():
        keys += [(group, number) for number in range(len(menu.recipes))]
        columns[f"category{group}"] = menu.categories.astype(np.int32)
        columns[f"eligible{group}"] = np.packbits(menu.eligible, axis=1)
        for name in learned.PARAMETERS:
            columns[f"sieve_{name}{group}"] = sieve[name]
            columns[f"{name}{group}"] = np.stack([net[name] for net in nets])
    columns["recipes"] = np.concatenate([menu.recipes for menu, *_ in grown.values()])
    columns["kernel"] = np.concatenate([menu.kernel for menu, *_ in grown.values()]).astype(np.int16)
    write(path, about | {"made": "python -m tileprof.harvest.product_ranker"}, ("group", "candidate"),
          np.array(keys, np.int64), columns)  # fmt: skip
    return path.stat().st_size


_OPS: Final = ("mm", "addmm", "addmm with a matrix", "bmm", "baddbmm")
_TYPES: Final = {problems.FP32: "fp32", problems.TF32: "tf32", problems.FP16: "fp16", problems.BF16: "bf16"}


def by_call(lesson: Lesson, rows: NDArray[np.int64], judged: NDArray[np.bool_]) -> Iterator[dict[str, Any]]:
    """Yield how right the nets are about problems that were left out, by call and type, and about all."""
    kind = lesson.keys[rows][:, :2].cpu().numpy().astype(int)
    parts: list[tuple[str, str, NDArray[np.bool_]]] = [
        (_OPS[op], _TYPES[dtype], (kind == (op, dtype)).all(axis=1)) for op, dtype in np.unique(kind, axis=0).tolist()
    ]
    for call, dtype, own in [*parts, ("all", "", np.ones(len(kind), bool))]:
        right, there = judged[own].mean(axis=0).tolist()
        yield {"call": call, "type": dtype, "problems": int(own.sum()), "right": right, "among candidates": there}


@dataclass(slots=True)
class Progress:
    """What a run has made and found so far, of the groups that are finished."""

    grown: dict[int, tuple[Menu, Parameters, list[Parameters]]] = field(default_factory=dict)
    wrong: list[NDArray[np.int64]] = field(default_factory=list)
    report: list[dict[str, Any]] = field(default_factory=list)


def train_group(answers: product_captures.Answers, group: int, options: Namespace, progress: Progress) -> None:
    """Train the sieve and the nets of a group of types, and judge them by layers that were left out."""
    menu, lesson = prepared(answers, group, options.device)
    trainer = Trainer(menu, lesson, options.device)
    judged = np.random.default_rng(1).permutation(lesson.judged)[:_JUDGED]
    facts: dict[str, Any] = {
        "types": [_TYPES[dtype] for dtype, own in learned.GROUPS.items() if own == group],
        "problems": len(lesson.shown), "candidates": len(menu.recipes), "kernels": trainer.kernels, "curve": [],
    }  # fmt: skip
    progress.report.append(facts)
    say(facts)

    def trained(rows: NDArray[np.int64], seconds: float, seed: int) -> dict[str, Any]:
        net, shown = trainer.train(rows, seconds, seed)
        right = float(trainer.judged([net], judged)[:, 0].mean())
        facts["curve"].append({"problems": len(rows), "shown": shown, "right": right, "sieve": trainer.best is None})
        say(facts["curve"][-1])
        return net

    seconds = options.seconds[group]
    sieve = trained(lesson.shown, seconds * _SIEVING, 0)
    trainer.sift(sieve)
    for part in (64, 16, 4) if options.curve else ():
        trained(lesson.shown[::part], options.curve, 0)
    nets = [trained(lesson.shown, seconds, seed) for seed in range(options.nets)]
    facts["left out"] = list(by_call(lesson, judged, trainer.judged(nets, judged)))
    for row in facts["left out"]:
        say(row)
    right = np.zeros(len(lesson.rows), bool)
    some = np.concatenate([lesson.shown, lesson.judged])
    right[some] = trainer.judged(nets, some)[:, 0]
    facts["wrong of all"] = int((~right).sum())
    progress.wrong.append(lesson.rows[~right])
    progress.grown[group] = (menu, trainer.parameters(sieve), [trainer.parameters(net) for net in nets])


def main(words: list[str] | None = None) -> int:
    """Train nets, judge them by layers that were left out, and write them."""
    parser = ArgumentParser("python -m tileprof.harvest.product_ranker", description="learn which kernel is chosen")
    parser.add_argument("captures", type=Path, metavar="DIR", help="what tileprof.harvest.product_captures wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--launched", type=int, default=0, help="as for the captures")
    parser.add_argument("--seed", type=int, default=1, help="as for the captures")
    parser.add_argument("--seconds", type=float, nargs=3, default=(60, 60, 90), metavar="S",
                        help="of training a net, for fp32, tf32 and 16 bits")  # fmt: skip
    parser.add_argument("--nets", type=int, default=2, help="whose worths are averaged (default: %(default)s)")
    parser.add_argument("--curve", type=float, default=0, metavar="S",
                        help="train a net for so long on fewer problems, too, and say how right it is")  # fmt: skip
    parser.add_argument("--wrong", type=Path, metavar="FILE", help="write which problems the nets choose wrongly")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write how right they are about other layers")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=1, help="that list the cases again")
    options = parser.parse_args(words)
    if options.device == "cuda":
        import torch  # noqa: PLC0415 - heavy

        torch.backends.cuda.matmul.allow_tf32 = True
    answers = product_captures.read(options.captures, options.launched, options.seed, options.processes)
    about = product_captures.about(options.captures)
    progress = Progress()
    for group in sorted(set(learned.GROUPS.values()), reverse=True):
        train_group(answers, group, options, progress)
        say({"bytes": write_nets(options.output, about, progress.grown)})
        if options.wrong is not None:
            np.savez_compressed(options.wrong, rows=np.concatenate(progress.wrong).astype(np.int32))
        if options.report is not None:
            options.report.write_text(json.dumps(about | {"groups": progress.report}, indent=1) + "\n")
    return 0


def say(facts: dict[str, Any]) -> None:
    """Write facts at once, a line: a run that is cut has said what it knew."""
    sys.stdout.write(f"{json.dumps(facts)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
