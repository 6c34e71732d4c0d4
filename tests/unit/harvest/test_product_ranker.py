"""Nets that learn which kernel is launched, from answers of a rule that is known."""

from itertools import product

import numpy as np
import pytest

from tileprof.harvest import product_ranker as ranker
from tileprof.harvest.product_captures import Answers
from tileprof.record.model.tables import read
from tileprof.record.model.tables.product_entries import KINDS, RECIPE, Recipe
from tileprof.record.model.tiles.products import learned
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.problem import BF16, Problem

ABOUT = {"gpu": "NVIDIA H200", "architecture": "sm_90", "sms": 132, "library": "cublas", "version": "0", "torch": "0"}


def recipe(m, n, split=1, kind="nvjet", threads=384):
    words = {"kind": KINDS.index(kind), "m": m, "n": n, "k": 64, "stages": 4, "cluster_m": 1, "cluster_n": 1}
    words |= {"split": split, "cleared": 0, "post": int(split > 1), "threads": threads, "registers": 168}
    return [words.get(name, 0) for name in RECIPE]


@pytest.fixture(scope="module")
def answers():
    """Tall problems get tall tiles, wide ones wide tiles, small ones of a long k three slices."""
    recipes = np.array([recipe(256, 128), recipe(128, 256), recipe(64, 64, 3)], np.int32)
    sizes = [64, 128, 192, 256, 512, 1024, 2048, 4096]
    keys = np.array([[0, BF16, 0, 1, 1, m, n, k] for m, n, k in product(sizes, sizes, (256, 1024, 8192))], np.int32)
    small = (keys[:, 5] * keys[:, 6] <= 65536) & (keys[:, 7] == 8192)
    place = np.where(small, 2, np.where(keys[:, 5] > keys[:, 6], 0, 1)).astype(np.int32)
    return Answers(keys, place, recipes)


@pytest.fixture(scope="module")
def trainer(answers):
    menu, lesson = ranker.prepared(answers, 2, "cpu")
    return ranker.Trainer(menu, lesson, "cpu")


def test_candidates_are_kernels_with_slices_that_were_launched(answers):
    menu, lesson = ranker.prepared(answers, 2, "cpu")
    shapes = {tuple(row[i] for i in (1, 2, 7)) for row in menu.recipes.tolist()}
    assert shapes == {(256, 128, 1), (128, 256, 1), (64, 64, 3)}
    assert menu.eligible.all()
    assert not set(lesson.shown.tolist()) & set(lesson.judged.tolist())
    assert len(lesson.shown) + len(lesson.judged) == len(answers.keys)


def test_what_is_launched_is_the_one_right_candidate(trainer):
    rows = trainer._on(trainer.lesson.shown)
    seen = trainer.seen(rows)
    right = np.bincount(seen["of"].numpy(), seen["right"].numpy(), len(rows))
    assert right.tolist() == [1.0] * len(rows)


def test_kernels_without_a_tile_in_their_name_are_told_by_their_threads_and_have_the_largest_tile():
    rows = np.array([recipe(8, 1, kind="gemv", threads=128), recipe(7, 1, kind="gemv", threads=128),
                     recipe(8, 1, kind="gemv", threads=256), recipe(64, 64), recipe(64, 32)], np.int32)  # fmt: skip
    kernel, largest = ranker.kernels_of(rows)
    assert kernel[0] == kernel[1]
    assert len(set(kernel.tolist())) == 4
    assert largest[:, 1].tolist() == [8, 8, 8, 64, 64]


def test_steps_make_the_launched_kernel_likelier(trainer):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net, rows = trainer.net(8, 8), trainer._on(trainer.lesson.shown)
    optimizer = torch.optim.Adam(net.values(), lr=0.02)
    first = trainer.loss(net, rows).item()
    for _ in range(40):
        optimizer.zero_grad()
        trainer.loss(net, rows).backward()
        optimizer.step()
    assert trainer.loss(net, rows).item() < first / 2


def test_the_recorder_chooses_what_the_trained_nets_do(answers, tmp_path):
    torch = pytest.importorskip("torch")
    menu, lesson = ranker.prepared(answers, 2, "cpu")
    trainer, every = ranker.Trainer(menu, lesson, "cpu"), np.arange(len(answers.keys))
    torch.manual_seed(1)
    sieve, nets = trainer.net(8, 8), [trainer.net(16, 8) for _ in range(2)]
    trainer.sift(sieve)
    right = trainer.judged(nets, every)
    assert right[:, 1].all()
    grown = {2: (menu, trainer.parameters(sieve), [trainer.parameters(net) for net in nets])}
    assert ranker.write_nets(tmp_path / "nets.npz", ABOUT, grown) == (tmp_path / "nets.npz").stat().st_size
    table = read(tmp_path / "nets.npz")
    chosen = []
    for key, place in zip(answers.keys.tolist(), answers.recipe.tolist(), strict=True):
        problem = Problem(*key)
        told, real = learned.choose(problem, table, 132), fitted(Recipe.of(answers.recipes[place]), problem, 132)
        chosen.append((told.m, told.n, told.split) == (real.m, real.n, real.split))
    assert np.mean(np.array(chosen) == right[:, 0]) > 0.97  # weights are rounded to 16 bits
