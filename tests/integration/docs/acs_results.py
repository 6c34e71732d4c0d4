"""Tables of docs/acs.md: gains of programs that issue their launches themselves, simulations, and delayed runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PUSH_US = 0.15
"""Time that queueing a launch takes from the program's thread."""

Row = Mapping[str, Any]


FEWEST = 10
"""Number of pairs of runs from which an interval is stated and the fastest are compared."""


@dataclass(frozen=True)
class Eager:
    """A program in eager mode, from the last call of the machine that measured it.

    It has launches and median microseconds per step, and by mode the ratios of steps in stream order to those under
    ACS, one for each pair of runs.

    ``most`` has the ratios for a scheduler that costs nothing, whose step takes the time in which the program itself
    issues it. Where the program reads results back, it may have waited while kernels ran; this time is not counted.

    ``fastest`` has the fastest steps in us: in stream order, with an issuing thread, and as predicted from stream
    order. It is None if there were few pairs, or if launch costs were not measured on the same machine.
    """

    program: str
    date: str
    launches: int
    plain_us: float
    ratios: Mapping[str, Sequence[float]]
    fastest: tuple[float, float, float] | None
    most: Sequence[float]

    def gain(self, mode: str) -> float | None:
        """Return the geometric mean of the pairs of runs, or None if the mode was not measured."""
        return mean(self.ratios.get(mode, ()))

    def interval(self, mode: str) -> tuple[float, float] | None:
        """Return the 95% interval of that mean, or None if there are few pairs."""
        ratios = self.ratios.get(mode, ())
        if len(ratios) < FEWEST:
            return None
        logs = [math.log(ratio) for ratio in ratios]
        half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs))
        return math.exp(statistics.mean(logs) - half), math.exp(statistics.mean(logs) + half)


def mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean, if there is one."""
    return statistics.geometric_mean(ratios) if ratios else None


def eager(document: Row) -> Iterator[Eager]:
    """Yield the programs of ``acs_eager.json``. Calls of the machine are in order of time, the newest first."""
    programs = dict.fromkeys(row["program"] for call in document["calls"] for row in call["rows"])
    for program in programs:
        calls = [call for call in document["calls"] if any(row["program"] == program for row in call["rows"])]
        of_modes = [_by_mode(call, program) for call in calls]
        last = of_modes[0]
        facts = next((row for modes in of_modes for row in modes["plain"].values() if "launches_of_step" in row), {})
        launches = facts.get("launches_of_step", document["launches"].get(program))
        ratios = {
            mode: _ratios(modes, mode) for modes in reversed(of_modes) for mode in modes if mode != "plain"
        }  # from the last call that has the mode
        most = []
        if facts:
            hidden = PUSH_US * launches + (facts["kernels_us"] if facts["reads"] else 0)
            most = [
                last["plain"][pair]["us"] / max(row["issue_us"] - hidden, facts["longest_us"])
                for pair, row in last.get("thread", {}).items()
                if "issue_us" in row and pair in last["plain"]
            ]
        plain = [row["us"] for row in last["plain"].values()]
        fastest = None
        if facts and "costs" in calls[0] and len(ratios["thread"]) >= FEWEST:
            least = min(plain)
            taken_us = calls[0]["costs"]["host_issue_one_stream_ns"] / 1e3 - PUSH_US
            predicted = least - (launches - facts["reads"]) * taken_us
            fastest = least, min(row["us"] for row in last["thread"].values()), predicted
        yield Eager(program, calls[0]["date"], launches, statistics.median(plain), ratios, fastest, most)


def _by_mode(call: Row, program: str) -> dict[str, dict[int, Row]]:
    """Return the rows of a program in a call, by mode and pair."""
    out: dict[str, dict[int, Row]] = {}
    for row in call["rows"]:
        if row["program"] == program and row.get("us"):
            out.setdefault(row["mode"], {})[row["pair"]] = row
    return out


def _ratios(modes: Mapping[str, Mapping[int, Row]], mode: str) -> list[float]:
    plain = modes["plain"]
    return [plain[pair]["us"] / row["us"] for pair, row in modes[mode].items() if pair in plain]


LIKE_THE_PAPERS = (
    "cloth", "islands", "tree_lstm", "dynamic --kind gated", "dynamic --kind exits", "moe", "inception",
    "inception --kind nasnet",
)  # fmt: skip
"""Programs of the kinds that the ACS paper measures."""

TITLES = {
    "islands": "`islands` (CUDA alone)",
    "gpt2": "GPT-2",
    "acs_shipped inception-script.package inception --kind script": "`inception` as TorchScript",
    "acs_shipped nasnet-script.package nasnet --kind script": "`nasnet` as TorchScript",
    "acs_shipped tree_lstm-script.package tree_lstm --kind script": "`tree_lstm` as TorchScript",
}


def gains(document: Row, mode: str, programs: Sequence[str] = ()) -> list[float]:
    """Return the gains over stream order of all or of some programs."""
    chosen = (p for p in eager(document) if not programs or p.program in programs)
    return [gain for p in chosen if (gain := p.gain(mode)) is not None]


EAGER_HEAD = ("program", "launches", "us", "pairs", "gain", "95% interval", "`acs-graph`", "at most")


def eager_rows(document: Row) -> Iterator[Sequence[str]]:
    """Yield the cells of the table of gains."""

    def cell(gain: float | None) -> str:
        return f"{gain:.2f}x" if gain else ""

    for p in eager(document):
        pairs = p.ratios["thread"]
        low, high = p.interval("thread") or (min(pairs), max(pairs))
        yield (
            TITLES.get(p.program, f"`{p.program}`"),
            f"{p.launches}",
            f"{p.plain_us:,.0f}",
            f"{len(pairs)}",
            cell(p.gain("thread")),
            f"{low:.2f} to {high:.2f}" + ("" if p.interval("thread") else " (all)"),
            cell(p.gain("graph")),
            cell(mean(p.most)),
        )


FASTEST_HEAD = ("program", "stream order", "measured", "predicted", "error")


def fastest_rows(document: Row) -> Iterator[Sequence[str]]:
    """Yield the cells of the fastest steps in us, with the predicted times."""
    for p in eager(document):
        if p.fastest:
            _, measured, predicted = p.fastest
            title = TITLES.get(p.program, f"`{p.program}`")
            yield (title, *(f"{us:,.0f}" for us in p.fastest), f"{predicted / measured - 1:+.1%}")


SIMULATED_HEAD = ("program", "stream order", "measured", "simulated", "error")


def simulated_rows(document: Row) -> Iterator[Sequence[str]]:
    """Yield the cells of programs whose step under ACS was simulated, in us."""
    for row in document["rows"]:
        if "acs" in row:
            times = [f"{row[key]:,.0f}" for key in ("plain_us", "acs_us", "acs")]
            yield (f"`{row['program']}`", *times, f"{row['acs'] / row['acs_us'] - 1:+.0%}")


RUNS_HEAD = ("program", "GPU", "launches", "on other streams", "bits", "checked", "differ", "deleted write noticed")


def runs_rows(document: Row) -> Iterator[Sequence[str]]:
    """Yield the cells of programs that ran with delays and were checked."""
    for row in document["rows"]:
        yield (
            f"`{row['program']}`",
            row["gpu"],
            f"{row['launches']:,}",
            f"{row['spread']:,}",
            "same" if row["same"] else "OTHER",
            f"{row['checked']:,}",
            f"{row['differing']:,}",
            "yes" if row["noticed"] else "no",
        )


WAYS = {"graph": "`acs-graph`", "workers": "`acs --workers 8`"}
WAYS_HEAD = ("program", "scheduler", "launches", "in graphs", "on other streams", "bits")


def ways_rows(document: Row) -> Iterator[Sequence[str]]:
    """Yield the cells of programs that ran with delays as graphs and by workers."""
    for row in document["ways"]:
        counts = (f"{row[key]:,}" for key in ("launches", "in_graphs", "spread"))
        yield (f"`{row['program']}`", WAYS[row["way"]], *counts, "same" if row["same"] else "OTHER")


BOUNDS_HEAD = ("program", "launches", "host, us", "GPU, us", "step, ms", "kernels alone, ms", "as a plain graph, ms")


def bounds_rows(document: Row) -> Iterator[list[str]]:
    """Yield the row of each program of ``acs_bounds.json``: host and GPU times per launch."""
    for row in document["rows"]:
        times = (row[key] for key in ("step_us", "kernels_us", "graph_us"))
        cells = ["" if us is None else f"{us / 1e3:.2f}" for us in times]
        name = "GPT-2" if row["program"] in {"gpt2", "GPT-2"} else f"`{row['program']}`"
        yield [name, str(row["launches"]), f"{row['host_us']:.1f}", f"{row['gpu_us']:.1f}", *cells]
