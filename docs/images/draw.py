"""Draws the diagrams of the documentation: ``python docs/images/draw.py`` writes the .svg files beside it."""

# ruff: noqa: INP001 - a script, no package
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

BLUE, ORANGE, GREEN, GREY, PALE, INK = "#0072b2", "#e69f00", "#009e73", "#8a8f98", "#e8ebef", "#1f2328"
TILES: Final = 8
"""Producer and consumer tiles of a pattern's matrix."""

GRID: Final = (4, 2)
"""The producer's grid in the pictures of row and column: x runs fastest."""

PATTERNS: dict[str, Callable[[int], list[int]]] = {
    "one_to_one": lambda c: [c],
    "one_to_many": lambda c: [c // 2],
    "many_to_one": lambda c: [2 * c, 2 * c + 1] if c < 4 else [],
    "group": lambda c: [c // 4 * 4 + i for i in range(4)],
    "row": lambda c: [c // 4 * 4 + i for i in range(4)],
    "column": lambda c: [c % 4, c % 4 + 4],
    "strided": lambda c: [c % 4, c % 4 + 4],
    "window": lambda c: [p for p in (c - 1, c, c + 1) if 0 <= p < TILES],
    "all_to_all": lambda _: list(range(TILES)),
    "irregular": lambda c: [[0, 3], [5], [1, 6], [2, 3, 7], [4], [0, 6], [1, 2], [5, 7]][c],
}
"""Parents of consumer tile c. Group and row, column and strided have equal matrices: the producer's grid tells them apart."""

GRID_OF: Final = {"row": GRID, "column": GRID}
"""Producer grids other than a line of tiles."""


class Picture:
    """An SVG on a white ground, so that it reads on light and dark pages."""

    def __init__(self, width: float, height: float) -> None:
        self._size = width, height
        self._parts = [f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>']

    def box(self, x: float, y: float, width: float, height: float, fill: str, line: str = "none") -> None:
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{fill}" stroke="{line}"/>'
        )

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        at: str = "middle",
        fill: str = INK,
        halo: bool = False,
    ) -> None:
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        ground = ' paint-order="stroke" stroke="#ffffff" stroke-width="4"' if halo else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{at}" fill="{fill}"{ground}>{escaped}</text>'
        )

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        self._parts.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{GREY}" stroke-width="1.5" marker-end="url(#tip)"/>'
        )

    def save(self, name: str) -> None:
        width, height = self._size
        tip = (
            '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
            f'<path d="M0,0 L8,4 L0,8 z" fill="{GREY}"/></marker></defs>'
        )
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" font-family="sans-serif">'
        Path(__file__).with_name(name).write_text(
            "\n".join([head, tip, *self._parts, "</svg>"]) + "\n", encoding="utf-8"
        )


def flow() -> None:
    """Draw the way from a program to what a user reads."""
    picture = Picture(890, 250)
    boxes = {
        "program": (10, 60), "trace": (160, 60), "tile graph": (330, 60), "report, page": (530, 10), "schedules": (530, 60),
        "policy": (530, 130), "verdict": (720, 85), "JSON, cuSync header, …": (690, 130), "checked, measured": (700, 175),
    }  # fmt: skip
    width = {name: 9 + 7.4 * len(name) for name in boxes}
    for name, (x, y) in boxes.items():
        picture.box(x, y, width[name], 28, PALE, GREY)
        picture.words(x + width[name] / 2, y + 19, name, size=13)
    for start, end, verb in (
        ("program", "trace", "record"), ("trace", "tile graph", "analyse"), ("tile graph", "report, page", "report, view"),
        ("tile graph", "schedules", "simulate"), ("tile graph", "policy", "synthesise"), ("policy", "verdict", "verify"),
        ("policy", "JSON, cuSync header, …", "export"), ("policy", "checked, measured", "run"),
    ):  # fmt: skip
        x, y = boxes[start][0] + width[start] + 3, boxes[start][1] + 14
        to_x, to_y = boxes[end][0] - 4, boxes[end][1] + 14
        picture.arrow(x, y, to_x, to_y)
        picture.words((x + to_x) / 2, (y + to_y) / 2 + 4, verb, size=11, fill=BLUE, halo=True)
    picture.words(160, 235, "files that you can open", size=11, at="start", fill=GREY)
    picture.box(138, 225, 14, 12, PALE, GREY)
    picture.words(330, 235, "commands", size=11, at="start", fill=BLUE)
    picture.save("flow.svg")


def strided_boxes() -> None:
    """The matrix of the worked example, and where its rows lie in memory."""
    picture = Picture(700, 190)
    picture.words(10, 20, "x, 4 x 8 float32", at="start")
    for row in range(4):
        for column in range(8):
            picture.box(10 + 24 * column, 32 + 24 * row, 22, 22, BLUE if column < 4 else ORANGE)
    picture.words(58, 148, "tile 0", fill=BLUE)
    picture.words(154, 148, "tile 1", fill=ORANGE)
    picture.words(250, 20, "in memory, 128 bytes", at="start")
    for run in range(8):
        picture.box(250 + 54 * run, 50, 52, 26, BLUE if run % 2 == 0 else ORANGE)
        picture.words(250 + 54 * run, 92, str(16 * run), size=10, at="start", fill=GREY)
    picture.words(250, 120, "tile 0: offset 0, length 16, count_0 4, stride_0 32", at="start", fill=BLUE)
    picture.words(250, 142, "tile 1: offset 16, length 16, count_0 4, stride_0 32", at="start", fill=ORANGE)
    picture.words(250, 172, "one row of the table instead of four", size=11, at="start", fill=GREY)
    picture.save("boxes.svg")


def patterns() -> None:
    """One matrix a pattern."""
    cell, apart, columns = 11, 150, 5
    picture = Picture(columns * apart + 20, 2 * 150 + 10)
    for number, (name, parents) in enumerate(PATTERNS.items()):
        left, top = 20 + number % columns * apart, 34 + number // columns * 150
        grid = GRID_OF.get(name)
        picture.words(left + 4 * cell, top - 12, name + (f", grid {grid[0]} x {grid[1]}" if grid else ""), size=12)
        consumers = [c for c in range(TILES) if parents(c)]
        for c in consumers:
            for p in range(TILES):
                picture.box(left + cell * c, top + cell * p, cell - 1, cell - 1, BLUE if p in parents(c) else PALE)
    picture.save("patterns.svg")


def waves() -> None:
    """Two launches of five tiles on four slots, one after the other and overlapped, row by row of the producer."""
    picture = Picture(700, 260)
    slot, wave = 22, 110

    def lanes(top: float, title: str, tiles: list[tuple[int, float, str, str]]) -> None:
        picture.words(10, top - 8, title, at="start", size=13)
        for lane in range(4):
            picture.box(10, top + slot * lane, 5 * wave, slot - 3, PALE)
        for lane, begin, name, fill in tiles:
            picture.box(10 + begin * wave, top + slot * lane, wave - 3, slot - 3, fill)
            picture.words(10 + (begin + 0.5) * wave, top + slot * lane + 14, name, size=11, fill="#ffffff")

    first = [(i, 0, f"a{i}", BLUE) for i in range(4)] + [(0, 1, "a4", BLUE)]
    gap = 2.3
    lanes(
        34,
        "stream order: 4 waves and a gap",
        first + [(i, gap, f"b{i}", GREEN) for i in range(4)] + [(0, gap + 1, "b4", GREEN)],
    )
    lanes(
        164,
        "tile by tile: b0 to b3 need a0 to a3 alone, and b4 needs a4",
        first + [(i, 1, f"b{i - 1}", GREEN) for i in range(1, 4)] + [(0, 2, "b3", GREEN), (1, 2, "b4", GREEN)],
    )
    picture.save("waves.svg")


def group_testing() -> None:
    """Draw which clusters run in the replays of each bit."""
    picture = Picture(620, 190)
    picture.words(10, 22, "cluster", at="start")
    for cluster in range(8):
        picture.words(150 + 48 * cluster, 22, f"{cluster:03b}")
        for bit in range(3):
            ends_early = cluster >> bit & 1
            picture.box(130 + 48 * cluster, 36 + 34 * bit, 40, 26, PALE if ends_early else BLUE, GREY)
            picture.words(
                150 + 48 * cluster,
                53 + 34 * bit,
                "ended" if ends_early else "writes",
                size=10,
                fill=INK if ends_early else "#ffffff",
            )
    for bit in range(3):
        picture.words(10, 53 + 34 * bit, f"replay, bit {bit} = 1", at="start", size=11)
    picture.words(
        10,
        160,
        "A byte that stays poisoned for bits 0 and 2, and not for bit 1, was written by cluster 101.",
        at="start",
        size=12,
    )
    picture.words(
        10,
        180,
        "The replays for bit = 0 say whether it has one writer, none, or several.",
        at="start",
        size=12,
        fill=GREY,
    )
    picture.save("group-testing.svg")


if __name__ == "__main__":
    for draw in (flow, strided_boxes, patterns, waves, group_testing):
        draw()
