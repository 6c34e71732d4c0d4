"""The names that ``import tileprof`` offers: traces with their graph, report and page.

`load` returns a `LoadedTrace`. The layers below (`tileprof.trace`, `tileprof.analysis`, `tileprof.viz`) do not import
upper layers; this module and the command line combine them.
"""

from __future__ import annotations

import html
import io
import tempfile
import webbrowser
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tileprof.html_table import html_table
from tileprof.trace import Trace
from tileprof.trace import load as load_trace

if TYPE_CHECKING:
    import os

    from tileprof.analysis import TileGraph
    from tileprof.analysis.guidance import Guidance
    from tileprof.analysis.reporting.report import Report
    from tileprof.loaded_graph import LoadedGraph


@dataclass(frozen=True, slots=True)
class Summary:
    """The report of a trace with what to do first; prints as ``tileprof report`` does."""

    report: Report
    guidance: Guidance

    def __repr__(self) -> str:
        return f"<Summary {Path(self.report.source.path).name}: {self.guidance.verdict.sentence}>"

    def __str__(self) -> str:
        from rich.console import Console  # noqa: PLC0415 - heavy

        from tileprof.cli.text.report_text import print_report  # noqa: PLC0415 - heavy

        text = io.StringIO()
        print_report(self.report, 10, Console(file=text, width=100, highlight=False), guidance=self.guidance)
        return text.getvalue()

    def _repr_html_(self) -> str:
        """Return verdict, actions and schedules, for notebooks."""
        from tileprof.analysis.times_and_counts import duration, signed_percent  # noqa: PLC0415 - heavy

        actions = [
            (a.title, f"{a.saving} ({signed_percent(a.saves_share)})", a.basis, a.effort, a.command)
            for a in self.guidance.actions
        ]
        schedules = [(r.label, duration(r.time_ns), signed_percent(-r.saves_share)) for r in self.guidance.schedules]
        verdict = html.escape(self.guidance.verdict.sentence)
        head = ("action", "saves", "basis", "effort", "command")
        return f"<p><b>{verdict}</b></p>{html_table([head, *actions])}{html_table(schedules)}"


class LoadedTrace(Trace):
    """A trace with its graph, report and page; the graph and the summary are computed once."""

    @cached_property
    def _tiles(self) -> TileGraph:
        from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy

        return build_graph(self)

    @cached_property
    def _graph(self) -> LoadedGraph:
        from tileprof.loaded_graph import LoadedGraph  # noqa: PLC0415 - heavy

        return LoadedGraph.of(self._tiles, lambda: self._report)

    @cached_property
    def _report(self) -> Report:
        from tileprof.analysis.reporting.report import build_report  # noqa: PLC0415 - heavy

        return build_report(self._tiles)

    @cached_property
    def _summary(self) -> Summary:
        from tileprof.analysis.guidance import guide  # noqa: PLC0415 - heavy
        from tileprof.analysis.simulate import Simulator  # noqa: PLC0415 - heavy

        return Summary(self._report, guide(self._report, Simulator(self._tiles)))

    def graph(self) -> LoadedGraph:
        """Return which tile depends on which (`tileprof.analysis.build_graph`), with the gain of each pair,
        and plots.
        """
        return self._graph

    def report(self) -> Summary:
        """Return what limits the program, what to do first, and every pair of launches."""
        return self._summary

    def show(self, page: str | os.PathLike[str] | None = None, *, browser: bool = True) -> Path:
        """Write the page of ``tileprof view`` (default: a temporary file), open it in the browser, and return its
        path.
        """
        from tileprof.viz import page as write_page  # noqa: PLC0415 - heavy
        from tileprof.viz import study, variants  # noqa: PLC0415 - heavy

        target = Path(page) if page is not None else Path(tempfile.mkdtemp()) / f"{self.path.stem}.html"
        summary = self._summary
        text = write_page(
            self._tiles,
            summary.report,
            study(self._tiles),
            None,
            variants(self._tiles),
            guidance=summary.guidance,
        )
        target.write_text(text, encoding="utf-8")
        if browser:
            webbrowser.open(target.resolve().as_uri())
        return target

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{self._summary._repr_html_()}"


def load(path: str | os.PathLike[str]) -> LoadedTrace:
    """Return the trace in a folder, as `tileprof.trace.load`, which says what it raises."""
    return LoadedTrace(load_trace(path).path)
