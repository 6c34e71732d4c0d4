"""Patterns and affine maps of known tile relations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.analysis.dependencies.traces import block_of
from tileprof.analysis.dependencies.affine import fit
from tileprof.analysis.dependencies.patterns import classify
from tileprof.trace.footprint import WRITE, Boxes, Footprint


def grid(x: int, y: int = 1, z: int = 1, *, row_major: bool = True) -> Footprint:
    """Return tiles in order, x fastest; tile (x, y, z) writes 4 bytes, with neighbours in x adjacent if row_major."""
    k, j, i = np.meshgrid(np.arange(z), np.arange(y), np.arange(x), indexing="ij")
    block = np.stack([i.ravel(), j.ravel(), k.ravel()], axis=1).astype(np.int32)
    offset = (block[:, 0] + x * block[:, 1] if row_major else block[:, 0] * y + block[:, 1]) * 4
    tiles = np.arange(len(block))
    return Footprint(block, Boxes.of(tile=tiles, operand=0, mode=WRITE, offset=offset, length=4))


CASES = {
    "one_to_one": (grid(8), grid(8), lambda i: [i], "p.x = c.x"),
    "shifted one_to_one": (grid(8), grid(7), lambda i: [i + 1], "p.x = c.x + 1"),
    "one_to_many": (grid(4), grid(16), lambda i: [i // 4], "p.x = c.x // 4"),
    "all_to_all": (grid(3), grid(5), lambda _: range(3), "p.x = 0..2"),
    "row": (grid(6, 4), grid(3, 4), lambda i: range(6 * (i // 3), 6 * (i // 3) + 6), "p.x = 0..5; p.y = c.y"),
    "column": (grid(6, 4), grid(6, 2), lambda i: range(i % 6, 24, 6), "p.x = c.x; p.y = 0..3"),
    "strided": (grid(12), grid(4), lambda i: [i, i + 4, i + 8], "p.x = c.x..c.x + 8 step 4"),
    "many_to_one": (grid(12), grid(4), lambda i: range(3 * i, 3 * i + 3), "p.x = 3*c.x..3*c.x + 2"),
    "group": (
        grid(12),
        grid(8),
        lambda i: range(3 * (i // 2), 3 * (i // 2) + 3),
        "p.x = 3*(c.x // 2)..3*(c.x // 2) + 2",
    ),
    "window": (
        grid(10),
        grid(10),
        lambda i: range(max(0, i - 1), min(10, i + 2)),
        "p.x = max(0, c.x - 1)..min(9, c.x + 1)",
    ),
    "irregular": (grid(10), grid(4), lambda i: [[0, 3, 4], [1, 3, 9], [2], [5, 8]][i], ""),
}


def evaluate(expression: str, tile: int, consumer: Footprint) -> dict[str, list[int]]:
    x, y, z = consumer.block[tile].tolist()
    values = {}
    for part in expression.split("; "):
        axis, text = part.split(" = ")
        text, _, step = text.partition(" step ")
        low, _, high = text.partition("..")
        scope = {"c": type("C", (), {"x": x, "y": y, "z": z, "t": tile}), "max": max, "min": min}
        first = eval(low, scope)
        values[axis[2:]] = list(range(first, (eval(high, scope) if high else first) + 1, int(step or 1)))
    return values


@pytest.mark.parametrize("case", CASES)
def test_a_known_relation_gets_its_pattern_and_an_exact_map(case: str) -> None:
    producer, consumer, parents, expected = CASES[case]
    relation = [list(parents(i)) for i in range(consumer.tiles)]
    pattern = classify(block_of(relation), producer, consumer)
    assert pattern.name == case.rsplit(maxsplit=1)[-1]
    if not expected:
        assert pattern.map == ""
        return
    for tile, reference in enumerate(relation):
        values = evaluate(pattern.map, tile, consumer)
        inside = [
            p for p in range(producer.tiles)
            if all(producer.block[p]["xyz".index(a)] in v for a, v in values.items())
        ]  # fmt: skip
        assert inside == sorted(reference), (pattern.map, tile)
    assert pattern.map == expected


@pytest.mark.parametrize("case", list(CASES))
def test_tiles_that_are_clusters_have_the_pattern_of_tiles_that_are_blocks(case: str) -> None:
    producer, consumer, parents, _ = CASES[case]
    block = block_of([list(parents(i)) for i in range(consumer.tiles)])
    apart = [replace(f, block=f.block * np.array([2, 1, 4], np.int32)) for f in (producer, consumer)]
    assert classify(block, *apart) == classify(block, producer, consumer)


def test_column_major_output_makes_the_other_axis_the_row() -> None:
    consumer = grid(3, 4)
    relation = [list(range(6 * (i // 3), 6 * (i // 3) + 6)) for i in range(12)]
    assert classify(block_of(relation), grid(6, 4, row_major=False), consumer).name == "column"


def test_tightness_measures_how_much_the_boxes_overstate() -> None:
    pattern = classify(block_of([[0, 3], [1, 9], [2, 4]]), grid(10), grid(3))
    assert pattern.tightness == pytest.approx(6 / (4 + 9 + 3))


@given(
    p=st.integers(-6, 9), q=st.integers(-20, 20), d=st.integers(1, 12), top=st.integers(1, 40), n=st.integers(2, 80),
    period=st.sampled_from([0, 0, 7, 16]),
)  # fmt: skip
def test_a_fit_is_exact_wherever_it_is_given(*, p: int, q: int, d: int, top: int, n: int, period: int) -> None:
    k = np.arange(n)
    values = np.clip((p * (k % period if period else k) + q) // d, 0, top)
    text = fit(values, k[:, None], ("k",), top)
    if not period:
        assert text is not None
    if text is not None:
        assert [eval(text, {"k": int(i), "min": min, "max": max}) for i in k] == values.tolist()
