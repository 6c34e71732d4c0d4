"""Streams and events order every stage behind all that it must follow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.runtime.chains import CHAINS, mlp
from tileprof.runtime.schedulers import lanes


@st.composite
def programs(draw) -> list[frozenset[int]]:
    stages = draw(st.integers(0, 14))
    return [frozenset(draw(st.sets(st.integers(0, i - 1), max_size=4))) if i else frozenset() for i in range(stages)]


def behind(lane_plan) -> list[set[int]]:
    """Return the stages that have ended when each stage begins, by following streams and events back."""
    matches = []
    for number, lane in enumerate(lane_plan):
        end_set: set[int] = set()
        on_stream = [n for n in range(number) if lane_plan[n].stream == lane.stream][-1:]
        for other in [*on_stream, *lane.after]:
            end_set |= matches[other] | {other}
        matches.append(end_set)
    return matches


@given(programs(), st.integers(1, 4))
def test_every_stage_begins_behind_all_that_it_must_follow(before, most) -> None:
    lane_plan = lanes(before, most)
    end_set = behind(lane_plan)
    assert all(needs <= end_set[number] for number, needs in enumerate(before))
    assert {lane.stream for lane in lane_plan} == set(range(len({lane.stream for lane in lane_plan})))
    assert all(lane.stream < most for lane in lane_plan)


@given(programs(), st.integers(1, 4))
def test_no_stage_waits_for_what_is_implied(before, most) -> None:
    lane_plan = lanes(before, most)
    for number, lane in enumerate(lane_plan):
        for other in lane.after:
            less = [*lane_plan[:number], type(lane)(lane.stream, tuple(n for n in lane.after if n != other))]
            assert other not in behind(less)[number]


def test_a_chain_stays_on_one_stream() -> None:
    assert {lane.stream for lane in lanes(mlp().before())} == {0}


def test_stages_without_a_common_tensor_part() -> None:
    assert [lane.stream for lane in lanes([frozenset(), frozenset(), frozenset({0, 1})])] == [0, 1, 1]


def test_a_chain_follows_what_its_tensors_say() -> None:
    for chain in CHAINS.values():
        before = chain.before()
        memory = chain.memory()
        for producer, consumer in chain._needs(memory):
            assert producer in before[consumer]
