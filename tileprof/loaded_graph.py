"""The graph that ``tileprof.load(path).graph()`` gives: pairs with their gain, and plots for notebooks."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tileprof.analysis import TileGraph
from tileprof.html_table import html_table

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from tileprof.analysis.reporting.report import Report


_MOST_ROWS: Final = 10
"""Pairs that a notebook shows."""


@dataclass(frozen=True, eq=False, repr=False)
class LoadedGraph(TileGraph):
    """A `TileGraph` that knows its report; plots are plotly figures.

    ``report``: gives the report of the same trace, computed when it is first asked for.
    """

    report: Callable[[], Report] = field(kw_only=True)

    @classmethod
    def of(cls, graph: TileGraph, report: Callable[[], Report]) -> LoadedGraph:
        """Return the same graph with its report."""
        return cls(
            graph.launches,
            graph.footprint,
            graph.tile_base,
            graph.links,
            graph.blocks,
            graph.source,
            graph.basis,
            report=report,
        )

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """One row per ordered pair of dependent launches (`tileprof.analysis.dependencies.pairs`) with
        ``gain_ns``, what overlap of the two alone could save at most, and ``early``, the share of the consumer's tiles
        that could start before the producer ends (`tileprof.analysis.reporting.gains.pair_gains`).
        """
        plain = super().pairs
        gains = self.report().pairs[["producer", "consumer", "gain_ns", "early"]]
        return plain.merge(gains, how="left", on=["producer", "consumer"])

    def _repr_html_(self) -> str:
        """Return the pairs that gain most, for notebooks."""
        from tileprof.analysis.times_and_counts import duration  # noqa: PLC0415 - heavy

        names = self.launches["op"].where(self.launches["op"] != "", self.launches["kernel"]).astype(str)
        best = self.pairs.sort_values("gain_ns", ascending=False, kind="stable").head(_MOST_ROWS)
        rows = [
            (
                f"{pair['producer']} → {pair['consumer']}",
                f"{names.iloc[pair['producer']]} → {names.iloc[pair['consumer']]}",
                str(pair["pattern"]),
                f"{pair['edges']:,}",
                duration(pair["gain_ns"]) if pair["gain_ns"] > 0 else "",
            )
            for pair in best.to_dict("records")
        ]
        head = ("launches", "operators", "pattern", "dependencies", "gain at most")
        return f"<p>{html.escape(repr(self))}</p>{html_table([head, *rows])}"

    def plot_pair(self, producer: int, consumer: int) -> go.Figure:
        """Return producer tiles by consumer tiles of two launches. Raises `UserError` where they are independent."""
        from tileprof.viz.figures.tile_figures import tile_matrix  # noqa: PLC0415 - plotly

        return tile_matrix(self, producer, consumer, title=self._pair_title(producer, consumer))

    def plot_tiles(self, launches: Sequence[int] | None = None) -> go.Figure:
        """Return tiles as nodes, a column per launch (default: the pair of the largest gain), dependencies as lines.

        Raises `UserError` above `tileprof.viz.figures.tile_figures.MOST_TILES` tiles, and without ``launches`` where no
        launch depends on another.
        """
        from tileprof.errors import UserError  # noqa: PLC0415 - used here alone
        from tileprof.viz.figures.tile_figures import tile_graph  # noqa: PLC0415 - plotly

        if launches is None:
            if self.pairs.empty:
                raise UserError("no launch depends on another: name launches to plot, for example plot_tiles([0, 1])")
            best = self.pairs.sort_values("gain_ns", ascending=False, kind="stable").iloc[0]
            launches = [int(best["producer"]), int(best["consumer"])]
        return tile_graph(self, launches, title=f"Tiles of launches {', '.join(map(str, launches))}")

    def plot_timeline(self) -> go.Figure:
        """Return launches over time, a row per stream."""
        from tileprof.viz.figures.program_figures import timeline  # noqa: PLC0415 - plotly

        program = self.report().program
        kind = "modelled" if program.timing.get("modelled") else "measured"
        return timeline(
            self.launches, title=f"{len(self.launches):,} launches, {program.recorded_ns / 1e3:,.4g} us {kind}"
        )

    def plot_gain(self, most: int = 12) -> go.Figure:
        """Return the pairs of launches that gain most from overlap, repeated layers summed."""
        from tileprof.viz.figures.program_figures import gains  # noqa: PLC0415 - plotly

        return gains(self.report().groups, title="What overlap of two launches gains", most=most)

    def _pair_title(self, producer: int, consumer: int) -> str:
        pairs = self.pairs
        rows = pairs[(pairs["producer"] == producer) & (pairs["consumer"] == consumer)]
        if rows.empty:
            return ""
        row = rows.iloc[0]
        pattern = row["pattern"]
        return f"Launches {producer} → {consumer}: {pattern}, at most {row['gain_ns'] / 1e3:.3g} us to gain"
