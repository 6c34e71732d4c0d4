"""Halos in NCHW memory: the same window of each plane has the pattern window, whatever the planes' distance in
tiles.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.analysis.dependencies.traces import block_of
from tileprof.analysis.dependencies.patterns import classify
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

PIECE = 1024  # bytes that a producer tile writes


def line(tiles):
    """Return tiles in a row, each of which writes the next piece of memory."""
    at = np.arange(tiles)
    block = np.stack([at, 0 * at, 0 * at], axis=1).astype(np.int32)
    return Footprint(block, Boxes.of(tile=at, operand=0, mode=WRITE, offset=at * PIECE, length=PIECE))


def halo(rows, columns, planes, high):
    """Return consumer tiles of ``high`` rows, each of which reads these and one more on both sides, in every plane."""
    tiles = -(-rows // high)
    at = np.arange(tiles)
    first = np.maximum(at * high - 1, 0)
    last = np.minimum((at + 1) * high + 1, rows)
    reads = Boxes.of(
        tile=at,
        operand=0,
        mode=READ,
        offset=first * columns,
        length=(last - first) * columns,
        count_0=planes,
        stride_0=rows * columns,
    )
    return Footprint(np.stack([at, 0 * at, 0 * at], axis=1).astype(np.int32), reads)


def parents(producer, consumer):
    """Return the producer tiles that write a byte that a consumer tile reads, by brute force."""
    boxes = consumer.boxes
    sets = []
    for offset, length, count, stride in zip(boxes.offset, boxes.length, boxes.count_0, boxes.stride_0, strict=True):
        read = (offset + np.arange(count)[:, None] * stride + np.arange(length)).ravel()
        sets.append([int(t) for t in np.unique(read // PIECE) if t < producer.tiles])
    return sets


@pytest.mark.parametrize(("rows", "columns", "planes", "high"), [(56, 112, 64, 1), (28, 224, 7, 2), (60, 100, 12, 3)])
def test_a_halo_in_planes_at_an_uneven_distance_is_a_tight_window(rows, columns, planes, high):
    producer, consumer = line(-(-rows * columns * planes // PIECE)), halo(rows, columns, planes, high)
    assert rows * columns % PIECE != 0
    pattern = classify(block_of(parents(producer, consumer)), producer, consumer)
    assert (pattern.name, pattern.tightness) == ("window", 1.0)


@pytest.mark.parametrize("change", ["without one", "with one more"])
def test_one_parent_more_or_less_makes_it_irregular(change):
    producer, consumer = line(392), halo(56, 112, 64, 1)
    sets = parents(producer, consumer)
    middle = len(sets[20]) // 2
    sets[20] = sorted(
        {*sets[20]} - {sets[20][middle]} if change == "without one" else {*sets[20], sets[20][middle] + 3}
    )
    pattern = classify(block_of(sets), producer, consumer)
    assert pattern.name == "irregular"
    assert pattern.tightness < 0.5


def test_a_piece_that_ends_one_plane_and_begins_the_next_is_a_window():
    tiles = 7  # lines per plane; each consumer tile reads a third of a line, so that pieces wrap around
    sets = [sorted({(3 * c + k) % tiles for k in range(4)}) for c in range(14)]
    assert any(max(s) - min(s) + 1 > len(s) for s in sets)
    assert classify(block_of(sets), line(tiles), line(len(sets))).name == "window"
    sets[3] = [0, 3, 6]
    assert classify(block_of(sets), line(tiles), line(len(sets))).name == "irregular"
