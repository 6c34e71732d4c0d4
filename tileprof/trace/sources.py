"""The sources of a modelled launch's shape and time: the words of the columns ``shape_source`` and ``time_source``."""

from __future__ import annotations

from enum import StrEnum


class ShapeSource(StrEnum):
    """The model recorder's source for the kernels that an operator launches, with their tiles, grid and cluster."""

    TABLE = "table"
    """Measured for this very problem on this GPU."""
    NEIGHBOUR = "neighbour"
    """Measured for a problem like it on this GPU."""
    LEARNED = "learned"
    """What the library is expected to choose among kernels of problems like it, by what was learnt of its choices."""
    HEURISTIC = "heuristic"
    """The proposal of a library's own model of the GPU."""
    RULE = "rule"
    """tileprof's own rules."""
    DICTATED = "dictated"
    """The user said so (``--tile``)."""


class TimeSource(StrEnum):
    """The model recorder's source for the duration of a launch."""

    CALIBRATED = "calibrated"
    """Measured for this very problem on this GPU."""
    INTERPOLATED = "interpolated"
    """Interpolated from times that were measured for similar problems on this GPU."""
    ROOFLINE = "roofline"
    """FLOPs and bytes at the rates that the GPU sustains."""
