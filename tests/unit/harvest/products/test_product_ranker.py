"""Nets that learn which kernel is launched, from the answers of a known rule."""

from itertools import product

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.harvest.products import product_lessons as lessons
from tileprof.harvest.products import product_ranker as ranker
from tileprof.harvest.products.product_cases import are_held_out, of_held_out_layers
from tileprof.harvest.products.product_table import launched
from tileprof.record.model import tables
from tileprof.record.model.tables import read, write
from tileprof.record.model.tables.product_entries import KINDS, RECIPE, Recipe
from tileprof.record.model.tiles.products import product_nets
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.problem import BF16, FP32, KEY, Problem

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
    return lessons.Problems(keys, place, recipes)


def trainer_of(answers):
    pytest.importorskip("torch")
    menu, lesson = lessons.prepared(answers, 2)
    return menu, lesson, ranker.Trainer(menu, lesson, 2, "cpu")


def test_candidates_are_kernels_with_slices_that_were_launched(answers):
    menu, lesson = lessons.prepared(answers, 2)
    shapes = {tuple(row[i] for i in (1, 2, 7)) for row in menu.recipes.tolist()}
    assert shapes == {(256, 128, 1), (128, 256, 1), (64, 64, 3)}
    assert menu.eligible.all()
    assert not set(lesson.training_rows.tolist()) & set(lesson.test_rows.tolist())
    assert len(lesson.training_rows) + len(lesson.test_rows) == len(answers.keys)
    assert (menu.recipes[lesson.candidate] == answers.recipes[answers.recipe]).all()


def test_each_problem_is_of_one_group(answers):
    keys = np.repeat(answers.keys[:40], 2, axis=0)
    keys[::2, 6] += 1
    keys[:40, 1] = FP32
    several = lessons.Problems(keys, np.repeat(answers.recipe[:40], 2), answers.recipes)
    of_groups = [several.of_group(group).tolist() for group in (0, 2, product_nets.ODD)]
    assert of_groups == [list(range(40)), list(range(41, 80, 2)), list(range(40, 80, 2))]


def test_kernels_without_a_tile_in_their_name_are_identified_by_threads_and_get_the_largest_tile():
    rows = np.array([recipe(8, 1, kind="gemmSN", threads=128), recipe(7, 1, kind="gemmSN", threads=128),
                     recipe(8, 1, kind="gemmSN", threads=256), recipe(64, 64), recipe(64, 32)], np.int32)  # fmt: skip
    kernel, largest = lessons.kernels_of(rows)
    assert kernel[0] == kernel[1]
    assert len(set(kernel.tolist())) == 4
    assert largest[:, 1].tolist() == [8, 8, 8, 64, 64]


def test_steps_make_the_launched_kernel_likelier(answers):
    _, lesson, trainer = trainer_of(answers)
    torch = trainer.torch
    trainer.shortlist()
    rows = torch.as_tensor(lesson.training_rows)
    for name, loss in (("shortlist", None), ("ranking", trainer.surprise)):
        own = [v.requires_grad_() for n, v in trainer.net.items() if n.startswith("shortlist") == (name == "shortlist")]
        some = loss or (lambda r: torch.nn.functional.cross_entropy(trainer.likely(r), trainer._candidate[r]))
        optimizer = torch.optim.Adam(own, lr=0.005)
        first = some(rows).item()
        for _ in range(40):
            optimizer.zero_grad()
            some(rows).backward()
            optimizer.step()
        assert some(rows).item() < first / 2, name


def test_the_ranking_net_learns_where_fewer_candidates_are_shortlisted_than_elsewhere(answers):
    _, lesson, trainer = trainer_of(answers)
    trainer.shortlist()
    trainer.best[:, 1:] = -1  # the place of what is not there is that of a candidate that may cost less
    trainer.best[:, 0] = trainer.torch.as_tensor(lesson.candidate.max())
    for values in trainer.net.values():
        values.requires_grad_()
    rows = trainer.torch.as_tensor(lesson.training_rows)
    trainer.surprise(rows).backward()
    assert all(trainer.torch.isfinite(v.grad).all() for v in trainer.net.values() if v.grad is not None)


def test_a_loss_that_is_not_finite_ends_the_training(answers):
    _, _, trainer = trainer_of(answers)
    trainer.net["worth"] = trainer.net["worth"].detach() + float("nan")
    trainer.shortlist()
    with pytest.raises(RuntimeError, match="not finite"):
        trainer._train(["worth"], trainer.surprise, 8, seconds=60)


def test_the_recorder_chooses_what_the_trained_nets_do(answers, tmp_path):
    menu, lesson, trainer = trainer_of(answers)
    trainer.round()
    trainer.shortlist()
    chosen = trainer.chosen(np.arange(len(answers.keys)))
    path = tmp_path / "nets.npz"
    assert ranker.write_nets(path, ABOUT, {2: (menu, trainer.parameters())}) == path.stat().st_size
    table, same = read(path), []
    for key, candidate in zip(answers.keys.tolist(), chosen.tolist(), strict=True):
        problem = Problem(*key)
        choice, real = (
            product_nets.choose(problem, table, 132).recipe,
            fitted(Recipe.of(menu.recipes[candidate]), problem, 132),
        )
        same.append((choice.m, choice.n, choice.split) == (real.m, real.n, real.split))
    assert np.mean(same) > 0.97, "numpy and torch add in different orders"
    total = list(ranker.accuracies(menu, lesson, lesson.training_rows, lesson.candidate[lesson.training_rows]))
    assert {row["of"]: row["right"] for row in total} == {"mm bf16": 1.0, "kernel nvjet": 1.0, "all": 1.0}


def test_a_table_gives_its_problems_once_and_none_that_is_held_out(answers, tmp_path):
    path = tmp_path / "products.npz"
    write(path, ABOUT, KEY, answers.keys.astype(np.int64), {"recipe": answers.recipe, "recipes": answers.recipes})
    every, about = lessons.gathered([path, path], seeds=[])
    assert about == ABOUT
    away = of_held_out_layers(answers.keys) | are_held_out(answers.keys)
    assert 0 < away.sum() < 0.1 * len(away)
    assert sorted(map(tuple, every.keys.tolist())) == sorted(map(tuple, answers.keys[~away].tolist()))
    recipe_of = dict(zip(map(tuple, every.keys.tolist()), every.recipes[every.recipe].tolist(), strict=True))
    real = answers.recipes[answers.recipe[~away]].tolist()
    assert [recipe_of[tuple(key)] for key in answers.keys[~away].tolist()] == real


def test_a_table_is_left_without_captured_entries_that_the_nets_surely_tell(answers, tmp_path, monkeypatch):
    menu, _, trainer = trainer_of(answers)
    trainer.round()
    trainer.shortlist()
    leads = trainer.surely_chosen(np.arange(len(answers.keys)))[1]
    monkeypatch.setattr(product_nets, "SURE_OF_NVJET", float(np.median(leads)))
    own = answers.recipes[answers.recipe].copy()
    own[:, RECIPE.index("cleared")] = [
        fitted(Recipe.of(row), Problem(*key), 132).cleared for row, key in zip(own, answers.keys.tolist(), strict=True)
    ]
    recipes, recipe_of_entry = np.unique(own, axis=0, return_inverse=True)
    times = np.zeros(len(own), np.uint16)
    times[::7] = 20_000
    columns = {"recipe": recipe_of_entry.reshape(-1), "recipes": recipes, "main_time": times, "rest_time": times * 0}
    write(tmp_path / "all.npz", ABOUT, KEY, answers.keys.astype(np.int64), columns)
    entries = read(tmp_path / "all.npz")
    sure = ranker.sure_choices(trainer, answers, 2, entries.keys, 132)
    every = np.full((len(own), len(RECIPE)), -1)
    every[sure.rows] = sure.recipes
    summary = ranker.thin(entries, every, tmp_path / "thin.npz")
    remaining = read(tmp_path / "thin.npz")
    left = {tuple(key): row for row, key in enumerate(remaining.keys.tolist())}
    assert summary["left out"] == len(own) - len(left) > 0.1 * len(own)
    ranker.write_nets(tmp_path / "nets.npz", ABOUT, {2: (menu, trainer.parameters())})
    nets = read(tmp_path / "nets.npz")
    for row, key in enumerate(map(tuple, answers.keys.tolist())):
        if key in left:
            recipe_there = remaining.columns["recipes"][remaining.columns["recipe"][left[key]]]
            assert recipe_there.tolist() == own[row].tolist()
            assert remaining.columns["main_time"][left[key]] == times[row]
        else:
            expected = product_nets.choose(Problem(*key), nets, 132)
            assert (expected.recipe, times[row]) == (Recipe.of(own[row]), 0)
            assert expected.lead > product_nets.SURE_OF_NVJET - 0.01


def test_kernels_of_vectors_have_the_tile_that_they_were_made_for():
    sizes = [100, 97, 120, 10, 300, 9]  # 15 of 100 and 14 of 97 are seven blocks, of 16
    block_rows = [15, 14, 24, 10, 8, 9]
    rows = [recipe(1, n, kind="gemv", threads=768 if n == 24 else 64) for n in block_rows]
    rows.append(recipe(64, 64))
    keys = [[0, BF16, 0, 0, 1, 1, n, 64] for n in [*sizes, 64]]
    place = np.arange(7, dtype=np.int32)
    every = lessons.of_whole_blocks(lessons.Problems(np.array(keys, np.int32), place, np.array(rows, np.int32)))
    tiles = every.recipes[every.recipe][:, 1:3].tolist()
    # one block of 10 is one of 16, the tile seen most among those that are large enough
    assert tiles == [[1, 16], [1, 16], [1, 24], [1, 16], [1, 8], [1, 16], [64, 64]]
    for key, row, whole in zip(keys, rows, every.recipes[every.recipe], strict=True):
        assert fitted(Recipe.of(whole), Problem(*key), 132).n == row[2]


def test_many_recipes_are_launched_as_each_one():
    table = tables.table("products", get("H200"))
    rows = np.random.default_rng(2).choice(len(table), 300, replace=False)
    recipes, keys = table.columns["recipes"][table.columns["recipe"][rows]], table.keys[rows]
    recipes[::2] = recipes[1::2]  # of other problems
    expected = [
        fitted(Recipe.of(recipe), Problem(*key), 132) for recipe, key in zip(recipes, keys.tolist(), strict=True)
    ]
    assert [Recipe.of(row) for row in launched(recipes, keys, 132)] == expected
    assert any(one.cleared for one in expected)
    assert (launched(recipes, keys, 132) != recipes).any()


def test_a_product_with_a_matrix_stays_where_the_one_without_stays(tmp_path):
    recipes = np.array([recipe(64, 64), recipe(128, 64)], np.int32)
    keys = [[op, BF16, 0, 1, 1, m, 64, 64] for op, m in ((0, 128), (2, 128), (0, 256), (2, 256), (2, 512))]
    columns = {"recipe": np.array([0, 1, 1, 1, 1]), "recipes": recipes}
    columns |= {name: np.zeros(5, np.uint16) for name in ("main_time", "rest_time")}
    write(tmp_path / "all.npz", ABOUT, KEY, np.array(keys), columns)
    source = read(tmp_path / "all.npz")
    sure_recipes = launched(recipes[[1, 1, 1, 1, 1]], source.keys, 132)
    ranker.thin(source, sure_recipes, tmp_path / "thin.npz")
    assert read(tmp_path / "thin.npz").keys.tolist() == keys[:2]
