"""Convolutions that are captured and never run: files of launches, and the listed cases."""

from itertools import islice

import numpy as np
import pytest

from tileprof.errors import UserError
from tileprof.harvest.convolutions import convolution_captures as captures
from tileprof.harvest.convolutions import convolution_cases
from tileprof.harvest.graph_captures import Launch

MEMSET = Launch("memset", (0, 0, 0), (0, 0, 0))
KERNEL = Launch("xmma", (4, 2, 1), (168, 384, 1024), (384, 1, 1), (2, 1, 1))
MEMSET_SEEN = ("memset", (0, 0, 0, 1, 1, 1, 0, 0), (0, 0, 0))
KERNEL_SEEN = ("xmma", (384, 1, 1, 2, 1, 1, 168, 1024), (4, 2, 1))


def written(tmp_path, seed, kind=None):
    """Write a file of one worker: two calls of the table and three drawn ones, of which the second failed."""
    columns = captures._LaunchColumns()
    columns.add(list(map(tuple, captures.table_cases()[:2].tolist())), [[MEMSET, KERNEL], [KERNEL]])
    cases = list(islice(captures.drawn_cases(seed, 0, kind), 3))
    columns.add(cases, [[KERNEL], None, [MEMSET, KERNEL, KERNEL]])
    path = tmp_path / "captures-00.npz"
    columns.write(path, 2, 1, kind, "{}")
    return path, cases


def test_each_case_gets_its_own_launches_back(tmp_path):
    path, cases = written(tmp_path, 1)
    answers = captures.read(path, 1)
    assert list(map(tuple, answers.cases.tolist())) == [cases[0], cases[2]]
    assert answers.launches == [(KERNEL_SEEN,), (MEMSET_SEEN, KERNEL_SEEN, KERNEL_SEEN)]
    again = captures.read(path, 1, again=True)
    assert np.array_equal(again.cases, captures.table_cases()[:2])
    assert again.launches == [(MEMSET_SEEN, KERNEL_SEEN), (KERNEL_SEEN,)]


def test_files_of_one_kind_of_layer_are_read_as_such(tmp_path):
    path, cases = written(tmp_path, 1, "depthwise")
    assert list(map(tuple, captures.read(path, 1).cases.tolist())) == [cases[0], cases[2]]
    assert all(case[5] == case[7] > 1 for case in cases)


def test_cases_of_another_seed_are_refused(tmp_path):
    path, _ = written(tmp_path, 1)
    with pytest.raises(UserError, match="other cases than seed 2"):
        captures.read(path, 2)


def test_captured_cases_are_the_same_again_and_none_is_held_out_nor_of_a_held_out_weight():
    cases = list(islice(captures.drawn_cases(3, 1), 2000))
    assert cases == list(islice(captures.drawn_cases(3, 1), 2000))
    assert len(set(cases)) == 2000
    assert not set(cases) & set(map(tuple, convolution_cases.held_out().tolist()))
    away = convolution_cases.held_out_weights()
    assert not away & set(map(tuple, convolution_cases.weights(np.array(cases)).tolist()))
    assert {case[:2] for case in cases} == {(what, dtype) for what in range(3) for dtype in range(4)}


def test_captured_layers_have_results_and_groups_that_divide_their_channels():
    keys = np.array(list(islice(captures.drawn_cases(4, 0), 2000)))
    assert (convolution_cases.result_sizes(keys[:, 3:]) > 0).all()
    assert not (keys[:, 7] % keys[:, 5]).any()
    assert not (keys[:, 8] % keys[:, 5]).any()
    layers, _ = convolution_cases.layers()
    real = {tuple(row) for row in np.delete(layers, 3, axis=1).tolist()}
    share = np.mean([tuple(row) in real for row in np.delete(keys[:, 3:], 3, axis=1).tolist()])
    assert 0.4 < share < 0.8


class Fake:
    """A driver in which every call launches one kernel."""

    def launches(self, cases):
        return [[KERNEL]] * len(cases)


def test_a_worker_writes_its_share_of_the_table_then_drawn_cases(tmp_path, monkeypatch):
    monkeypatch.setattr(captures, "ConvolutionCaptures", Fake)
    monkeypatch.setattr(captures, "machine", lambda: {"gpu": "none"})
    monkeypatch.setattr(captures, "start", lambda work, options: work(2, float("inf"), options))
    share = captures.table_cases()[2::3]
    captures.main(["-o", str(tmp_path), "--workers", "3", "--seed", "5", "--most", f"{len(share) + 40}"])
    path = tmp_path / "captures-02.npz"
    assert np.array_equal(captures.read(path, 5, again=True).cases, share)
    captured_cases = captures.read(path, 5)
    assert list(map(tuple, captured_cases.cases.tolist())) == list(islice(captures.drawn_cases(5, 2), 40))
    assert captured_cases.launches == [(KERNEL_SEEN,)] * 40
