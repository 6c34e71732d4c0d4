"""Trees that tell kernels of float32: what they are grown from, and how they are stored."""

from types import SimpleNamespace

import numpy as np

from tileprof.harvest.products import product_trees
from tileprof.harvest.products.product_lessons import Lesson, Menu
from tileprof.record.model.tables import read
from tileprof.record.model.tables.product_entries import KINDS, POSTS, RECIPE
from tileprof.record.model.tables.trees import LEAF
from tileprof.record.model.tiles.products import kernel_trees

ABOUT = {"gpu": "NVIDIA H200", "architecture": "sm_90", "sms": 132, "library": "cublas", "version": "13.1.0"}


def recipe(kind="cutlass", m=64, n=64, split=1, post="none"):
    facts = {"kind": KINDS.index(kind), "m": m, "n": n, "cluster_m": 1, "cluster_n": 1, "split": split}
    facts["post"] = POSTS.index(post)
    return [facts.get(name, 0) for name in RECIPE]


def lesson_of(menu, sizes, candidate):
    keys = np.array([(0, 0, 0, 1, 1, *size) for size in sizes])
    rows = np.arange(len(keys))
    return Lesson(keys, np.zeros(len(keys), np.int64), np.array(candidate), rows, rows)


def menu_of(rows, kernel):
    recipes = np.array(rows, np.int32)
    return Menu(recipes, np.array(kernel), np.zeros(1, np.int64), np.ones((1, len(rows)), bool))


def tree(*nodes):
    """Return a classifier's tree: (feature, bound, low, high) of an inner node, (answer,) of a leaf."""
    inner = [node if len(node) == 4 else (0, 0.0, -1, -1) for node in nodes]
    feature, threshold, low, high = (np.array(column) for column in zip(*inner, strict=True))
    classes = sorted({node[0] for node in nodes if len(node) == 1})
    value = np.array([[[node == (own,) for own in classes]] for node in nodes], float)
    own = SimpleNamespace(feature=feature, threshold=threshold, children_left=low, children_right=high, value=value)
    return SimpleNamespace(tree_=own, classes_=np.array(classes))


def test_nodes_are_stored_in_order_of_depth_with_whole_bounds():
    deep_first = tree((2, 7.5, 1, 4), (0, 3.5, 2, 3), (10,), (20,), (30,))
    stored = product_trees.stored(deep_first)
    assert stored.feature.tolist() == [2, 0, LEAF, LEAF, LEAF]
    assert stored.bound.tolist() == [7, 3]
    assert stored.answer.tolist() == [30, 10, 20]


def test_slices_that_explain_most_problems_are_those_that_were_asked_for():
    # 44 slices are asked for; k is cut at multiples of 32 elements, so that 42 of 192 and 43 of 384 do.
    rows = [recipe(split=split, post="reduce") for split in (42, 43, 44)]
    menu = menu_of(rows, [0, 0, 0])
    lesson = lesson_of(menu, [(152, 128, 8064), (152, 128, 16384), (152, 128, 4224)], [0, 1, 2])
    assert product_trees.requested(lesson, menu).tolist() == [44, 44, 44]


def test_slices_of_kernels_that_cut_k_anywhere_are_as_launched():
    menu = menu_of([recipe("xmma", split=42, post="tiles"), recipe()], [0, 1])
    lesson = lesson_of(menu, [(152, 128, 8064), (152, 128, 64), (9, 9, 9)], [0, 1, -1])
    assert product_trees.requested(lesson, menu)[:2].tolist() == [42, 1]


def test_written_trees_tell_what_was_grown(tmp_path):
    menu = menu_of([recipe(), recipe(m=32), recipe(m=32, split=4, post="reduce")], [0, 1, 1])
    first = product_trees.stored(tree((0, 100.5, 1, 2), (1,), (0,)))  # m up to 100: kernel 1
    second = product_trees.stored(tree((2, 1_000_000.5, 1, 2), (1,), (2,)))  # longer k: four slices
    grown = product_trees.Grown(menu, np.array([[64, 64]]), (first, second))
    product_trees.write_trees(tmp_path / "trees.npz", ABOUT, {0: grown})
    table = read(tmp_path / "trees.npz")
    keys = np.array([[0, 0, 0, 1, 1, m, 64, k] for m, k in ((101, 64), (100, 1_000_000), (3, 1_000_001))])
    assert kernel_trees.candidates(keys, 0, table).tolist() == [0, 1, 2]


def test_trees_that_are_grown_tell_their_problems(tmp_path):
    menu = menu_of([recipe(), recipe("xmma", m=128), recipe("xmma", m=128, split=3, post="inside")], [0, 1, 1])
    sizes = [(m, 64, k) for m in (16, 96, 160, 512) for k in (64, 4096)]
    candidate = [0 if m < 128 else 1 + (k > 1000) for m, _, k in sizes]
    lesson = lesson_of(menu, sizes, candidate)
    grown = product_trees.grow(lesson, menu, most=100, bits=0.5)
    product_trees.write_trees(tmp_path / "trees.npz", ABOUT, {0: grown})
    table = read(tmp_path / "trees.npz")
    assert product_trees.right(table, 0, lesson, menu, lesson.test_rows).all()


def test_a_source_that_is_not_there_or_holds_nothing_ends_in_a_sentence(tmp_path, capsys):
    for source, words in ((tmp_path / "none", "there is no "), (tmp_path, "has no captures")):
        assert product_trees.main([str(source), "-o", str(tmp_path / "trees.npz")]) == 2
        assert words in capsys.readouterr().err
