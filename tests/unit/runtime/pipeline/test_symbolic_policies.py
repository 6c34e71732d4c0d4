"""One policy file for a range of sizes: proved for all, refused if it is unsound for one, with the same results at
each.
"""

from __future__ import annotations

import json
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.runtime.chains import CHAINS, matrix, weight
from tileprof.errors import UserError
from tileprof.policy.format import PolicyError, load_policy
from tileprof.policy.format.symbolic import Symbol, load_symbolic, symbolic_from_dict, text_of
from tileprof.runtime.chain import Chain
from tileprof.runtime.pipeline import FellBackWarning, Pipeline
from tileprof.runtime.sized_pipeline import SizedPipeline
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.symbolic import for_sizes, prove, spans_text


def products(rows: int, heights: tuple[int, int], along: str = "y") -> Chain:
    """Two products with tiles of different heights; the second adds what the first has read."""
    up = Gemm(
        matrix("x", rows, 48), weight("w1", 48, 80), matrix("h", rows, 80), matrix("b", 80), tile=(heights[0], 32),
        epilogue="relu",
    )  # fmt: skip
    down = Gemm(
        matrix("h", rows, 80), weight("w2", 80, 48), matrix("y", rows, 48), residual=matrix("x", rows, 48),
        tile=(heights[1], 16), rows_along=along,
    )  # fmt: skip
    return Chain(("up", "down"), (up, down))


def images(count: int) -> Chain:
    x, h, y = (matrix(name, count, 6, 6, 8) for name in "xhy")
    first = Conv2d(x, matrix("w1", 8, 3, 3, 8), h, tile=(24, 8), padding=1, epilogue="relu")
    return Chain(("first", "second"), (first, Conv2d(h, matrix("w2", 8, 3, 3, 8), y, tile=(16, 8), padding=1)))


def symbolic_policy(chain: Chain, text: str = "tokens=1..300"):
    proof, before = for_sizes(chain.policy(), Symbol.parse(text))
    assert proof.holds, proof.witness
    return proof, before


@pytest.mark.parametrize("count", [15, pytest.param(100, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("heights", "along"), [((16, 16), "y"), ((16, 24), "x"), ((40, 16), "y"), ((24, 64), "x")])
def test_a_proved_policy_is_sound_at_sizes_drawn_at_random(heights, along, count) -> None:
    proof, _ = symbolic_policy(products(70, heights, along))
    sizes = random.Random(5).sample(range(1, 301), count)
    for size in sizes:
        policy = proof.policy.at(size)
        assert Chain.of_policy(policy).operators == products(size, heights, along).operators
        assert products(size, heights, along).verify(policy).sound, size


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 200), other=st.integers(1, 200), first=st.integers(1, 40), second=st.integers(1, 40),
    along=st.sampled_from("xy"),
)  # fmt: skip
def test_sizes_with_the_same_numbers_of_row_tiles_have_the_same_relation(size, other, first, second, along) -> None:
    """Check the assumption of the proof on the bytes that the tiles touch."""
    chains = [products(n, (first, second), along) for n in (size, other)]
    if chains[0].operators[0].grid == chains[1].operators[0].grid and (
        chains[0].operators[1].grid == chains[1].operators[1].grid
    ):
        one, two = (np.unique(np.stack(chain.memory().needs()), axis=1) for chain in chains)
        assert np.array_equal(one, two)


def test_waits_that_hold_for_the_recorded_size_alone_break_with_a_witness() -> None:
    proof, before = symbolic_policy(products(16, (16, 16)), "tokens=1..100")
    assert before is not None
    assert spans_text(before.broken) == "17..100"
    assert before.witness.startswith("tokens = 17: tile (0, 0, 0) of down reads what tile (0, 0, 0) of up writes")
    assert proof.verified == 7


def test_convolutions_wait_for_their_halos_at_every_number_of_images() -> None:
    proof, _ = symbolic_policy(images(2), "images=1..12")
    assert proof.verified == 12
    for count in range(1, 13):
        assert images(count).verify(proof.policy.at(count)).sound


def test_a_guard_of_divisibility_has_only_its_sizes() -> None:
    proof, _ = symbolic_policy(products(64, (16, 16)), "tokens=32..320 step 32")
    assert proof.sizes == 10
    with pytest.raises(PolicyError, match="tokens is 48, which 32 does not divide"):
        proof.policy.at(48)
    with pytest.raises(PolicyError, match=r"tokens is 352; the policy is for tokens = 32\.\.320 step 32"):
        proof.policy.at(352)


def mutants(document):
    """Yield documents that wait for less, each with the change."""
    for number, edge in enumerate(document["policy"]["edges"]):
        for what, change in (
            ("value", {"value": f"({edge['value']}) - 1"}),
            (
                "one tile early",
                {
                    "waits": [
                        f"max(0, {w.partition('..')[0]} - 1)" if n == 0 else w for n, w in enumerate(edge["waits"])
                    ]
                },
            ),
            ("first of its tiles", {"waits": [w.partition("..")[0] for w in edge["waits"]]}),
            ("the first row", {"waits": ["0", "0", "0"]}),
        ):
            edges = list(document["policy"]["edges"])
            edges[number] = edge | change
            yield f"{number}: {what}", document | {"policy": document["policy"] | {"edges": edges}}
        other_edges = [e for n, e in enumerate(document["policy"]["edges"]) if n != number]
        yield f"{number}: no edge", document | {"policy": document["policy"] | {"edges": other_edges}}
    for number, array in enumerate(document["policy"]["semaphores"]):
        shifted_array = dict(array, of=[f"max(0, {array['of'][0]} - 1)", *array["of"][1:]])
        arrays = [shifted_array if n == number else a for n, a in enumerate(document["policy"]["semaphores"])]
        yield f"{number}: posts to the row before", document | {"policy": document["policy"] | {"semaphores": arrays}}


@pytest.mark.parametrize(
    "chain", [products(70, (16, 24)), products(70, (24, 16), "x"), images(2)], ids=["up", "down", "images"]
)
def test_no_mutant_that_waits_for_less_is_proved(chain) -> None:
    text = "images=1..6" if "first" in chain.names else "tokens=1..100"
    proof, _ = symbolic_policy(chain, text)
    refusals = 0
    for what, document in mutants(json.loads(text_of(proof.policy))):
        actual = prove(symbolic_from_dict(document))
        if actual.holds:
            for size in (1, 2, 6):
                verdict = chain_at(chain, size).verify(symbolic_from_dict(document).at(size))
                assert verdict.sound, f"{what}: proved, and unsound"
            assert "no edge" not in what
        else:
            refusals += 1
            assert actual.witness
            broken_size = actual.broken[0][0]
            assert not chain_at(chain, broken_size).verify(symbolic_from_dict(document).at(broken_size)).sound
    assert refusals >= 4


def chain_at(chain: Chain, size: int) -> Chain:
    heights = tuple(operator.tile[0] for operator in chain.operators)
    return images(size) if "first" in chain.names else products(size, heights, chain.operators[1].rows_along)


def test_a_file_serves_every_size_and_falls_back_outside_of_its_guard(tmp_path) -> None:
    proof, _ = symbolic_policy(products(32, (16, 16)), "tokens=1..100")
    path = tmp_path / "policy.json"
    path.write_text(text_of(proof.policy))
    assert load_symbolic(path) == proof.policy
    pipeline = Pipeline.from_policy(path)
    assert isinstance(pipeline, SizedPipeline)
    for size in (1, 16, 17, 100, 17):
        example = Pipeline(proof.policy.at(size)).example(seed=size)
        with warnings.catch_warnings():
            warnings.simplefilter("error", FellBackWarning)
            out = pipeline(**example)
        assert tuple(out.shape) == (size, 48)
        torch.testing.assert_close(out, pipeline.at(size).reference(example)["y"], rtol=1e-2, atol=1e-2)
    beyond = Pipeline(products(101, (16, 16)).policy()).example()
    with pytest.warns(FellBackWarning, match=r"tokens is 101; the policy is for tokens = 1\.\.100"):
        assert tuple(pipeline(*beyond.values()).shape) == (101, 48)
    with pytest.raises(UserError, match="lacks"):
        pipeline()
    with pytest.raises(PolicyError, match="range of sizes"):
        load_policy(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens", "write tokens="), ("x=1..4", "is not a name of a size"), ("tokens=4..1", "sizes are from 1"),
        ("tokens=0..4", "sizes are from 1"), ("tokens=3..9 step 2", "is not a multiple of the step"),
        ("Tokens=1..4", "is not a name of a size"),
    ],
)  # fmt: skip
def test_ranges_that_mean_nothing_are_refused(text, message) -> None:
    with pytest.raises(PolicyError, match=message):
        Symbol.parse(text)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ("split", "has a batch or split_k"), ("rows", "are products|is norm"),
        ("convolutions of stride 2", "of stride 2"),
    ],
)  # fmt: skip
def test_stages_that_have_no_common_rows_are_refused(chain, message) -> None:
    with pytest.raises(UserError, match=message):
        for_sizes(CHAINS[chain].policy(), Symbol.parse("tokens=1..4"))


@pytest.mark.parametrize(
    "damage",
    [
        {"tileprof_symbolic_policy": 2}, {"symbol": {}}, {"symbol": None}, {"policy": []}, {"notes": [1]},
        {"symbol": {"name": "tokens", "low": 1, "high": 2**40, "multiple": 1, "recorded": 32}},
        {"symbol": {"name": "tokens", "low": 1, "high": 9, "multiple": 1, "recorded": 32}},
        {"policy": {"tileprof_policy": 1, "stages": [{"name": "a", "grid": [{"size": "tokens ** 9"}, 1, 1]}]}},
        {"policy": {"tileprof_policy": 1, "stages": [{"name": "a", "grid": [{"size": "other"}, 1, 1]}]}},
    ],
)  # fmt: skip
def test_a_damaged_file_is_a_sentence(damage, tmp_path) -> None:
    proof, _ = symbolic_policy(products(32, (16, 16)), "tokens=1..100")
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({**proof.policy.to_dict(), **damage}))
    with pytest.raises(PolicyError, match=r"policy\.json: "):
        load_symbolic(path)


def test_too_many_sizes_of_convolutions_ask_for_a_smaller_range() -> None:
    chain = images(2)
    with pytest.raises(UserError, match="give a smaller range, or a step"):
        for_sizes(chain.policy(), Symbol.parse("images=1..1000"))
    operators = tuple(replace(o, stride=1) for o in chain.operators)
    assert operators == chain.operators
