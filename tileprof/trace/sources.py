"""Where a modelled launch's shape and time come from: the words of the columns ``shape_source`` and ``time_source``."""

from __future__ import annotations

from enum import StrEnum


class ShapeSource(StrEnum):
    """How the model recorder knows which kernels an operator launches, with which tiles, grid and cluster."""

    TABLE = "table"
    """Measured for this very problem on this GPU."""
    NEIGHBOUR = "neighbour"
    """Measured for a problem like it on this GPU."""
    HEURISTIC = "heuristic"
    """What a library's own model of the GPU proposes."""
    RULE = "rule"
    """By tileprof's rules."""
    DICTATED = "dictated"
    """The user said so (``--tile``)."""


class TimeSource(StrEnum):
    """How the model recorder knows how long a launch lasts."""

    CALIBRATED = "calibrated"
    """Measured for this very problem on this GPU."""
    INTERPOLATED = "interpolated"
    """From times that were measured for problems like it on this GPU."""
    ROOFLINE = "roofline"
    """FLOPs and bytes at the rates that the GPU sustains."""
