"""The report as text for a terminal of 80 columns or more.

Kernel, module and operator names come from the recorded program and are not trusted: they are shown as plain text,
their control characters as escapes.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from tileprof.analysis.bounds import ANY, ASSUMPTIONS, ROOFLINE
from tileprof.analysis.reporting.gains import MOST_ANSWERS, NOT_COMPUTED, described_edges
from tileprof.analysis.reporting.report import Report
from tileprof.analysis.reporting.step_graphs import StepGraphs
from tileprof.analysis.times_and_counts import duration
from tileprof.cli.text.console import plain, sparkline, terminal
from tileprof.cli.text.guidance_text import percent, print_guidance, print_shares
from tileprof.cli.text.messages import why_empty
from tileprof.shell_words import shell_word

if TYPE_CHECKING:
    from rich.console import Console

    from tileprof.analysis.guidance import Guidance
    from tileprof.viz.figures.report_curves import Curves

_NARROWEST = 80
_COLUMNS = {"pattern": 22, "early": 8, "gain": 8, "of all": 6}
"""Widths of the table of pairs, in characters, beside the names."""
_BUSY_BINS = 60
_ROUNDING = 1e-6
"""Relative tolerance for sums of many durations; each launch also has a nanosecond, since recorded times are whole
ones.
"""
_MOST_LAYERS = 4
_TIMES = "\N{MULTIPLICATION SIGN}"


def print_report(
    report: Report,
    top: int,
    console: Console | None = None,
    curves: Curves | None = None,
    *,
    guidance: Guidance | None = None,
    recording: bool = False,
) -> None:
    """Print a report; ``top`` pairs of launches, 0 for all.

    ``guidance`` comes first, where there is any; ``curves`` of the same graph adds sparklines; ``recording``: the trace
    is still being written.

    A map of tiles that is too long for its column wraps on a terminal, and widens the column elsewhere.
    """
    console = console or terminal()
    console.width = max(console.width, _NARROWEST)
    for line in _warnings(report, recording=recording):
        console.print(Text(line, style="bold yellow"))
    if guidance is not None:
        print_guidance(guidance, report, console)
    console.print(_program(report, curves))
    if guidance is not None:
        print_shares(guidance, console)
    if report.program.launches and report.dependencies_known:
        console.print()
        console.print(_bounds(report))
        if report.layers:
            console.print()
            console.print(_layers(report))
        if report.step_graphs is not None:
            console.print(Text(step_graphs_sentence(report.step_graphs)))
        _print_pairs(report, top, console, curves)
    if report.program.launches:
        console.print(_conservative(report))
    for note in report.source.notes:
        console.print(Text(f"Note from the recorder: {plain(note)}"))
    for line in _footnotes(report):
        console.print(Text(line, style="dim"))
    console.print(_next_step(report))


def quantity(value: float) -> str:
    """Return three figures and a decimal prefix: 1.23 G."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.0f} "


def _warnings(report: Report, *, recording: bool) -> list[str]:
    source = report.source
    lines = []
    if recording:
        lines.append("STILL BEING RECORDED: this report covers what is on the disk so far.")
    elif not source.complete:
        why = f" ({plain(source.reason)})" if source.reason else ""
        lines.append(f"PARTIAL TRACE{why}: it ends before the program did. The report is about the recorded part.")
    if assumed := report.program.tile_times.get(ROOFLINE, 0):
        lines.append(
            f"{assumed:,} of {report.program.launches:,} launches have no durations: patterns and waves are right, "
            "their times are "
            "modelled by a roofline (FLOPs or bytes at the rates that the GPU sustains), and so are gains."
        )
    if not report.dependencies_known:
        lines.append(
            "The trace has no accesses: which launches depend on each other is unknown, so there are no patterns and "
            "no gains."
        )
    elif report.bounds.bound_ns > (1 + _ROUNDING) * report.bounds.recorded_ns + report.program.launches:
        b = report.bounds
        lines.append(
            f"The recorded {duration(b.recorded_ns)} is less than the bound {b.binding} allows "
            f"({duration(b.bound_ns)}): the recorded "
            "times, FLOPs or bytes cannot all be right on this GPU, so do not trust gains."
        )
    return lines


def _program(report: Report, curves: Curves | None) -> Table:
    p, source = report.program, report.source
    command = plain(shlex.join(source.command), 200) or plain(source.path)
    lines = [("recorded", f"{command}  ({plain(source.recorder)} recorder)")]
    lines.append(("device", f"{plain(report.device)}, {report.sms} SMs"))
    if report.replayed:
        lines.append(
            (
                "asked for",
                "another GPU than the recorded one: tiles last as recorded, launches are replayed in stream order",
            )
        )
    if not p.launches:
        lines.append(("launches", f"none: {why_empty(complete=source.complete)}"))
        return _key_value_table(lines)
    if not report.dependencies_known:
        return _key_value_table([*lines, *_shape(report, curves), ("dependencies", "unknown: no bound, no gain")])
    traffic = f"tiles read {quantity(p.bytes_read)}B and write {quantity(p.bytes_written)}B"
    lines += [
        *_shape(report, curves),
        ("work", f"{'arithmetic not recorded' if _no_flops(report) else f'{quantity(p.flops)}FLOP'}; {traffic}"),
        (
            "memory",
            f"{quantity(report.bounds.dram_bytes)}B in and out, of which an L2's worth each may stay on the chip",
        ),
    ]
    if p.recorded_ns > 0 and report.dependencies_known:
        b = report.bounds
        lines.append(("bound", f"{duration(b.bound_ns)} ({b.binding}): no schedule saves more than {percent(b.gain)}"))
        if b.achievable_gain is not None and b.listed_ns is not None:
            lines.append(
                (
                    "achievable",
                    f"{duration(b.listed_ns)} by list scheduling, free launches: {percent(b.achievable_gain)} saved",
                )
            )
        else:
            lines.append(("achievable", "not computed: too many tiles to list-schedule whole; the pairs below are"))
    return _key_value_table(lines)


def _shape(report: Report, curves: Curves | None) -> list[tuple[str, str]]:
    """Return what needs no accesses: launches, waves and time."""
    p = report.program
    idle = f"{percent(p.idle)} of slot-time has no tile while launches run"
    return [
        ("launches", f"{p.launches:,} with {p.tiles:,} tiles in {p.waves:,} waves"),
        ("last waves", f"{percent(p.last_wave)} full on average; {idle}"),
        *_busy(report, curves),
        ("time", _time(report)),
        *_sources(report),
    ]


_SHAPES = {
    "table": "from tables", "learned": "from trained predictions", "neighbour": "from neighbours in tables",
    "heuristic": "from a library's heuristic",
    "rule": "by rules", "dictated": "dictated",
}  # fmt: skip
_TIMINGS = {"calibrated": "measured beforehand", "interpolated": "interpolated", "roofline": "by roofline"}


def _sources(report: Report) -> list[tuple[str, str]]:
    """Return how modelled launches got their kernels and their times; nothing where none was modelled."""
    p = report.program
    shapes = [f"{p.shape_sources[word]:,} {text}" for word, text in _SHAPES.items() if p.shape_sources.get(word)]
    times = [f"{p.time_sources[word]:,} {text}" for word, text in _TIMINGS.items() if p.time_sources.get(word)]
    if not shapes:
        return []
    return [("kernels", ", ".join(shapes) + (f"; times: {', '.join(times)}" if times else ""))]


def _busy(report: Report, curves: Curves | None) -> list[tuple[str, str]]:
    """Return how full the GPU was over the recorded time, from left to right; nothing for another GPU."""
    if curves is None or report.replayed or report.program.recorded_ns <= 0:
        return []
    shares = curves.busy(_BUSY_BINS)
    return [("slots busy", f"{sparkline(shares)} {percent(float(shares.mean()))}")]


def _time(report: Report) -> str:
    p = report.program
    timing = " and ".join(
        f"{word} for {count:,} launches" if len(p.timing) > 1 else word for word, count in sorted(p.timing.items())
    )
    if p.tile_times.get(ROOFLINE, 0):
        timing = "modelled: roofline" if p.tile_times[ROOFLINE] == p.launches else f"{timing}, some by roofline"
    gaps = f", {duration(p.gap_ns)} of it between launches" if p.gap_ns > 0.005 * p.recorded_ns else ""
    return f"{duration(p.recorded_ns)} ({timing}){gaps}"


def _key_value_table(lines: list[tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for word, rest in lines:
        table.add_row(Text(word), Text(rest))
    return table


def _no_flops(report: Report) -> bool:
    """Return whether no launch has a number of operations, which only tile models know."""
    return report.program.flops == 0 and report.source.recorder != "model"


def _bounds(report: Report) -> Table:
    b = report.bounds
    table = Table(box=None, pad_edge=False, title=Text("Bounds on the program", style="bold"), title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("saves at most", justify="right", no_wrap=True)
    table.add_column("holds for")
    for name, ns in b.ns.items():
        if (name == "compute" and _no_flops(report)) or ns <= 0:  # 0 bounds nothing: all data fit the cache, say
            continue
        holds = "any schedule" if name in ANY else ASSUMPTIONS[name].split(";")[0].split(":")[0]
        saved = percent(max(0.0, 1 - ns / b.recorded_ns)) if b.recorded_ns > 0 else "-"
        mark = " *" if name == b.binding else ""
        table.add_row(f"{name}{mark}", duration(ns), saved, holds, style="bold" if mark else "")
    listed = {"achieved": b.listed_ns}
    if b.listed_reuse_ns != b.listed_ns:
        listed = {"achieved; memory renamed": b.listed_ns, "achieved; memory recycled as recorded": b.listed_reuse_ns}
    for how, list_ns in listed.items():
        if list_ns is not None:
            saved = percent(max(0.0, 1 - list_ns / b.recorded_ns)) if b.recorded_ns > 0 else "-"
            table.add_row("list schedule", duration(list_ns), saved, how)
    return table


def _layers(report: Report) -> Table:
    table = Table(
        box=None, pad_edge=False, title=Text("Repeated layers and steps, each", style="bold"), title_justify="left"
    )
    table.add_column("", ratio=1, no_wrap=True)
    for name in ("launches", "time", "bound", "saves at most", "listed", "saves"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in report.layers[:_MOST_LAYERS]:
        b, name = layer.bounds, f"{plain(layer.name)} {_TIMES}{layer.times}"
        listed = duration(b.listed_ns) if b.listed_ns is not None else "-"
        saves = percent(b.achievable_gain) if b.achievable_gain is not None else "-"
        cells = (
            f"{layer.first}..{layer.last}",
            duration(b.recorded_ns),
            duration(b.bound_ns),
            percent(b.gain),
            listed,
            saves,
        )
        table.add_row(*map(Text, (name, *cells)))
    return table


def step_graphs_sentence(loop: StepGraphs) -> str:
    """Return how soon the graph of thread blocks repeats, for a scheduler that stores it."""
    what = f"Loop of {loop.steps:,} steps of {loop.launches:,} launches:"
    if loop.settled is None:
        if loop.settled_renamed is None:
            return f"{what} the thread block graph still changes in the last step ({loop.changes:,} changes)."
        return f"{what} the thread block graph changes only through recycled memory ({loop.changes:,} changes)."
    renamed = loop.settled_renamed
    own = f" (without recycled memory from step {renamed + 1:,})" if renamed not in (None, loop.settled) else ""
    return (
        f"{what} from step {loop.settled + 1:,} on the thread block graph is the same{own}; "
        f"{percent(loop.reused_share)} of all dependencies lie behind that step."
    )


def _print_pairs(report: Report, top: int, console: Console, curves: Curves | None) -> None:
    console.print()
    if report.program.launches == 1:
        console.print(Text("One launch: there is nothing to overlap it with."))
        return
    groups = report.groups
    if not len(groups):
        console.print(Text("No launch depends on another: they may all run at the same time."))
        return
    direct_groups = groups[groups["direct"].to_numpy(bool)]
    rows = (direct_groups.head(top) if top else direct_groups).to_dict("records")
    table = Table(
        box=None,
        pad_edge=False,
        title=Text("Dependent launches, those first that gain most while all else stays ordered", style="bold"),
        title_justify="left",
    )
    columns, width = dict(_COLUMNS), console.width
    names = width - sum(columns.values()) - 2 * len(columns)
    if not console.is_terminal:  # a file or a pipe has no width: no map is wrapped
        columns["pattern"] = max([columns["pattern"], *(len(plain(str(row["map"]))) for row in rows)])
        console.width = names + sum(columns.values()) + 2 * len(columns)
    table.add_column("producer → consumer", width=names, no_wrap=True)
    for name, wide in columns.items():
        justify: Literal["left", "right"] = "left" if name == "pattern" else "right"
        table.add_column(name, width=wide, overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*_pair_cells(row, report.program.recorded_ns, names, curves))
    console.print(table)
    console.width = width
    console.print(Text(_below(report, len(direct_groups), len(rows)), style="dim"))
    console.print(_first_pair(report))


def _pair_cells(row: dict[Any, Any], program_ns: float, width: int, curves: Curves | None) -> list[Text]:
    times = f"  {_TIMES}{row['times']}" if row["times"] > 1 else ""
    first = row["producers"][0], row["consumers"][0]
    names = Text(f"{first[0]} → {first[1]}{times}\n", style="bold")
    names.append(f"  {launch_name(row, 'producer', width - 2)}\n", style="not bold")
    names.append(f"→ {launch_name(row, 'consumer', width - 2)}", style="not bold")
    mark = " (recycled)" if row["reuse_only"] else " (conservative)" if row["coverage"] == "conservative" else ""
    pattern = Text(f"{plain(str(row['pattern']))}{mark}\n")
    pattern.append(f"{quantity(described_edges(row)).strip()} edges {quantity(row['bytes'])}B\n")
    pattern.append(plain(str(row["map"])), style="dim")
    early = Text(percent(row["early"]))
    if curves is not None and row["early"] > 0:
        early.append("\n" + sparkline(curves.ready(*first, _COLUMNS["early"])))
    gains = (row["gain_ns"], row["listed_gain_ns"])
    gain, share = Text(), Text()
    for ns, style in zip(gains, ("", "dim"), strict=True):
        timed = program_ns > 0 and not math.isnan(ns)
        gain.append(f"{duration(ns) if timed else '-'}\n", style=style)
        share.append(f"{percent(ns / program_ns) if timed else '-'}\n", style=style)
    return [names, pattern, early, gain, share]


def launch_name(row: dict[Any, Any], side: str, most: int = 0) -> str:
    """Return operator (or kernel) and module of one side of a folded pair, as plain text."""
    operator = str(row[f"{side}_op"]).removeprefix("aten::") or str(row[f"{side}_kernel"]) or "?"
    module = str(row[f"{side}_module"])
    return plain(f"{operator} {module}".strip(), most)


def _below(report: Report, direct: int, shown: int) -> str:
    others = len(report.groups) - direct
    lines = [f"{shown} of {direct} kinds of pairs shown{'' if shown == direct else '; --top 0 shows all'}."]
    if others:
        lines.append(f"{others} more are left out: a launch in between orders them anyway (--json has them).")
    return " ".join(lines)


def _conservative(report: Report) -> Text:
    text = Text()
    rows = report.conservative
    if not len(rows):
        return text
    count, total = int(rows["launches"].sum()), report.program.launches
    text.append(f"\n{count:,} of {total:,} launches are conservative", style="bold yellow")
    text.append(": what they touch is a superset, so some of their dependencies may not exist.\n")
    for row in rows.head(8).to_dict("records"):
        name = plain(str(row["op"]).removeprefix("aten::") or str(row["kernel"]), 60)
        note = f"  {plain(row['notes'][0], 100)}" if row["notes"] else ""
        text.append(f"  {name} {_TIMES}{row['launches']}{note}\n")
    if len(rows) > 8:
        text.append(f"  and {len(rows) - 8} more operators\n")
    return text


def _footnotes(report: Report) -> list[str]:
    p = report.program
    if not p.launches:
        return []
    lines = (
        []
        if not report.dependencies_known
        else [
            (
                "early: share of the consumer's tiles whose inputs from the producer are complete before the producer "
                "ends."
            ),
            "The blocks below it: the share of them that is ready, over the producer's time.",
            (
                "gain: recorded time of the two launches less the largest bound on the two alone, summed over "
                f"repetitions ({_TIMES})."
            ),
            "Below it what list scheduling of the two saves. Gains of different pairs overlap: do not add them.",
        ]
    )
    if "modelled" in p.timing or {"spread", ROOFLINE} & p.tile_times.keys():
        lines.append(
            "Times marked modelled come from measured tables or the device's roofline, not from this run; a bound from "
            "them is a bound on the model."
        )
    if "measured" in p.timing and p.tile_times.get(ROOFLINE, 0) < p.launches:
        lines.append("Tiles are taken to last as long as they did when recorded; beside other tiles they may not.")
    if p.launch_ns > 0 and abs(p.alone_ns - p.launch_ns) > 0.05 * p.launch_ns:
        lines.append(
            f"Tiles replayed launch by launch need {duration(p.alone_ns)}, the launches were recorded with "
            f"{duration(p.launch_ns)}: tile times explain {percent(p.alone_ns / p.launch_ns)} of it."
        )
    if report.unknown_lags > 0.01:
        lines.append(
            f"For {percent(report.unknown_lags)} of dependencies it is unknown when the tiles touch the bytes; the "
            "wait-inside path takes the most favourable time, so bounds below the ready-gated path are weak."
        )
    if report.source.granule > 1:
        lines.append(f"The recorder worked in units of {report.source.granule} bytes: the graph is a superset.")
    if not report.dependencies_known:
        return lines
    left_out = int((report.pairs["binding"] == NOT_COMPUTED).sum())
    if left_out:
        lines.append(
            f"{left_out:,} of {len(report.pairs):,} pairs of launches were not bounded, those farthest apart: at most "
            f"{MOST_ANSWERS:,} different ones are."
        )
    lines.append(f"* {report.bounds.binding}: {ASSUMPTIONS[report.bounds.binding]}.")
    return lines


def _worth(row: dict[Any, Any], program_ns: float) -> str:
    """Return what overlapping the first pair is worth, and what of it is the launch gap alone."""
    most = f"At most {duration(row['gain_ns'])} can be saved, {percent(row['gain_ns'] / program_ns)} of the program"
    if row["overlap_ns"] > 0:
        return f"{most}; list scheduling saves {duration(row['overlap_ns'])} beyond the launch gap."
    return (
        f"{most}; list scheduling saves the launch gap only, which a CUDA graph or programmatic launch mostly does too "
        "(no tile can start before the producer's last wave ends, or none has a slot)."
    )


def _first_pair(report: Report) -> Text:
    """Return the pair that gains most while everything else stays ordered; `tileprof export` takes it where nothing
    else is asked for.
    """
    look = report.first_look
    if look is None:
        return Text()
    row = report.groups.iloc[look].to_dict()
    times = f", {_TIMES}{row['times']}" if row["times"] > 1 else ""
    text = Text()
    text.append("First pair: ", style="bold")
    text.append(
        f"launches {row['producers'][0]} → {row['consumers'][0]}, {launch_name(row, 'producer')} → "
        f"{launch_name(row, 'consumer')}{times}. {_worth(row, report.program.recorded_ns)}"
    )
    return text


def _next_step(report: Report) -> Text:
    text = Text("\n")
    text.append("Next: ", style="bold")
    if not report.program.launches and not report.source.complete:
        return text.append("record again: the recording was cut before anything was saved")
    if not report.program.launches:
        return text.append(
            "record a program that computes something, inside the window (capture, --module, --skip): "
            "tileprof record python your_script.py"
        )
    return text.append(f"tileprof view {shell_word(report.source.path)}")
