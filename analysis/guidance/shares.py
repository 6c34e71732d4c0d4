"""Divides the recorded time by operator and by module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tileprof.analysis.guidance.values import Share

if TYPE_CHECKING:
    import pandas as pd

    from tileprof.analysis.reporting.report import Report

_NO_MODULE = "(no module)"


def by_operator(report: Report, launches: pd.DataFrame) -> tuple[Share, ...]:
    """Return rows per operator, or per kernel where a launch has no operator; the one with the most time first."""
    names = launches["op"].astype(str).str.replace("aten::", "")
    return _shares(report, launches, names.where(names != "", launches["kernel"].astype(str)))


def by_module(report: Report, launches: pd.DataFrame) -> tuple[Share, ...]:
    """Return rows per module, numbers in its path as ``*`` so that repeated layers and steps are one row; most time
    first.
    """
    names = launches["module"].astype(str).str.replace(r"\d+", "*", regex=True)
    return _shares(report, launches, names.where(names != "", _NO_MODULE))


def _shares(report: Report, launches: pd.DataFrame, names: pd.Series[str]) -> tuple[Share, ...]:
    waves, total = report.launch_waves, report.program.recorded_ns
    durations = launches["duration_ns"].to_numpy(np.float64)
    if not durations.any():
        durations = waves["alone_ns"].to_numpy(np.float64)
    filled = 1.0 - waves["idle"].to_numpy(np.float64)
    tiles = launches["tiles"].to_numpy(np.int64)
    rows = []
    for name, members in names.reset_index(drop=True).groupby(names.to_numpy()).indices.items():
        time_ns = float(durations[members].sum())
        weights = durations[members] if time_ns > 0 else None
        rows.append(
            Share(
                name=str(name),
                launches=len(members),
                tiles=int(tiles[members].sum()),
                time_ns=time_ns,
                share=time_ns / total if total > 0 else 0.0,
                filled=float(np.average(filled[members], weights=weights)),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.name)))
