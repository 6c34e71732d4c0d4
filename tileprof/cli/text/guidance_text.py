"""Guidance as text: the verdict, schedules of the whole program, ranked actions, and where the time goes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tileprof.analysis.times_and_counts import duration, signed_percent
from tileprof.cli.text.console import plain

if TYPE_CHECKING:
    from rich.console import Console

    from tileprof.analysis.guidance import Action, Guidance, Share
    from tileprof.analysis.reporting.report import Report

_MOST_SHARES = 6
_MOST_TITLE = 160
_BAR, _SHORTEST_BAR = 24, 8
"""Characters of the longest bar beside a schedule where there is room, and at least."""


def print_guidance(guidance: Guidance, report: Report, console: Console) -> None:
    """Print what limits the program, what it could take, and what to do, the most useful first."""
    console.print(Text(_sentence(plain(guidance.verdict.sentence)), style="bold"))
    if len(guidance.schedules) > 1:
        console.print(_schedules(guidance, console.width))
    if guidance.actions:
        console.print(_actions(guidance.actions))
    if len(guidance.actions) > 1:
        console.print(Text("Savings of different actions overlap: do not add them.", style="dim"))
    if report.program.launches:
        console.print()


def print_shares(guidance: Guidance, console: Console) -> None:
    """Print where the time goes, by operator and by module."""
    for title, rows in (("operator", guidance.operators), ("module", guidance.modules)):
        if rows and not (len(rows) == 1 and title == "module"):
            console.print()
            console.print(_shares(title, rows, console.width))


def percent(share: float) -> str:
    """Return a share as a percentage, with a decimal below ten and near a hundred, which is not all."""
    whole = share == 0 or 0.0995 <= share < 0.995 or share >= 0.9995
    return f"{100 * share:.0f}%" if whole else f"{100 * share:.1f}%"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _schedules(guidance: Guidance, width: int) -> Table:
    """Return the schedules; bars shrink first where the terminal is narrow, then names: numbers are never cut."""
    longest = max(row.time_ns for row in guidance.schedules)
    rows = [
        (
            f"  {row.label}",
            duration(row.time_ns),
            "" if row.name == "recorded" else signed_percent(-row.saves_share),
        )
        for row in guidance.schedules
    ]
    wide = [max(map(len, each)) for each in zip(*rows, strict=True)]
    room = width - sum(wide[1:]) - 2 * len(wide)
    most = max(_SHORTEST_BAR, min(_BAR, room - wide[0]))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, width=min(wide[0], room - most))
    for column in wide[1:]:
        table.add_column(justify="right", no_wrap=True, width=column)
    table.add_column(no_wrap=True, width=most)
    for cells, row in zip(rows, guidance.schedules, strict=True):
        table.add_row(*map(Text, (*cells, "▇" * max(1, math.ceil(most * row.time_ns / longest)))))
    return table


def _actions(actions: tuple[Action, ...]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="bold", justify="right")
    table.add_column(overflow="fold")
    for rank, action in enumerate(actions, 1):
        table.add_row(f"{rank}.", _action(action))
    return table


def _action(action: Action) -> Text:
    how = "" if action.basis == "at most" else f", {action.basis}"
    saves = f"{action.saving} ({signed_percent(action.saves_share)}{how}; {action.effort} of work)"
    text = Text(_capital(plain(action.title, _MOST_TITLE)), style="bold")
    text.append(f": saves {saves}", style="not bold")
    text.append(f"\n{plain(action.reason)}", style="not bold dim")
    text.append(f"\n{'$ ' if action.command.startswith('tileprof ') else ''}{plain(action.command)}", style="not bold")
    return text


def _capital(text: str) -> str:
    return text if text.startswith("torch.") else text[:1].upper() + text[1:]


def _shares(title: str, rows: tuple[Share, ...], width: int) -> Table:
    table = Table(box=None, pad_edge=False, title=Text(f"Time by {title}", style="bold"), title_justify="left")
    table.add_column(title, no_wrap=True)
    for name in ("launches", "time", "of all", "GPU filled"):
        table.add_column(name, justify="right", no_wrap=True)
    names = min(max(width - 44, 24), 72)
    for row in rows[:_MOST_SHARES]:
        cells = (f"{row.launches:,}", duration(row.time_ns), percent(row.share), percent(row.filled))
        table.add_row(*map(Text, (plain(row.name, names), *cells)))
    if rest := rows[_MOST_SHARES:]:
        count, share = sum(row.launches for row in rest), sum(row.share for row in rest)
        total = duration(sum(row.time_ns for row in rest))
        table.add_row(*map(Text, (f"{len(rest)} more", f"{count:,}", total, percent(share), "")))
    return table
