"""Calls that are captured and never run. A driver that only keeps the chain of nodes stands for CUDA's."""

import ctypes
import re
from contextlib import nullcontext
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest

from tileprof import devices
from tileprof.errors import UserError
from tileprof.harvest import capture_workers, graph_captures
from tileprof.harvest.products import product_captures as captures
from tileprof.harvest.products import product_cases
from tileprof.harvest.products.product_cases import (
    Dtype,
    Op,
    are_held_out,
    held_out,
    held_out_pairs,
    of_held_out_layers,
)
from tileprof.record.model import tables


class Driver:
    """Keeps nodes as (kind, name, grid); handles are places from 1. ``spoilt`` makes the next capture invalid."""

    def __init__(self):
        self.nodes = []
        self.spoilt = False

    def __getattr__(self, name):
        """Return the method of a function's name: cuGraphDestroy is graph_destroy."""
        words = re.findall("[A-Z][a-z]+", name)
        return object.__getattribute__(self, "_".join(words).lower())

    def stream_begin_capture(self, stream, mode):
        assert mode == 2
        self.nodes = []
        return 0

    def stream_end_capture(self, stream, graph):
        status, self.spoilt = int(self.spoilt), False
        return status

    def stream_get_capture_info(self, stream, state, number, graph, nodes, edges, count):
        state._obj.value = 1
        if self.nodes:
            array = (ctypes.c_void_p * 1)(len(self.nodes))
            self.kept = array
            nodes._obj.contents = array
            count._obj.value = 1
        return 0

    def graph_node_get_dependencies(self, node, before, edge, count):
        count._obj.value = int(node.value > 1)
        before[0] = node.value - 1
        return 0

    def graph_node_get_type(self, node, kind):
        kind._obj.value = self.nodes[node.value - 1][0]
        return 0

    def graph_kernel_node_get_params(self, node, own):
        own = own._obj
        own.kernel = node.value
        own.grid[:], own.block[:], own.shared_bytes = self.nodes[node.value - 1][2], (128, 1, 1), 1024
        self.name = self.nodes[node.value - 1][1]
        return 0

    def kernel_get_function(self, function, kernel):
        function._obj.value = kernel.value
        return 0

    def func_get_name(self, name, function):
        name._obj.value = self.name.encode()
        return 0

    def func_get_attribute(self, value, attribute, function):
        value._obj.value = {1: 24, 4: 168}.get(attribute, 0)
        return 0

    def graph_kernel_node_get_attribute(self, node, attribute, value):
        assert attribute == 4
        value._obj.cluster[:] = (2, 1, 0)
        return 0

    def graph_destroy(self, graph):
        return 0


class Fake(graph_captures.Captures):
    """A library that launches one kernel per call, behind a memset if m is even; m of 7 raises, m of 9 spoils the
    capture.
    """

    def __init__(self):
        self._driver = Driver()
        self._functions = {}
        self._raw = None
        self._stream = None
        self._torch = SimpleNamespace(cuda=SimpleNamespace(stream=lambda _: nullcontext()))

    def _call(self, case):
        m, n = case[5:7]
        if m == 7:
            raise RuntimeError
        self._driver.spoilt |= m == 9
        if m % 2 == 0:
            self._driver.nodes.append((2, "", None))
        self._driver.nodes.append((0, f"kernel{m}", (m, n, 1)))
        self._functions.clear()


def case(m, n=3):
    return (Op.MM, Dtype.BF16, 0, 1, 1, m, n, 64, 0)


def names_and_grids(launches):
    return [None if some is None else [(one.name, one.grid) for one in some] for some in launches]


def test_each_call_gets_its_own_launches_in_their_order():
    launches = Fake().launches([case(1), case(2), case(4, 5)])
    memset = ("memset", (0, 0, 0))
    assert names_and_grids(launches) == [
        [("kernel1", (1, 3, 1))],
        [memset, ("kernel2", (2, 3, 1))],
        [memset, ("kernel4", (4, 5, 1))],
    ]
    assert launches[0][0].resources == (168, 128, 1024 + 24)
    assert (launches[0][0].block, launches[0][0].cluster) == ((128, 1, 1), (2, 1, 1))


def test_a_call_that_raises_is_marked_and_the_others_go_on():
    launches = names_and_grids(Fake().launches([case(1), case(7), case(7), case(3)]))
    assert launches == [[("kernel1", (1, 3, 1))], None, None, [("kernel3", (3, 3, 1))]]


def test_a_call_that_spoils_a_capture_is_found_and_the_others_are_kept():
    launches = names_and_grids(Fake().launches([case(1), case(3), case(9), case(5), case(7), case(11)]))
    assert [some is None for some in launches] == [False, False, True, False, True, False]
    assert launches[3] == [("kernel5", (5, 3, 1))]


def test_a_call_that_joins_two_streams_has_the_launches_of_both():
    fake = Fake()
    waits = {1: [], 2: [1], 3: [1], 4: [3], 5: [2, 4]}
    fake._waits_for = waits.__getitem__
    fake._launch = lambda node: node.value
    read = set()
    assert fake._new((1,), read) == [1]
    assert fake._new((2, 4), read) == [2, 3, 4]
    assert fake._new((5,), read) == [5]


def test_columns_tell_the_recipe_of_each_case_and_raw_launches_of_the_first_ones():
    name = "nvjet_sm90_tst_64x128_64x8_2x1_h_bz_splitK_TNT"  # 64 along n, 128 along m, a cluster of 2 along n
    none, reduce = (0, 0, 0), "_ZN8cublasLt19splitKreduce_kernelILi32E"
    copy = "_ZN2at6native29vectorized_elementwise_kernel"
    launch_columns = captures._LaunchColumns()
    resources = (168, 384, 1000)
    launches = [
        [captures.Launch("memset", none, none), captures.Launch(name, (8, 2, 3), resources)],
        None,
        [captures.Launch(copy, (1, 1, 1), none), captures.Launch(name, (8, 2, 3), resources)],
    ]
    launches[0].append(captures.Launch(reduce, (1, 1, 1), none))
    launch_columns.add([case(256, 512), case(1), case(256, 512)], launches)
    columns = launch_columns.arrays(1, captures.Drawn(wide=True))
    assert columns["asked"].tolist() == [1, 2, 1, 0, 0, 0, 0]
    assert columns["recipe"].tolist() == [0, -1, 1]
    words = [dict(zip(captures.RECIPE, row, strict=True)) for row in columns["recipes"].tolist()]
    assert [(row["m"], row["n"], row["cluster_m"], row["cluster_n"], row["split"]) for row in words] == [
        (128, 64, 1, 2, 3)
    ] * 2
    assert [(row["cleared"], row["post"]) for row in words] == [(1, 1), (0, 4)]
    assert columns["count"].tolist() == [3]
    assert columns["name"].tolist() == [0, 1, 2]
    assert columns["grid"].tolist() == [[0, 0, 0], [8, 2, 3], [1, 1, 1]]


def test_drawn_cases_are_the_same_again_fit_and_none_is_held_out():
    cases = list(islice(captures.drawn_cases(3, 1), 3000))
    assert cases == list(islice(captures.drawn_cases(3, 1), 3000))
    assert all(captures.fits(one) for one in cases)
    assert not set(cases) & set(map(tuple, held_out().tolist()))
    assert {one[0] for one in cases} == set(captures.OPS)


def test_widely_drawn_cases_have_many_layers_and_none_that_is_held_out():
    cases = np.array(list(islice(captures.drawn_cases(4, 0, captures.Drawn(wide=True)), 20_000)))
    assert not set(map(tuple, cases.tolist())) & set(map(tuple, held_out().tolist()))
    assert not of_held_out_layers(cases).any()
    assert set(cases[:, 0]) == set(captures.OPS)
    narrow = np.array(list(islice(captures.drawn_cases(4, 0), 20_000)))
    assert len(np.unique(cases[:, 6:8], axis=0)) > 1.5 * len(np.unique(narrow[:, 6:8], axis=0))


def test_cases_of_pairs_have_layers_whose_widths_are_of_models_and_none_that_is_held_out():
    cases = np.array(list(islice(captures.drawn_cases(4, 0, captures.Drawn(half=True, pairs=True)), 2000)))
    assert not of_held_out_layers(cases).any()
    near = [(one.inputs, one.outputs) for model in product_cases._split()[0] for one in product_cases.layers(model)]
    linear = cases[cases[:, 0] <= Op.ADDMM_MATRIX]
    inner = np.where(linear[:, 2], linear[:, 5], linear[:, 7])
    of_models = np.isin(linear[:, 6], near) & np.isin(inner, near)
    assert 0.5 < of_models.mean() < 0.95


def test_drawn_cases_of_float32_have_both_kinds_and_no_other_type():
    cases = list(islice(captures.drawn_cases(4, 0, captures.Drawn(wide=True, float32=True)), 500))
    assert {one[1] for one in cases} == {Dtype.FP32, Dtype.TF32}


def test_odd_cases_of_16_bits_have_rows_between_multiples_of_16_bytes_in_all_layouts():
    drawn = captures.Drawn(half=True, odd=True)
    cases = np.array(list(islice(captures.drawn_cases(4, 0, drawn), 2000)))
    assert set(cases[:, 1]) == {Dtype.FP16, Dtype.BF16}
    _, _, column_a, column_b, _, m, n, k, _ = cases.T
    rows = np.column_stack([np.where(column_a, m, k), np.where(column_b, k, n), n])
    assert (rows % 8).any(axis=1).all()
    assert set(cases[:, 0]) == set(captures.OPS)
    assert {(0, 0), (0, 1), (1, 0)} <= set(zip(column_a.tolist(), column_b.tolist(), strict=True))
    assert not of_held_out_layers(cases).any()


def test_layers_of_models_that_are_set_aside_are_known_in_all_three_products():
    low, high = min(held_out_pairs())
    forward = (Op.MM, Dtype.BF16, 0, 1, 1, 77, high, low)
    assert of_held_out_layers(
        np.array([forward, (*forward[:3], 0, 1, 77, low, high), (*forward[:2], 1, 0, 1, high, low, 77)])
    ).all()
    assert not of_held_out_layers(np.array([(Op.BMM, *forward[1:]), (*forward[:6], high, low + 1)])).any()
    assert of_held_out_layers(held_out()).mean() > 0.2


def test_held_out_products_are_known_with_and_without_a_matrix_to_add_and_no_table_has_them():
    cases = held_out()[np.isin(held_out()[:, 0], (Op.MM, Op.BMM))]
    with_matrix = cases + np.where(cases[:, :1] == Op.MM, Op.ADDMM_MATRIX, Op.BADDBMM - Op.BMM) * (np.arange(9) == 0)
    assert are_held_out(cases).all()
    assert are_held_out(with_matrix[:, :8]).all()
    assert not are_held_out(tables.table("products", devices.get("H200")).keys).any()
    deeper = cases[cases[:, 0] == Op.BMM] + 3 * (np.arange(9) == 7)
    assert not are_held_out(deeper).any()


def test_known_cases_are_a_part_of_the_harvest():
    cases = captures.launched_cases(1500)
    assert 300 < len(cases) < 500
    assert np.isin(cases[:, 0], captures.OPS).all()


@pytest.mark.parametrize("flags", [[], [1], [0, 1], [0, 0, 1, 1], [0, 0, 1, 0, 1]])
def test_a_folder_without_launched_cases_is_read_again(tmp_path, flags):
    cases = list(islice(captures.drawn_cases(2, 0, captures.Drawn(*map(bool, flags))), 4))
    recipes = {"recipe": np.array([0, -1, 1, 0]), "recipes": np.arange(26).reshape(2, 13)}
    columns = {"asked": np.array([0, 4, *flags]), **recipes}
    np.savez(tmp_path / "captures-00.npz", **columns)
    answers = captures.read(tmp_path, launched=0, seed=2)
    assert answers.keys.tolist() == [list(cases[i][:8]) for i in (0, 2, 3)]
    assert answers.recipes[answers.recipe].tolist() == [list(range(13)), list(range(13, 26)), list(range(13))]


def test_a_folder_in_which_nothing_was_captured_is_told_from_one_that_has_answers(tmp_path):
    nothing = {"asked": np.array([0, 0]), "recipe": np.zeros(0, np.int32), "recipes": np.zeros((0, 13), np.int32)}
    np.savez(tmp_path / "captures-00.npz", **nothing)
    with pytest.raises(UserError, match="captures of no product: capture again, with more --seconds"):
        captures.read(tmp_path, launched=0, seed=2)


def test_cases_are_captured_in_batches_until_there_are_none_or_the_time_is_over():
    cases = [case(m) for m in (1, 3, 5)]
    batches = list(capture_workers.batches(Fake(), cases, 2, end=float("inf")))
    assert [batch for batch, _ in batches] == [cases[:2], cases[2:]]
    assert [names_and_grids(launches) for _, launches in batches] == [
        [[("kernel1", (1, 3, 1))], [("kernel3", (3, 3, 1))]],
        [[("kernel5", (5, 3, 1))]],
    ]
    assert not list(capture_workers.batches(Fake(), cases, 2, end=0))


def test_a_worker_writes_its_share_of_launched_cases_then_drawn_ones(tmp_path, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(capture_workers, "time", SimpleNamespace(time=lambda: next(clock)))
    monkeypatch.setattr(captures, "ProductCaptures", Fake)
    monkeypatch.setattr(captures, "machine", lambda: {"gpu": "none"})
    options = ["-o", str(tmp_path), "--launched", "1500", "--workers", "3", "--seed", "2"]
    monkeypatch.setattr(captures, "start", lambda work, options: work(1, 5, options))
    captures.main(options)
    launched = captures.launched_cases(1500)[1::3]
    with np.load(tmp_path / "captures-01.npz") as file:
        first, more, *flags = file["asked"].tolist()
        assert (first, more, *flags) == (len(launched), (5 - 3) * 96, 0, 0, 0, 0, 0)
        assert len(file["recipe"]) == first + more
        small = next(place for place, one in enumerate(launched) if one[5] % 2 and one[5] not in (7, 9))
        begin = int(np.maximum(file["count"][:small], 0).sum())
        assert file["grid"][begin].tolist() == [*launched[small][5:7], 1]


def write_options(worker, end, options):
    (options.output / f"{worker}").write_text(f"{options.seed} of {options.workers}")
    if worker == 1:
        raise SystemExit(options.seed)


def test_each_process_gets_its_number_and_one_that_fails_fails_the_command(tmp_path):
    parser = capture_workers.option_parser("products.product_captures", "captures")
    for seed, code in ((0, 0), (3, 1)):
        options = parser.parse_args(["-o", str(tmp_path), "--workers", "2", "--seed", f"{seed}"])
        assert capture_workers.start(write_options, options) == code
        assert [(tmp_path / f"{worker}").read_text() for worker in range(2)] == [f"{seed} of 2"] * 2
