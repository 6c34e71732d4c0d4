"""The training data of the trees for convolutions, and the data that they are tested with."""

import numpy as np

from tileprof.devices import get
from tileprof.harvest import grown_trees
from tileprof.harvest.convolutions import convolution_cases, convolution_ranker
from tileprof.record.model import tables
from tileprof.record.model.tables.trees import LEAF

KEYS = tables.table("convolutions", get("H200")).keys


def test_calls_of_a_held_out_weight_are_all_held_out():
    number, away = convolution_ranker.weights(KEYS), convolution_ranker.held_out(KEYS)
    held_out_numbers = set(number[away].tolist())
    assert not held_out_numbers & set(number[~away].tolist())
    assert len(held_out_numbers) == len(convolution_cases.held_out_weights()) == 503


def test_calls_of_one_weight_differ_in_images_type_and_layout_alone():
    number = convolution_ranker.weights(KEYS)
    same = KEYS[number == number[0]]
    assert len(same) > 1
    assert (same[:, [5, 7, 8, *range(12, 18)]] == same[0, [5, 7, 8, *range(12, 18)]]).all()


def test_every_call_is_of_one_pass_type_and_layout():
    kinds = convolution_ranker.kinds(KEYS)
    for names in (("forward", "input gradient", "weight gradient"), ("tf32", "fp32", "fp16", "bf16"),
                  ("contiguous", "channels last")):  # fmt: skip
        assert (sum(kinds[name].astype(int) for name in names) == 1).all()
    assert not (kinds["depthwise"] & kinds["grouped"]).any()
    assert not (kinds["1x1"] & kinds["3x3"]).any()


def test_a_tree_is_written_so_that_ways_lead_from_its_root():
    leaf = [{"leaf_value": value} for value in (1.0, 2.0, 3.0)]
    inner = {"split_feature": 7, "threshold": 0.5, "decision_type": "<=", "left_child": leaf[1], "right_child": leaf[2]}
    root = {"split_feature": 3, "threshold": 4.0, "decision_type": "<=", "left_child": leaf[0], "right_child": inner}
    assert list(grown_trees.nodes(root)) == [
        (3, 4.0, 1, 2), (LEAF, 1.0, 0, 0), (7, 0.5, 3, 4), (LEAF, 2.0, 0, 0), (LEAF, 3.0, 0, 0),
    ]  # fmt: skip


def test_the_report_gives_shares_by_kind():
    verdicts = np.array([[True, True, True], [False, True, True]])
    lines = list(convolution_ranker.report(KEYS[:2], verdicts))
    assert lines[0] == "all: 2, nearest 50.0%, chosen 100.0%, any 100.0%"
