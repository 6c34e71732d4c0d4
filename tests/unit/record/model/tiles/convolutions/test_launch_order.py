"""The launches of groups that ran on several streams at once, in the order of the groups."""

import random

import pytest

from tileprof.record.model.tiles.convolutions.launch_order import by_group


def one(name, grid, ns=1.0):
    return (name, (), (grid, 1, 1), ns)


CHAIN = [one("slice", 7), one("kernel", 4), one("slice", 20)]


@pytest.mark.parametrize("seed", range(20))
def test_streams_that_interleave_are_put_in_the_order_of_their_groups(seed):
    draw = random.Random(seed)
    streams = [[(name, shape, grid, 10.0 * n) for name, shape, grid, _ in CHAIN] for n in range(4)]
    mixed = []
    while any(streams):
        mixed.append(draw.choice([stream for stream in streams if stream]).pop(0))
    ordered = by_group(mixed, 8)
    assert [row[:3] for row in ordered] == [row[:3] for row in CHAIN * 4]
    assert sorted(ordered) == sorted(mixed)


def test_calls_without_groups_and_those_in_order_stay_as_they_are():
    mixed = [CHAIN[0], CHAIN[0], CHAIN[1], CHAIN[2], CHAIN[1], CHAIN[2]]
    assert by_group(mixed, 1) == mixed
    assert by_group(CHAIN * 3, 3) == CHAIN * 3
    once = [CHAIN[0], CHAIN[0], CHAIN[1]]
    assert by_group(once, 2) == once


def test_what_a_group_launches_twice_alike_is_put_together():
    chain = [one("copy", 7), one("copy", 7), one("kernel", 4)]
    mixed = [chain[0], chain[0], chain[0], chain[2], chain[0], chain[2]]
    assert by_group(mixed, 2) == chain * 2
