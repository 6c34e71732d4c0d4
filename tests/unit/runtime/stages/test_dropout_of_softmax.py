"""Dropout of a softmax stage: the same elements on the CPU and in the kernel, and the requested share."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.runtime.chains import attention, matrix
from tileprof.errors import UserError
from tileprof.runtime.pipeline import Pipeline
from tileprof.runtime.stages import dropout, operator_of
from tileprof.runtime.stages.rows import Softmax

SOFTMAX = Softmax(matrix("x", 37, 50), matrix("y", 37, 50), rows=4, dropout=0.3, seed=7)
MODULUS = 2**32


def by_hand(seed: int, number: int) -> int:
    """Compute Philox4x32-10 as its paper defines it, in Python's unbounded numbers."""
    counter = [number % MODULUS, number // MODULUS, 0, 0]
    key = [seed % MODULUS, seed // MODULUS]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            second // MODULUS ^ counter[1] ^ key[0], second % MODULUS,
            first // MODULUS ^ counter[3] ^ key[1], first % MODULUS,
        ]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) % MODULUS, (key[1] + 0xBB67AE85) % MODULUS]
    return counter[0]


def result(operator: Softmax, order=None) -> torch.Tensor:
    torch.manual_seed(0)
    out = torch.full(operator.out.shape, float("nan"), dtype=torch.float16)
    tensors = {"x": torch.randn(operator.x.shape).half(), "out": out}
    for tile in order or range(operator.tiles):
        operator.run_tile(tile, 0, 0, tensors)
    return out


def test_the_words_are_those_of_the_published_test_vector() -> None:
    """Random123's kat_vectors: philox4x32, 10 rounds, counter and key 0, gives 6627e8d5 first."""
    assert dropout.words(0, torch.zeros(1, dtype=torch.int64)).tolist() == [0x6627E8D5]


@given(st.integers(0, dropout.MOST_SEED), st.lists(st.integers(0, 2**62), min_size=1, max_size=5))
def test_words_are_philox_for_any_seed_and_number(seed: int, numbers: list[int]) -> None:
    assert dropout.words(seed, torch.tensor(numbers)).tolist() == [by_hand(seed, number) for number in numbers]


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("seed", "share"),
    [
        pytest.param(seed, share, marks=[pytest.mark.nightly] if (n - m) % 3 else [])
        for n, seed in enumerate([0, 7, 2**31, 2**33 + 5, dropout.MOST_SEED])
        for m, share in enumerate([0.1, 0.5, 0.9])
    ],
)  # each seed and each share in the gate
def test_the_kernel_drops_the_same_elements_as_the_cpu_bit_for_bit(seed: int, share: float) -> None:
    pytest.importorskip("triton")
    from tileprof.runtime.kernels.triton_launch import Hooks, kernel_of

    operator = replace(SOFTMAX, dropout=share, seed=seed)
    x, out = torch.zeros(operator.x.shape, dtype=torch.float16), torch.full(operator.out.shape, float("nan")).half()
    kernel_of(operator).launch({"x": x, "out": out}, (torch.zeros(1, dtype=torch.int32),) * 7, Hooks(0, operator.tiles))
    mask = dropout.apply(torch.ones(operator.x.shape), share, seed) != 0
    assert torch.equal(out != 0, mask)
    assert not out.isnan().any()


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_word_that_equals_the_threshold_is_kept_on_both_sides() -> None:
    pytest.importorskip("triton")
    assert dropout.threshold(by_hand(7, 5) / 2**32) == by_hand(7, 5)
    test_the_kernel_drops_the_same_elements_as_the_cpu_bit_for_bit(7, by_hand(7, 5) / 2**32)
    assert dropout.apply(torch.ones(37, 50), by_hand(7, 5) / 2**32, 7)[0, 5] > 0


def test_the_mask_depends_on_neither_tiling_nor_order() -> None:
    expected = result(SOFTMAX)
    assert torch.equal(result(SOFTMAX, range(SOFTMAX.tiles)[::-1]), expected)
    for rows in (1, 7, 37):
        assert torch.equal(result(replace(SOFTMAX, rows=rows)), expected)


def test_a_large_matrix_worked_on_in_parts_has_the_mask_of_one_piece(monkeypatch) -> None:
    whole = dropout.apply(torch.ones(37, 50), 0.3, 7)
    monkeypatch.setattr(dropout, "_AT_A_TIME", 120)
    assert torch.equal(dropout.apply(torch.ones(37, 50), 0.3, 7), whole)


def test_another_seed_drops_others() -> None:
    assert not torch.equal(result(SOFTMAX) == 0, result(replace(SOFTMAX, seed=8)) == 0)


def test_the_share_asked_for_is_dropped_and_the_sum_is_kept_on_average() -> None:
    value = dropout.apply(torch.ones(1000, 1000), 0.3, 3)
    assert float((value == 0).double().mean()) == pytest.approx(0.3, abs=0.002)
    assert float(value.double().mean()) == pytest.approx(1, abs=0.005)
    assert value.unique().tolist() == pytest.approx([0, 1 / 0.7])


def test_without_dropout_nothing_changes_and_a_policy_does_not_mention_it() -> None:
    plain = replace(SOFTMAX, dropout=0.0, seed=0)
    assert plain.describe()["parameters"] == {"rows": 4}
    assert operator_of(plain.describe()) == plain
    assert (result(plain) > 0).all()


def test_a_policy_carries_share_and_seed() -> None:
    message = SOFTMAX.describe()
    assert message["parameters"] == {"rows": 4, "dropout": 0.3, "seed": 7}
    assert operator_of(message) == SOFTMAX


def test_attention_with_dropout_agrees_with_its_formula() -> None:
    pipeline = Pipeline(attention(0.25).policy())
    inputs = pipeline.example(seed=1)
    q, k, v = (inputs[name].float() for name in "qkv")
    share = torch.softmax(q @ k * 8**-0.5, dim=-1)
    numbers = torch.arange(share.numel()).reshape(share.shape)
    keep_mask = torch.tensor([by_hand(11, n) >= 2**30 for n in numbers.flatten().tolist()]).reshape(share.shape)
    expected = (share * keep_mask / 0.75) @ v
    assert torch.allclose(pipeline(**inputs).float(), expected, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dropout": 1.0}, r"dropout is 1.0; it is the share .* from 0 to below 1"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"dropout": "half"}, "wrong type"),
        ({"seed": -1}, "the seed is -1; it is a whole number from 0"),
        ({"seed": 1.5}, "the seed is 1.5"),
        ({"seed": 2**63}, "the seed is 9223372036854775808"),
    ],
)
def test_invalid_shares_and_seeds_are_refused(parameters: dict, message: str) -> None:
    description = SOFTMAX.describe()
    with pytest.raises(UserError, match=message):
        operator_of(description | {"parameters": description["parameters"] | parameters})
