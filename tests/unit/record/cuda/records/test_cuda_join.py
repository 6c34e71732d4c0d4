"""Joins the passes of one program."""

from itertools import accumulate, chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.record.cuda.cuda_records import KERNEL, launch, process
from tileprof.record.cuda.records import allocator, join

A, B, C = (("a", (1, 1, 1), (32, 1, 1)), ("b", (1, 1, 1), (32, 1, 1)), ("c", (1, 1, 1), (32, 1, 1)))


def reference(*keys, first=0):
    return join.Reference(list(range(first, first + len(keys))), list(keys), whole=first == 0)


def test_equal_runs_match_by_place_and_are_silent():
    match = join.match(reference(A, B, A), [A, B, A], "time")
    assert match == join.Matched({0: 0, 1: 1, 2: 2})


def test_shifted_runs_match_by_kernel_where_counts_agree_and_the_rest_is_reported():
    match = join.match(reference(A, B, A, C), [C, A, B, A, B], "time")
    assert match.row_of == {0: 1, 2: 3, 3: 0}
    assert "saw 5 launches" in match.report
    assert "1 launches have no time" in match.report


def test_places_of_launches_that_were_counted_in_ranges_only_mean_nothing_to_a_pass_that_counts_all():
    ranged_reference = join.Reference([0, 1], [A, B], whole=False, ranged=True)
    assert join.match(ranged_reference, [A, B, C, A, B], "time").row_of == {0: 3, 1: 4}, (
        "the warm-up is alike, and not meant"
    )
    assert join.match(ranged_reference, [A, B], "blocks", [0, 1]).row_of == {0: 0, 1: 1}


def test_a_recorded_part_is_found_as_a_whole_where_it_last_stands():
    match = join.match(reference(A, B, first=7), [A, B, C, A, B, C], "time")
    assert match.row_of == {7: 3, 8: 4}


def test_what_a_program_launches_after_its_last_region_makes_it_no_other_program(tmp_path):
    """Launches before the first region are counted; otherwise the recorded ones would look like all launches."""
    on, off = {"e": "capture", "on": 1}, {"e": "capture", "on": 0}
    marked_reference = join.Reference.of(process(tmp_path, [KERNEL, launch(1), on, launch(2), off], []))
    key = marked_reference.keys[0]
    assert join.match(marked_reference, [key, key, A], "time") == join.Matched({0: 0, 1: 1})
    assert "not repeatable" in join.match(marked_reference, [key], "time").report
    assert "not repeatable" in join.match(join.Reference([0], [A]), [A, B], "time").report


def test_parts_of_two_passes_match_by_their_ordinals():
    match = join.match(reference(A, B, first=7), [A, B], "blocks", [7, 8])
    assert match == join.Matched({7: 0, 8: 1})


@pytest.mark.parametrize(("keys", "start"), [([1, 2], 3), ([2], 4), ([3, 4], None), ([1, 2, 0, 1, 2, 9], None)])
def test_a_window_is_the_last_whole_occurrence(keys, start):
    assert join.window(keys, [1, 2, 0, 1, 2]) == start


def test_each_of_several_ranges_is_found_as_a_whole_in_their_order():
    ranged_reference = join.Reference([0, 1, 2, 3], [A, B, A, C], whole=False, ranged=True, begins=(0, 2, 4))
    assert join.match(ranged_reference, [A, C, A, B, C, A, C, B], "time").row_of == {0: 2, 1: 3, 2: 5, 3: 6}
    apart = join.match(ranged_reference, [A, C, A, B, A], "time")
    assert apart.row_of == {}, "the second one stands before the first alone"
    assert "4 launches have no time" in apart.report


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=4), st.lists(st.integers(0, 3), max_size=8))
def test_windows_hold_the_launches_that_are_looked_for_and_are_found_where_there_are_any(stretches, noise):
    keys, begins = list(chain(*stretches)), [0, *accumulate(map(len, stretches))][:-1] or [0]
    other = list(chain(*([*stretch, *noise] for stretch in stretches)))
    places = join.windows(keys, begins, other)
    assert [other[place] for place in places] == keys
    assert places == sorted(set(places))
    for begin, end in zip(begins, [*begins[1:], len(keys)], strict=True):
        assert places[begin:end] == list(range(*(places[begin], places[begin] + end - begin) if begin < end else (0,)))


def test_where_ranges_begin_is_known_from_the_events(tmp_path):
    on, off = {"e": "capture", "on": 1}, {"e": "capture", "on": 0}
    events = [KERNEL, on, launch(1), launch(2), off, on, off, on, launch(3), off]
    assert join.Reference.of(process(tmp_path, events, [])).begins == (0, 2)
    assert join.Reference.of(process(tmp_path, [KERNEL, launch(1)], [])).begins == (0,)


def test_a_reference_is_whole_only_when_every_launch_was_recorded(tmp_path):
    events = [KERNEL, launch(1), launch(2)]
    assert join.Reference.of(process(tmp_path, events, [])).whole
    assert not join.Reference.of(process(tmp_path, events[:1] + events[2:], [])).whole
    assert join.Reference.of(process(tmp_path, [KERNEL, launch(2), launch(1)], [])).whole, "two threads' launches"


def test_the_allocators_history_stands_before_the_launches_that_it_precedes(tmp_path):
    rows = '[["alloc", 4096, 100, 1], ["free_completed", 4096, 100, 3], ["alloc", 8192, 5, 2]]'
    (tmp_path / "allocator.json").write_text(rows)
    events = [
        {"e": "start"},
        {"e": "launch", "t": 1500},
        {"e": "kernel"},
        {"e": "launch", "t": 2000},
        {"e": "launch", "t": 3500},
    ]
    merged_events = [(e["e"], e.get("address")) for e in allocator.merged(events, tmp_path)]
    launch_ = ("launch", None)
    assert merged_events == [
        ("start", None), ("tensor", 4096), launch_, ("kernel", None), ("tensor", 8192), launch_, ("untensor", 4096),
        launch_,
    ]  # fmt: skip


def test_a_kernel_that_only_ever_ran_in_the_graph_is_found_by_its_neighbours():
    assert join.captured([1, 7, 3], [1, 2, 3, 1, -1, 3], [0, 3]) == [3, 4, 5]


@pytest.mark.parametrize(
    ("nodes", "places"),
    [
        ([1, 2, 3], [3, 4, 5]),
        ([1, 2, 9, 3], [3, 4, -1, 5]),
        ([8, 1, 2], [-1, 3, 4]),
        ([7, 8, 9], [-1, -1, -1]),
        ([], []),
    ],
)
def test_nodes_are_found_among_the_launches_of_the_last_capture_even_when_some_had_none(nodes, places):
    assert join.captured(nodes, [1, 2, 3, 1, 2, 3], [0, 3]) == places
