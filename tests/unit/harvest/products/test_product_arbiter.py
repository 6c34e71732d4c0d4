"""Trees that choose between nets and NVIDIA's library: what they are grown from, and how they are written."""

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.harvest.grown_trees import of_boosting, write_trees
from tileprof.harvest.products import product_arbiter
from tileprof.harvest.products.product_lessons import Problems, held_out_layers, layer
from tileprof.record.model.tables import read
from tileprof.record.model.tables.product_entries import Recipe
from tileprof.record.model.tables.trees import worth
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.product_nets import Expected

ABOUT = {
    "gpu": "x",
    "architecture": "sm_90",
    "sms": 132,
    "library": "cublas",
    "version": "1",
    "torch": "2",
    "cuda": "13",
}
RIGHT, OTHER = (128, 128, 2, 1, 1), (64, 256, 1, 2, 1)


def recipe(shape, kind="nvjet"):
    m, n, *cluster, split = shape
    return Recipe(kind, m, n, 64, 4, tuple(cluster), split, cleared=False, post="none", threads=384, registers=168,
                  shared_bytes=1)  # fmt: skip


def problems_of(count, **changes):
    """Bf16 products of many layers, whose right kernel is `RIGHT`."""
    keys = np.zeros((count, 8), np.int32)
    keys[:, 1], keys[:, 4], keys[:, 5], keys[:, 6] = problems.BF16, 1, 64, 8 * np.arange(1, count + 1)
    keys[:, 7] = 512
    for name, value in changes.items():
        keys[:, problems.KEY.index(name)] = value
    return Problems(keys, np.zeros(count, np.int32), np.array([recipe(RIGHT).numbers], np.int32))


@pytest.fixture
def _asked(monkeypatch):
    """The nets are right for odd multiples of 8, the library for others."""

    def nets(problem, *_):
        return Expected(recipe(RIGHT if problem.n // 8 % 2 else OTHER), 1.0, {RIGHT: 2.0, OTHER: 3.0})

    monkeypatch.setattr(product_arbiter.product_nets, "choose", nets)
    monkeypatch.setattr(
        product_arbiter.gemm_kernel_choice, "library_proposal",
        lambda problem, *_: recipe(OTHER if problem.n // 8 % 2 else RIGHT),
    )  # fmt: skip


@pytest.mark.usefixtures("_asked")
def test_examples_are_of_layers_that_the_nets_did_not_learn_from():
    every = problems_of(3000)
    some = product_arbiter.examples(every, 40, None, None, get("H200"))
    assert len(some.keys) == 40
    assert held_out_layers(layer(some.keys)).all()
    assert (some.nets == (some.keys[:, 6] // 8 % 2 == 1)).all()
    assert (some.library == ~some.nets).all()
    assert set(some.features[some.nets, 1]) == {3.0}, "the library proposes the other one, whose deficit is 3"


@pytest.mark.usefixtures("_asked")
@pytest.mark.parametrize("change", [{"dtype": problems.FP32}, {"k": 513}])
def test_products_that_nvjet_does_not_serve_are_no_examples(change):
    assert not len(product_arbiter.examples(problems_of(3000, **change), 40, None, None, get("H200")).keys)


def random_examples(count=600):
    """The library is right where the deficit is small or k is short."""
    random = np.random.default_rng(0)
    keys = problems_of(count).keys.astype(np.int64)
    features = random.uniform(0, 30, (count, 9)).astype(np.float32)
    library = (features[:, 1] < 12) | (features[:, 4] < 6)
    return product_arbiter.Examples(keys, features, ~library, library)


def test_trees_come_back_from_their_file_as_they_were_grown(tmp_path):
    some = random_examples()
    model = product_arbiter.grown(some.features, some.library)
    write_trees(tmp_path / "trees.npz", ABOUT, {0: of_boosting(model)}, "a test")
    sums = worth(some.features, read(tmp_path / "trees.npz"), 0)
    np.testing.assert_allclose(sums, model.decision_function(some.features), atol=1e-4)
    assert ((sums > 0) == some.library).mean() > 0.95


def test_the_arbiter_is_tested_by_layers_that_it_was_not_grown_from():
    facts = product_arbiter.tested(random_examples())
    assert facts["either"] == 1.0
    assert facts["arbiter"] > max(facts["nets"], facts["library"]) + 0.1
    blind = random_examples()
    shuffled = np.random.default_rng(1).permutation(blind.library)
    lost = product_arbiter.tested(product_arbiter.Examples(blind.keys, blind.features, ~shuffled, shuffled))
    assert lost["arbiter"] < facts["arbiter"] - 0.1, "what cannot be told is not told by the trees of its own half"


def test_without_the_library_the_command_ends_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(product_arbiter.library_heuristic, "proposals", lambda *_: [])
    words = ["nowhere", "--nets", "nets.npz", "--table", "table.npz", "-o", str(tmp_path / "out.npz")]
    assert product_arbiter.main(words) != 0
    assert "pip install nvidia-matmul-heuristics" in capsys.readouterr().err
