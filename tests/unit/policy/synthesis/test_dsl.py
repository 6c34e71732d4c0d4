"""Dependencies written by hand become exactly those waits, with as few semaphores as possible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileprof.policy.format import Policy, from_dict, to_dict
from tileprof.policy.format.lowering import lower
from tileprof.policy.synthesis.dependency_file import (
    Dependencies,
    DependencyError,
    load_dependencies,
    parse_dependencies,
)

HEAD = "tileprof dependencies 1\n"
UP_DOWN = HEAD + "grid up 24 x 4\ngrid down 48 x 4\n"


def awaited_tiles(policy: Policy) -> set[tuple[int, int, int, int]]:
    """Return (producer stage, tile, consumer stage, tile) for everything that the policy itself waits for."""
    actual = set()
    for waits in lower(policy):
        assert (waits.value == waits.posts[waits.semaphore]).all()
        for tile in range(len(waits.indptr) - 1):
            for semaphore in waits.semaphore[waits.indptr[tile] : waits.indptr[tile + 1]]:
                for parent in np.flatnonzero(waits.of == semaphore).tolist():
                    actual.add((waits.edge.producer, parent, waits.edge.consumer, tile))
    return actual


@pytest.mark.parametrize(
    ("lines", "kind", "semaphores"),
    [
        ("dep down on up(0..23, y)", "row", 4),
        ("dep down on up(x // 2, y)", "tile", 96),
        ("dep down on up(0..23, 0..3)", "grid", 1),
        ("dep down on up(x % 8..x % 8 + 16 step 8, y)", "strided", 32),
        ("dep down on up(x // 8*4..x // 8*4 + 3, y)", "interval", 24),
        ("dep down on up(max(0, x // 2 - 1)..min(23, x // 2 + 1), 0..3)", "row", 24),
    ],
)
def test_a_dependency_gets_the_kind_with_the_fewest_semaphores(lines: str, kind: str, semaphores: int) -> None:
    policy = parse_dependencies(UP_DOWN + lines).policy()
    assert [e.kind for e in policy.edges] == [kind]
    assert policy.semaphores[0].count == semaphores
    assert from_dict(to_dict(policy)) == policy


def test_launches_comments_and_blank_lines_are_read() -> None:
    text = (
        "# GPT-3\n"
        + HEAD
        + "\ngrid  up 4x2 launch 12 # products\ngrid down 4 x 2 x 1\n  dep down on up(x,y) # its own\n"
    )
    policy = parse_dependencies(text).policy()
    assert [(s.name, s.grid, s.launch) for s in policy.stages] == [("up", (4, 2, 1), 12), ("down", (4, 2, 1), None)]


def test_what_other_edges_imply_is_left_out() -> None:
    grids = "".join(f"grid s{n} 4\n" for n in range(3))
    text = HEAD + grids + "dep s1 on s0(x)\ndep s2 on s1(x)\ndep s2 on s0(x)\n"
    assert [(e.producer, e.consumer) for e in parse_dependencies(text).policy().edges] == [(0, 1), (1, 2)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_two_grids_wait_for_exactly_what_is_written(data: st.DataObject) -> None:
    (px, py), (cx, cy) = (tuple(data.draw(st.integers(1, 6)) for _ in range(2)) for _ in range(2))
    lines, expected = [], set()
    for _ in range(data.draw(st.integers(1, 3))):
        a, b, low, wide, step = (data.draw(st.integers(lo, 4)) for lo in (0, 0, 0, 0, 1))
        u = f"({a}*x + {low}) % {px}"
        lines.append(f"dep c on p({u}..min({px - 1}, {u} + {wide}) step {step}, ({b}*y + x) % {py})")
        for x in range(cx):
            for y in range(cy):
                first = (a * x + low) % px
                columns = range(first, min(px - 1, first + wide) + 1, step)
                expected |= {(0, k + px * ((b * y + x) % py), 1, x + cx * y) for k in columns}
    text = HEAD + f"grid p {px} x {py}\ngrid c {cx} x {cy}\n" + "\n".join(lines)
    assert awaited_tiles(parse_dependencies(text).policy()) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dep down on up(0..24, y)", r"line 4: needed by grid 1 \(down\), axis u: tile 0 names 24, outside 0..23"),
        ("dep down on up(x - 1, y)", "tile 0 names -1, outside 0..23"),
        ("dep down on up(x // 0, y)", "divides by 0"),
        ("dep down on up(x % (y - y), y)", "divides by"),
        ("dep down on up(99999999999999999999*x, y)", "exceeds 62 bits"),
        ("dep down on up(4611686018427387903*x - 4611686018427387903*x, y)", "exceeds 62 bits"),
        ("dep down on up(x * y)", "multiplies two variables"),
        ("dep down on up(q)", "uses q; known here: x, y, z"),
        ("dep down on up(x, y, z, x)", "given 4 axes"),
        ("dep down on up(0..3 step 0)", "the step is a number from 1"),
        (f"dep down on up(0..3 step {'1' * 5000})", "the step is a number from 1"),
        (f"dep down on up({'(' * 300}x{')' * 300})", "characters"),
        ("dep down on up()", "is not an expression"),
        (
            "dep down on up(3..0, y)",
            "no tile of down needs any of up by this line; `..` goes from the smaller to the greater",
        ),
        ("dep down on up(x", "is neither a grid nor a dependency"),
        ("dep up on down(0)", "stages run in the order"),
        ("dep down on down(0)", "stages run in the order"),
        ("dep other on up(0)", "no grid other above this line; known: up, down"),
        ("grid up 3", "two grids named up"),
        ("grid q 0 x 3", "a grid of 0 x 3 x 1 tiles"),
        ("grid q 99999 x 99999", "a grid has 1 to"),
        (f"grid q {'9' * 5000}", "is not a grid"),
        ("grid q 4 x 4 x 4 x 4", "is not a grid"),
        ("grid q 4 launch -1", "is not a grid"),
        ("grid */ 4", "is not a grid"),
        ("import os", "is neither a grid nor a dependency"),
    ],
)
def test_an_error_names_its_line(line: str, message: str) -> None:
    with pytest.raises(DependencyError, match=message) as refusal:
        parse_dependencies(UP_DOWN + line)
    assert "line 4" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no dependencies"),
        (HEAD, "holds no dependencies"),
        (UP_DOWN, "holds no dependencies"),
        ("grid up 4", "begins with `tileprof dependencies 1`"),
        ("tileprof dependencies 2\n", "version 2; this tileprof reads version 1"),
        ("\x00\x01", "begins with"),
        ("x" * 1_000_001, "longer than"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "hand.dep"
    path.write_text(text)
    with pytest.raises(DependencyError, match=message) as refusal:
        load_dependencies(path)
    assert "hand.dep" in str(refusal.value)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match="cannot read"):
        load_dependencies(tmp_path / "absent.dep")
    (tmp_path / "binary.dep").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DependencyError, match="is not a text file"):
        load_dependencies(tmp_path / "binary.dep")


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    (tmp_path / "marked.dep").write_text(UP_DOWN + "dep down on up(0, y)", encoding="utf-8-sig")
    assert len(load_dependencies(tmp_path / "marked.dep").edges) == 1


def test_a_relation_too_large_to_work_out_is_refused() -> None:
    text = HEAD + "grid a 100000 x 1\ngrid b 100000\ndep b on a(0..99999)"
    with pytest.raises(DependencyError, match="waits; at most"):
        parse_dependencies(text)


def parsed(text: str) -> Dependencies | DependencyError:
    try:
        return parse_dependencies(text)
    except DependencyError as error:
        return error


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_is_written_is_a_policy_or_one_sentence(data: st.DataObject) -> None:
    words = st.sampled_from(
        [
            "grid",
            "dep",
            "on",
            "up",
            "down",
            "x",
            "y",
            "z",
            "launch",
            "step",
            "tileprof",
            "dependencies",
            "min(",
            "max(",
            "(",
            ")",
            ",",
            "..",
            "//",
            "%",
            "*",
            "+",
            "-",
            "0",
            "1",
            "7",
            "24",
            "99999999999",
            "\n",
            "#",
            "é",
            "\x00",
        ]
    )
    text = UP_DOWN + " ".join(data.draw(st.lists(words, max_size=30)))
    for whole in (text, UP_DOWN + "dep down on up(" + text.removeprefix(UP_DOWN).replace("\n", " ") + ")"):
        actual = parsed(whole)
        assert isinstance(actual, Dependencies) or len(str(actual).splitlines()) == 1


def test_a_policy_says_in_a_line_and_as_tables_what_waits_for_what() -> None:
    policy = parse_dependencies(UP_DOWN + "dep down on up(0..23, y)").policy()
    assert repr(policy) == "<Policy: 2 stages, 288 tiles, 4 semaphores, waits: row>"
    assert "<td>down</td><td>up</td><td>row</td><td>RAW</td>" in policy._repr_html_()
