"""The kernel of a product: given by the user, from the table, like a near entry, as a library proposes, or by rule."""

import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from tests.unit.record.model.tiles.oracle import assert_each_byte_written_once
from tileprof.devices import get
from tileprof.record.model import among_others, duration, tables
from tileprof.record.model.tables.product_entries import recipe_of, time_code, time_ns
from tileprof.record.model.tile_model import Operand
from tileprof.record.model.tiles.foundations import overrides
from tileprof.record.model.tiles.products import gemm_kernel_choice, library_heuristic, neighbours
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.gemm_kernels import Product, kernels
from tileprof.record.model.tiles.products.library_heuristic import Proposal
from tileprof.record.model.tiles.products.problem import Problem
from tileprof.record.model.tiles.products.split_k import reduce_blocks
from tileprof.trace.footprint import ATOMIC, READ, WRITE
from tileprof.trace.sources import ShapeSource, TimeSource

H200 = get("H200")


@pytest.fixture(autouse=True)
def _no_library(monkeypatch):
    """The library is optional; tests give the same results where it is installed."""
    monkeypatch.setattr(library_heuristic, "proposals", lambda *_: [])


@pytest.fixture
def _believed(monkeypatch):
    """What the library proposes is believed."""
    monkeypatch.setattr(gemm_kernel_choice.arbiter, "believes_library", lambda *_: True)


def table():
    return tables.table("products", H200)


def shape(choice):
    return choice.tile.m, choice.tile.n, *choice.tile.cluster, choice.tile.split


def entries(count, where):
    """Return some measured 16-bit or 32-bit entries of the table, always the same ones."""
    known_table = table()
    rows = np.flatnonzero(where(known_table.keys) & (known_table.columns["main_time"] > 0))
    return np.random.default_rng(0).choice(rows, count, replace=False).tolist()


def product(m, n, k, dtype="bfloat16", itemsize=2, *, weight=True):
    def matrix(rows, columns, column, ref):
        return Operand((1, rows, columns), (0, *((1, rows) if column else (columns, 1))), dtype, itemsize, ref=ref)

    return Product(matrix(m, k, False, 0), matrix(k, n, weight, 1), matrix(m, n, False, 2))


def test_a_product_that_was_measured_gets_its_kernels_and_its_time():
    known_table = table()
    for row in entries(50, lambda keys: keys[:, 0] <= problems.BATCHES):
        problem, recipe = Problem(*known_table.keys[row].tolist()), recipe_of(known_table, row)
        choice = gemm_kernel_choice.measured(problem, known_table, H200)
        assert (choice.source, choice.time_source) == (ShapeSource.TABLE, TimeSource.CALIBRATED)
        assert shape(choice) == (recipe.m, recipe.n, *recipe.cluster, recipe.split)
        assert choice.main_ns == time_ns(int(known_table.columns["main_time"][row])) > 0


def test_an_answer_of_the_library_gets_a_time_of_launches_near_it():
    known_table = table()
    answered = np.flatnonzero((known_table.keys[:, 0] == problems.PLAIN) & (known_table.columns["main_time"] == 0))
    for row in np.random.default_rng(0).choice(answered, 20, replace=False).tolist():
        problem = Problem(*known_table.keys[row].tolist())
        choice = gemm_kernel_choice.measured(problem, known_table, H200)
        assert (choice.source, choice.time_source) == (ShapeSource.TABLE, TimeSource.INTERPOLATED)
        assert choice.main_ns + choice.rest_ns == pytest.approx(
            neighbours.times(problem, known_table, fitted(recipe_of(known_table, row), problem, H200.sms))
        )


def test_most_omitted_entries_are_predicted_by_near_entries():
    known_table = table()
    rows = entries(150, lambda keys: (keys[:, 0] == problems.PLAIN) & (keys[:, 1] <= problems.BF16))
    right, errors = 0, []
    for row in rows:
        recipe = recipe_of(known_table, row)
        choice = gemm_kernel_choice.measured(Problem(*known_table.keys[row].tolist()), known_table, H200, exact=False)
        assert (choice.source, choice.time_source) == (ShapeSource.LEARNED, TimeSource.INTERPOLATED)
        right += shape(choice) == (recipe.m, recipe.n, *recipe.cluster, recipe.split)
        real = sum(time_ns(int(known_table.columns[name][row])) for name in ("main_time", "rest_time"))
        errors.append(abs((choice.main_ns + choice.rest_ns) / real - 1))
    assert right > 0.7 * len(rows), "0.84 of a thousand when the nets were trained"
    assert median(errors) < 0.1, "0.06 when the table was made"


def test_no_held_out_product_is_in_the_table(request):
    lines = (request.config.rootpath / "tests/gpu/harvest/held_out_products.csv").read_text().splitlines()[1:]
    known_table = table()
    assert [line for line in lines if known_table.row(tuple(map(int, line.split(",")[:8]))) is not None] == []


def test_other_gpus_get_the_rule_and_say_so():
    for device in (get("H100"), get("B200"), replace(H200, sms=66)):
        launches = kernels(product(512, 4096, 4096), device, op=problems.PLAIN)
        assert {kernel.shape_source for kernel in launches} == {ShapeSource.RULE}
        assert {kernel.time_source for kernel in launches} == {TimeSource.ROOFLINE}


def test_a_gpu_without_a_table_gets_what_the_library_proposes(monkeypatch):
    monkeypatch.setattr(library_heuristic, "proposals", lambda *_: [Proposal(128, 256, (2, 1), 1, 4, 64)])
    launches = kernels(product(1024, 4096, 4096), get("H100"), op=problems.PLAIN)
    assert {kernel.shape_source for kernel in launches} == {ShapeSource.HEURISTIC}
    odd = kernels(product(1024, 4096, 4097), get("H100"), op=problems.PLAIN)
    assert {kernel.shape_source for kernel in odd} == {ShapeSource.RULE}


def test_what_the_user_dictates_wins_over_the_table():
    with overrides.override("gemm=128x128x64,split=1"):
        [kernel] = kernels(product(512, 4096, 4096), H200, op=problems.PLAIN)
    assert (kernel.shape_source, kernel.grid) == (ShapeSource.DICTATED, (4, 32, 1))


def test_products_that_are_no_operation_of_the_table_follow_the_rule():
    assert {k.shape_source for k in kernels(product(64, 64, 64), H200, name="ger")} == {ShapeSource.RULE}


def test_times_of_the_table_are_those_of_the_launches():
    known_table = table()
    row = known_table.row((problems.PLAIN, problems.BF16, 0, 1, 1, *_measured_sizes()))
    launches = kernels(product(*_measured_sizes()), H200, op=problems.PLAIN)
    total = sum(duration.model(kernel, H200, weight_bytes=1 << 40).launch_ns for kernel in launches)
    expected = sum(time_ns(int(known_table.columns[name][row])) for name in ("main_time", "rest_time"))
    assert total == pytest.approx(expected * among_others.COLD, rel=0.01)
    assert {kernel.time_source for kernel in launches} == {TimeSource.CALIBRATED}


def _measured_sizes():
    """Return a bf16 product of a linear layer whose slices of k a second launch adds up."""
    known_table = table()
    for row in entries(400, lambda keys: (keys[:, :5] == (problems.PLAIN, problems.BF16, 0, 1, 1)).all(axis=1)):
        if recipe_of(known_table, row).post == "reduce":
            return tuple(known_table.keys[row, 5:].tolist())
    raise AssertionError("no such entry")


def test_without_trees_the_nearest_entry_counts(monkeypatch):
    products, near = table(), neighbours.nearest(NEW, table(), 1)[0]
    monkeypatch.setattr(products, "derived", {})
    monkeypatch.setattr(gemm_kernel_choice.tables, "table", lambda *_: None)
    choice = gemm_kernel_choice.measured(NEW, products, H200)
    assert choice.source == ShapeSource.NEIGHBOUR
    nearest = recipe_of(products, int(near[0]))
    assert shape(choice)[:4] == (nearest.m, nearest.n, *nearest.cluster)


NEW = Problem(problems.PLAIN, problems.BF16, 0, 1, 1, 1111, 4160, 4160)
"""A product that is not in the table, and gets an nvjet kernel."""


@pytest.mark.usefixtures("_believed")
def test_the_library_proposes_what_no_entry_tells(monkeypatch):
    proposal = Proposal(128, 256, (2, 1), 1, 4, 64)
    monkeypatch.setattr(library_heuristic, "proposals", lambda *_: [proposal])
    assert table().row(NEW.key) is None
    choice = gemm_kernel_choice.measured(NEW, table(), H200)
    assert (choice.source, shape(choice)) == (ShapeSource.HEURISTIC, (128, 256, 2, 1, 1))
    assert choice.cleared, "85 clusters do not run at once on 132 SMs: a counter deals them out"


def test_a_proposal_that_is_not_believed_changes_nothing(monkeypatch):
    expected = shape(gemm_kernel_choice.measured(NEW, table(), H200))
    asked = []
    monkeypatch.setattr(library_heuristic, "proposals", lambda *_: [Proposal(8, 8, (1, 1), 1, 4, 64)])
    monkeypatch.setattr(gemm_kernel_choice.arbiter, "believes_library", lambda *words: bool(asked.append(words)))
    choice = gemm_kernel_choice.measured(NEW, table(), H200)
    assert (choice.source, choice.kind, shape(choice)) == (ShapeSource.LEARNED, "nvjet", expected)
    [(problem, nets, proposed, _)] = asked
    assert (problem, proposed) == (NEW, (8, 8, 1, 1, 1))
    assert nets.deficits[expected] == 0.0
    assert sorted(nets.deficits.values())[1] == pytest.approx(nets.lead)


def test_a_proposal_that_the_nets_expect_counts_as_learnt(monkeypatch):
    m, n, *cluster, split = shape(gemm_kernel_choice.measured(NEW, table(), H200))
    monkeypatch.setattr(library_heuristic, "proposals", lambda *_: [Proposal(m, n, tuple(cluster), split, 4, 64)])
    monkeypatch.setattr(gemm_kernel_choice.arbiter, "believes_library", lambda *_: pytest.fail("both are the same"))
    assert gemm_kernel_choice.measured(NEW, table(), H200).source == ShapeSource.LEARNED


@pytest.mark.usefixtures("_believed")
def test_slices_that_the_library_proposes_are_added_up(monkeypatch):
    monkeypatch.setattr(library_heuristic, "proposals", lambda *_: [Proposal(64, 64, (1, 2), 3, 8, 64)])
    choice = gemm_kernel_choice.measured(NEW, table(), H200)
    assert (choice.tile.split, choice.post, choice.cleared) == (3, "reduce", False)


@pytest.mark.usefixtures("_believed")
def test_products_with_a_bias_get_a_proposal_that_was_seen_with_one(monkeypatch):
    biased = replace(NEW, op=problems.BIAS)
    menu_entry = next(iter(neighbours.menu(biased, table())))
    unseen, known_table = Proposal(7, 7, (1, 1), 1, 4, 64), Proposal(*menu_entry[:2], tuple(menu_entry[2:]), 1, 4, 64)
    monkeypatch.setattr(library_heuristic, "proposals", lambda *_: [unseen, known_table])
    assert shape(gemm_kernel_choice.measured(biased, table(), H200)) == (*menu_entry, 1)
    assert shape(gemm_kernel_choice.measured(NEW, table(), H200)) == (7, 7, 1, 1, 1)


def test_a_counter_is_cleared_before_a_kernel_that_deals_out_its_tiles():
    launches = kernels(product(8192, 8192, 4096), H200, op=problems.PLAIN)
    assert launches[0].name == "memset"
    clear, main = launches
    assert clear.operands[0].slot == main.operands[-1].slot == 1
    updates = main.footprint.boxes.take(main.footprint.boxes.mode == ATOMIC)
    assert np.unique(updates.tile).tolist() == list(range(main.footprint.tiles))


@pytest.mark.parametrize(("batch", "m", "n"), [(1, 40, 70), (2, 500, 2560), (1, 1, 33), (1, 3000, 64)])
def test_a_sum_of_slices_writes_each_result_once_from_all_slices(batch, m, n):
    results = Operand((batch, m, n), (m * n, n, 1), "bfloat16", 2, ref=0)
    kernel = reduce_blocks(results, 3, [], 132)
    boxes = kernel.footprint.boxes
    assert_each_byte_written_once(kernel, 1, results, WRITE)
    reads, writes = boxes.take(boxes.mode == READ), boxes.take(boxes.mode == WRITE)

    def volume(some):
        return np.bincount(
            some.tile, some.length * some.count_0.astype(np.int64) * some.count_1, kernel.footprint.tiles
        )

    assert (volume(reads) == 3 * 2 * volume(writes)).all(), "three slices of fp32 for one of bf16"


def test_grids_of_sums_are_those_that_were_recorded():
    for (m, n), grid in {
        (4, 1536): (48, 1), (32, 4096): (128, 2), (512, 2560): (80, 7), (168, 4096): (128, 6), (1280, 640): (20, 27),
        (144, 4004): (126, 5), (2364, 260): (9, 74), (80, 6656): (208, 3), (52, 50257): (1571, 1),
    }.items():  # fmt: skip
        results = Operand((1, m, n), (m * n, n, 1), "bfloat16", 2, ref=0)
        assert reduce_blocks(results, 2, [], 132).grid == (*grid, 1)


def test_layouts_of_operands_are_told_apart():
    row, column = (Operand((1, 4, 6), (0, *strides), "float16", 2) for strides in ((6, 1), (1, 4)))
    assert Problem.of(problems.PLAIN, row, Operand((1, 6, 8), (0, 1, 6), "float16", 2)).key == (0, 2, 0, 1, 1, 4, 8, 6)
    assert Problem.of(problems.PLAIN, column, row).column_a == 1
    strided = Operand((1, 4, 6), (0, 12, 2), "float16", 2)
    assert Problem.of(problems.PLAIN, strided, row) is None
    assert Problem.of(problems.PLAIN, replace(row, dtype="int64"), row) is None


def test_a_side_of_one_element_is_classified_by_its_strides_and_vectors_are_columns():
    matrix = Operand((1, 512, 16), (0, 16, 1), "float32", 4)
    for strides in ((1, 1), (1, 16)):  # `unsqueeze(-1)` of a vector, and the transposed weight of a linear layer
        vector = Operand((1, 16, 1), (0, *strides), "float32", 4)
        assert Problem.of(problems.BATCHES, matrix, vector).key == (3, 0, 0, 1, 1, 512, 1, 16)
    row = Operand((1, 1, 64), (0, 64, 1), "float32", 4)
    for strides, column in (((1, 512), 1), ((1, 1), 0)):
        assert Problem.of(problems.PLAIN, Operand((1, 512, 1), (0, *strides), "float32", 4), row).column_a == column


def test_blocks_of_matrix_vector_kernels_take_the_rows_of_entries_with_several_blocks():
    for m, k in ((512, 16), (640, 20)):
        choice = gemm_kernel_choice.measured(Problem(problems.BATCHES, problems.FP32, 0, 1, 1, m, 1, k), table(), H200)
        assert (choice.kind, choice.tile.m, choice.tile.n) == ("gemv", 32, 1)


def test_float32_on_tensor_cores_is_a_type_of_its_own():
    a = Operand((1, 64, 64), (0, 64, 1), "float32", 4)
    assert [Problem.of(problems.PLAIN, a, a, tf32=tf32).dtype for tf32 in (False, True)] == [0, 1]


@pytest.mark.parametrize("ns", [1.0, 736.0, 12345.0, 4e9])
def test_times_come_back_from_their_codes_to_a_thousandth(ns):
    assert math.isclose(time_ns(int(time_code(np.array([ns]))[0])), ns, rel_tol=1e-3)
    assert time_ns(int(time_code(np.array([0.0]))[0])) == 0
