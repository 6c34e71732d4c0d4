"""Rows and columns cut into tiles, shared by the operators whose result is a matrix."""

from __future__ import annotations

from dataclasses import dataclass

from tileprof.errors import UserError

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tiling:
    """``rows`` x ``columns`` in tiles of ``tile``; x runs over columns, or over rows with ``rows_along`` "x"."""

    rows: int
    columns: int
    tile: tuple[int, int]
    rows_along: str = "y"

    def __post_init__(self) -> None:
        if len(self.tile) != 2 or not all(isinstance(n, int) and n > 0 for n in self.tile):
            raise UserError(f"a tile of {self.tile}; it is [rows, columns], both at least 1")
        if self.rows_along not in {"x", "y"}:
            raise UserError(f"rows_along is {self.rows_along!r}; rows run along x or y")

    @property
    def grid(self) -> tuple[int, int]:
        down, across = -(-self.rows // self.tile[0]), -(-self.columns // self.tile[1])
        return (across, down) if self.rows_along == "y" else (down, across)

    def spans(self, x: int, y: int) -> tuple[Span, Span]:
        """Return rows and columns of tile (x, y), cut at the edge of the matrix."""
        row, column = (y, x) if self.rows_along == "y" else (x, y)
        height, width = self.tile
        return (
            (row * height, min(self.rows, (row + 1) * height)),
            (column * width, min(self.columns, (column + 1) * width)),
        )
