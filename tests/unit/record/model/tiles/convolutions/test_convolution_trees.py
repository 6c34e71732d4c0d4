"""The launches that trees choose among those of near entries in the table of convolutions."""

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.record.model import tables
from tileprof.record.model.tables.file import Table
from tileprof.record.model.tables.trees import LEAF, worth
from tileprof.record.model.tiles.convolutions import convolution_table, convolution_trees, cudnn_engines
from tileprof.record.model.tiles.convolutions.convolution_key import Dtype, Layout, Pass
from tileprof.record.model.tiles.convolutions.measured_times import scaled_ns
from tileprof.record.model.tiles.products import library_heuristic
from tileprof.record.model.tiles.products import problem as products
from tileprof.trace.sources import ShapeSource

H200 = get("H200")


def key(
    what=Pass.FORWARD, layout=Layout.CONTIGUOUS, *, images=3, channels=(72, 120), size=19, taps=3, dtype=Dtype.BF16
):
    padding = taps // 2
    window = (1, taps, taps, 1, 1, 1, 0, padding, padding, 1, 1, 1, 0, 0, 0)
    return (int(what), int(dtype), int(layout), 2, 0, 1, images, *channels, 1, size, size, *window)


UNSEEN = [
    key(), key(Pass.INPUT_GRADIENT, dtype=Dtype.TF32), key(Pass.WEIGHT_GRADIENT, Layout.CHANNELS_LAST),
    key(taps=1, channels=(136, 88)), key(Pass.WEIGHT_GRADIENT, taps=1, dtype=Dtype.FP16), key(dtype=Dtype.FP32),
]  # fmt: skip


def table():
    return tables.table(convolution_table.FAMILY, H200)


def trees():
    return tables.table(convolution_table.RANKER, H200)


@pytest.fixture(autouse=True)
def tables_alone(monkeypatch):
    """Neither cuDNN nor NVIDIA's library of products is queried, whether they are installed or not."""
    monkeypatch.setattr(cudnn_engines, "engine", lambda *_: "")
    monkeypatch.setattr(library_heuristic, "proposals", lambda *_: [])
    table().derived.pop("entries", None)


def offered(of, engine=None):
    return convolution_table.candidates(table(), of, H200, engine)


def walked(nodes, root, seen):
    """Return the value of one tree, walked node by node."""
    node = root
    while nodes["feature"][node] != LEAF:
        way = "low" if seen[nodes["feature"][node]] <= nodes["at"][node] else "high"
        node = root + int(nodes[way][node])
    return float(nodes["at"][node])


@pytest.mark.parametrize("of", UNSEEN)
def test_the_candidate_of_the_largest_sum_is_launched(of):
    candidates = offered(of)
    group = convolution_trees.PLAIN if of[13] == 1 else convolution_trees.WINDOWS
    roots = trees().columns["root"][trees().keys[:, 0] == group].tolist()
    sums = [sum(walked(trees().columns, root, seen) for root in roots) for seen in candidates.features]
    best = convolution_trees.best(candidates, trees(), group)
    assert sums[best] == pytest.approx(max(sums), abs=1e-9)
    entry = convolution_table.entry_of(table(), of, H200, trees=trees())
    assert entry.source == ShapeSource.LEARNED
    chosen = table().columns["sequence"][candidates.entries[best]]
    first = table().columns["first"]
    numbers = table().columns["kernel"][first[chosen] : first[chosen + 1]]
    names = [str(table().columns["name"][number]) for number in numbers]
    assert [convolution_trees.kind(one.name) for one in entry.launches] == [
        convolution_trees.kind(name) for name in names
    ]


@pytest.mark.parametrize("of", UNSEEN)
def test_candidates_are_the_different_lists_of_near_entries_in_order_of_distance(of):
    candidates = offered(of)
    numbers, slices = convolution_trees.lists(table()).alike, convolution_trees.slices_of(table())
    sequence = table().columns["sequence"]
    lists = [(int(numbers[sequence[row]]), int(slices[row])) for row in candidates.near.tolist()]
    first = list(dict.fromkeys(lists))
    assert list(zip(candidates.alike.tolist(), candidates.slices.tolist(), strict=True)) == first
    assert candidates.entries.tolist() == [int(candidates.near[lists.index(one)]) for one in first]


def test_lists_of_the_same_kernels_in_both_types_of_16_bits_are_alike():
    assert convolution_trees.kind("nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT") == convolution_trees.kind(
        "nvjet_sm90_hsh_64x8_64x16_2x4_h_bz_TNT"
    )
    assert convolution_trees.kind("cudnn::nchwToNhwcKernel<__nv_bfloat16>") == convolution_trees.kind(
        "cudnn::nchwToNhwcKernel<__half>"
    )
    assert convolution_trees.kind("sm80_xmma_fprop_tf32f32") != convolution_trees.kind("sm80_xmma_fprop_f32f32")


@pytest.mark.parametrize("dtype", [Dtype.FP16, Dtype.BF16])
def test_kernels_are_named_for_the_type_of_the_call(dtype):
    entry = convolution_table.entry_of(table(), key(dtype=dtype), H200, trees=trees())
    other = {Dtype.FP16: "bf16", Dtype.BF16: "_f16"}[dtype]
    assert not any(other in one.name for one in entry.launches)


def test_ways_of_equal_worth_are_decided_by_nearness():
    of = UNSEEN[0]
    candidates = offered(of)
    leaf = {"root": [0], "feature": [LEAF], "at": [1.0], "low": [0], "high": [0]}
    flat = Table(
        {}, np.array([[convolution_trees.WINDOWS, 0]]), {name: np.array(values) for name, values in leaf.items()}
    )
    assert worth(candidates.features, flat, convolution_trees.WINDOWS).tolist() == [1.0] * len(candidates.entries)
    assert convolution_trees.best(candidates, flat, convolution_trees.WINDOWS) == 0


def test_a_window_of_one_tap_is_the_product_that_pytorch_would_be_asked_for():
    def product(of):
        return convolution_table.as_product(of).key[2:]

    def one(what, layout, size=19):
        return key(what, layout, taps=1, size=size)

    first, last = Layout.CONTIGUOUS, Layout.CHANNELS_LAST
    assert product(one(Pass.FORWARD, first)) == (0, 0, 3, 120, 361, 72)
    assert product(one(Pass.FORWARD, last)) == (0, 1, 1, 3 * 361, 120, 72)
    assert product(one(Pass.FORWARD, first, size=1)) == (0, 1, 1, 3, 120, 72)
    assert product(one(Pass.INPUT_GRADIENT, first)) == (1, 0, 3, 72, 361, 120)
    assert product(one(Pass.INPUT_GRADIENT, last)) == (0, 0, 1, 3 * 361, 72, 120)
    assert product(one(Pass.WEIGHT_GRADIENT, first)) == (0, 1, 3, 120, 72, 361)
    assert product(one(Pass.WEIGHT_GRADIENT, last)) == (1, 0, 1, 120, 72, 3 * 361)
    assert convolution_table.as_product(one(Pass.FORWARD, first)).op == products.BATCHES
    assert convolution_table.as_product(key()) is None


def test_a_product_is_offered_with_the_tile_that_the_table_of_products_has():
    of = key(taps=1, channels=(512, 512), size=14)
    product = convolution_table.product_choice(of, H200)
    candidates = offered(of)
    traits = convolution_trees.lists(table()).traits[table().columns["sequence"][candidates.entries]]
    names = [convolution_trees.TRAITS.index(name) for name in ("m", "n", "along_m", "along_n")]
    same = (traits[:, names] == product[:4]).all(axis=1) & (candidates.slices == product.slices)
    assert same.any()
    has_product = convolution_trees.of_product(table(), product)
    assert has_product[candidates.entries[same]].all()
    assert not has_product[candidates.entries[~same]].any()


def test_entries_of_an_engine_are_offered_however_far_they_are():
    of = UNSEEN[0]
    rare = int(np.bincount(table().columns["engine"])[1:].argmin()) + 1
    rows = np.flatnonzero(table().columns["engine"] == rare)
    of = tuple(table().keys[rows[0]].tolist())
    of = (*of[:6], of[6] + 1, *of[7:])
    assert rows[0] in offered(of, rare).near
    assert offered(of, rare).features.shape[1] == offered(of).features.shape[1]


def test_the_engine_that_cudnn_names_is_looked_up(monkeypatch):
    engines = table().columns["engines"].tolist()
    monkeypatch.setattr(cudnn_engines, "engine", lambda *_: engines[5])
    assert convolution_table.engine_of(table(), UNSEEN[0]) == 5
    entry = convolution_table.entry_of(table(), UNSEEN[0], H200, trees=trees())
    assert entry.source == ShapeSource.HEURISTIC
    monkeypatch.setattr(cudnn_engines, "engine", lambda *_: "99:1=1")
    assert convolution_table.engine_of(table(), UNSEEN[0]) == -1
    monkeypatch.setattr(cudnn_engines, "engine", lambda *_: "")
    assert convolution_table.engine_of(table(), UNSEEN[0]) is None


def test_entries_that_were_captured_have_no_time_and_get_one_from_those_that_were_timed():
    begin = np.cumsum(np.r_[0, np.diff(table().columns["first"])[table().columns["sequence"]]])
    times = np.maximum.reduceat(table().columns["time"], begin[:-1])
    assert 0.2 < np.mean(times > 0) < 0.8
    for row in np.random.default_rng(0).permutation(np.flatnonzero(times == 0))[:20].tolist():
        entry = convolution_table.entry_of(table(), tuple(table().keys[row].tolist()), H200)
        assert (entry.source, entry.timed) == (ShapeSource.TABLE, False)
        assert all(500 < one.ns < 1e8 for one in entry.launches)
    row = int(np.flatnonzero(times)[0])
    assert convolution_table.entry_of(table(), tuple(table().keys[row].tolist()), H200).timed


def test_the_time_of_a_call_lies_between_those_that_entries_of_the_same_kernels_give_it():
    of = UNSEEN[0]
    candidates = offered(of)
    entry = convolution_table.entry_of(table(), of, H200, trees=trees())
    best = convolution_trees.best(candidates, trees(), convolution_trees.group_of(of, engine=False))
    alike, sequence = convolution_trees.lists(table()).alike, table().columns["sequence"]
    chosen = int(candidates.entries[best])
    times = []
    for row in np.flatnonzero(alike[sequence] == alike[sequence[chosen]]).tolist():
        launches, measured = convolution_table.launches_of(table(), row), tuple(table().keys[row].tolist())
        if launches[0].ns:
            pairs = zip(launches, entry.launches, strict=True)
            times.append([scaled_ns(one, mine.grid, of, measured) for one, mine in pairs])
    assert times
    for one, each in zip(entry.launches, zip(*times, strict=True), strict=True):
        assert min(each) * 0.999 <= one.ns <= max(each) * 1.001
