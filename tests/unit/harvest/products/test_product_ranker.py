"""Nets that learn which kernel is launched, from the answers of a known rule."""

from itertools import product

import numpy as np
import pytest

from tileprof.harvest.products import product_ranker as ranker
from tileprof.harvest.products.product_cases import of_held_out_layers
from tileprof.record.model.tables import read, write
from tileprof.record.model.tables.product_entries import KINDS, RECIPE, Recipe
from tileprof.record.model.tiles.products import learned
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.problem import BF16, KEY, Problem

ABOUT = {"gpu": "NVIDIA H200", "architecture": "sm_90", "sms": 132, "library": "cublas", "version": "0", "torch": "0"}


def recipe(m, n, split=1, kind="nvjet", threads=384):
    words = {"kind": KINDS.index(kind), "m": m, "n": n, "k": 64, "stages": 4, "cluster_m": 1, "cluster_n": 1}
    words |= {"split": split, "cleared": 0, "post": int(split > 1), "threads": threads, "registers": 168}
    return [words.get(name, 0) for name in RECIPE]


@pytest.fixture(scope="module")
def answers():
    """A rule: tall problems get tall tiles, wide ones wide tiles, small ones with a long k three slices."""
    recipes = np.array([recipe(256, 128), recipe(128, 256), recipe(64, 64, 3)], np.int32)
    sizes = [64, 128, 192, 256, 512, 1024, 2048, 4096]
    keys = np.array([[0, BF16, 0, 1, 1, m, n, k] for m, n, k in product(sizes, sizes, (256, 1024, 8192))], np.int32)
    small = (keys[:, 5] * keys[:, 6] <= 65536) & (keys[:, 7] == 8192)
    place = np.where(small, 2, np.where(keys[:, 5] > keys[:, 6], 0, 1)).astype(np.int32)
    return ranker.Problems(keys, place, recipes)


def trainer_of(answers):
    pytest.importorskip("torch")
    menu, lesson = ranker.prepared(answers, 2)
    return menu, lesson, ranker.Trainer(menu, lesson, 2, "cpu")


def test_candidates_are_kernels_with_slices_that_were_launched(answers):
    menu, lesson = ranker.prepared(answers, 2)
    shapes = {tuple(row[i] for i in (1, 2, 7)) for row in menu.recipes.tolist()}
    assert shapes == {(256, 128, 1), (128, 256, 1), (64, 64, 3)}
    assert menu.eligible.all()
    assert not set(lesson.training_rows.tolist()) & set(lesson.test_rows.tolist())
    assert len(lesson.training_rows) + len(lesson.test_rows) == len(answers.keys)
    assert (menu.recipes[lesson.candidate] == answers.recipes[answers.recipe]).all()


def test_kernels_without_a_tile_in_their_name_are_identified_by_threads_and_get_the_largest_tile():
    rows = np.array([recipe(8, 1, kind="gemv", threads=128), recipe(7, 1, kind="gemv", threads=128),
                     recipe(8, 1, kind="gemv", threads=256), recipe(64, 64), recipe(64, 32)], np.int32)  # fmt: skip
    kernel, largest = ranker.kernels_of(rows)
    assert kernel[0] == kernel[1]
    assert len(set(kernel.tolist())) == 4
    assert largest[:, 1].tolist() == [8, 8, 8, 64, 64]


def test_steps_make_the_launched_kernel_likelier(answers):
    _, lesson, trainer = trainer_of(answers)
    torch = trainer.torch
    trainer.sift()
    rows = torch.as_tensor(lesson.training_rows)
    for name, loss in (("sieve", None), ("judge", trainer.surprise)):
        own = [v.requires_grad_() for n, v in trainer.net.items() if n.startswith("sieve") == (name == "sieve")]
        some = loss or (lambda r: torch.nn.functional.cross_entropy(trainer.likely(r), trainer._candidate[r]))
        optimizer = torch.optim.Adam(own, lr=0.005)
        first = some(rows).item()
        for _ in range(40):
            optimizer.zero_grad()
            some(rows).backward()
            optimizer.step()
        assert some(rows).item() < first / 2, name


def test_the_recorder_chooses_what_the_trained_nets_do(answers, tmp_path):
    menu, lesson, trainer = trainer_of(answers)
    trainer.round()
    trainer.sift()
    chosen = trainer.chosen(np.arange(len(answers.keys)))
    path = tmp_path / "nets.npz"
    assert ranker.write_nets(path, ABOUT, {2: (menu, trainer.parameters())}) == path.stat().st_size
    table, same = read(path), []
    for key, candidate in zip(answers.keys.tolist(), chosen.tolist(), strict=True):
        problem = Problem(*key)
        choice, real = learned.choose(problem, table, 132), fitted(Recipe.of(menu.recipes[candidate]), problem, 132)
        same.append((choice.m, choice.n, choice.split) == (real.m, real.n, real.split))
    assert np.mean(same) > 0.97, "numpy and torch add in different orders"
    total = list(ranker.judged(menu, lesson, lesson.training_rows, lesson.candidate[lesson.training_rows]))
    assert {row["of"]: row["right"] for row in total} == {"mm bf16": 1.0, "kernel nvjet": 1.0, "all": 1.0}


def test_a_table_gives_its_problems_once_and_none_of_a_layer_held_out(answers, tmp_path):
    path = tmp_path / "products.npz"
    write(path, ABOUT, KEY, answers.keys.astype(np.int64), {"recipe": answers.recipe, "recipes": answers.recipes})
    every, about = ranker.gathered([path, path], seeds=[])
    assert about == ABOUT
    away = of_held_out_layers(answers.keys)
    assert 0 < away.sum() < 0.1 * len(away)
    assert sorted(map(tuple, every.keys.tolist())) == sorted(map(tuple, answers.keys[~away].tolist()))
    recipe_of = dict(zip(map(tuple, every.keys.tolist()), every.recipes[every.recipe].tolist(), strict=True))
    real = answers.recipes[answers.recipe[~away]].tolist()
    assert [recipe_of[tuple(key)] for key in answers.keys[~away].tolist()] == real
