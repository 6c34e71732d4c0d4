"""Tables of docs/acs.md: gains of programs that issue their launches themselves, simulations, and delayed runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PUSH_US = 0.15
"""What queueing a launch takes the program's thread."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Eager:
    """A program in eager mode, in several calls of the machine: launches and median microseconds of a step, and ratios
    of steps in stream order to those under ACS, by mode, one for each pair of runs.

    ``most``: the same for a scheduler that costs nothing, whose step is what the program itself takes to issue it.
    Where it reads results back, it may have waited while kernels ran, so that their time is not counted. Empty where
    the time until a step was issued was not measured. ``foretold``: without the driver's time for each launch, where
    the GPU is busy for less than half of a step.
    """

    program: str
    launches: int
    plain_us: float
    ratios: Mapping[str, Sequence[float]]
    foretold: Sequence[float]
    most: Sequence[float]

    def gain(self, mode: str) -> float | None:
        """Return the geometric mean of the pairs of runs; None where it was not measured."""
        return mean(self.ratios.get(mode, ()))


def mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean, if there is one."""
    return statistics.geometric_mean(ratios) if ratios else None


def eager(document: Row) -> Iterator[Eager]:
    """Yield the programs of ``acs_eager.json``, whose ``issue_us`` is what the driver takes to issue a launch."""
    calls = [document["rows"], *(call["rows"] for call in document["earlier"])]
    rows = [{**row, "call": number} for number, of_call in enumerate(calls) for row in of_call]
    for program in dict.fromkeys(row["program"] for row in rows):
        mine = [row for row in rows if row["program"] == program]
        plain = {(row["call"], row["pair"]): row["us"] for row in mine if row["mode"] == "plain"}
        ratios: dict[str, list[float]] = {}
        for row in mine:
            if row["mode"] != "plain" and (row["call"], row["pair"]) in plain:
                ratios.setdefault(row["mode"], []).append(plain[row["call"], row["pair"]] / row["us"])
        of_step = next((row for row in mine if "launches_of_step" in row), None)
        launches = of_step["launches_of_step"] if of_step else document["launches"][program]
        foretold: list[float] = []
        most: list[float] = []
        if of_step is not None:
            taken = launches * (document["issue_us"] - PUSH_US)
            foretold = [us / (us - taken) for us in plain.values() if of_step["kernels_us"] < us / 2]
            hidden = PUSH_US * launches + (of_step["kernels_us"] if of_step["reads"] else 0)
            most = [
                plain[row["call"], row["pair"]] / max(row["issue_us"] - hidden, of_step["longest_us"])
                for row in mine
                if row["mode"] == "thread" and "issue_us" in row and (row["call"], row["pair"]) in plain
            ]
        yield Eager(program, launches, statistics.median(plain.values()), ratios, foretold, most)


LIKE_THE_PAPERS = (
    "cloth", "islands", "tree_lstm", "dynamic --kind gated", "dynamic --kind exits", "moe", "inception",
    "inception --kind nasnet",
)  # fmt: skip
"""Programs of the kinds that the paper of ACS measures."""

TITLES = {
    "islands": "`islands` (CUDA alone)",
    "gpt2": "GPT-2",
    "acs_shipped inception-script.package inception --kind script": "`inception` as TorchScript",
    "acs_shipped nasnet-script.package nasnet --kind script": "`nasnet` as TorchScript",
    "acs_shipped tree_lstm-script.package tree_lstm --kind script": "`tree_lstm` as TorchScript",
}


def gains(document: Row, mode: str, programs: Sequence[str] = ()) -> list[float]:
    """Return gains over stream order, of all programs or of some."""
    chosen = (p for p in eager(document) if not programs or p.program in programs)
    return [gain for p in chosen if (gain := p.gain(mode)) is not None]


EAGER_HEAD = ("program", "launches", "us", "pairs", "gain", "least and most", "`acs-graph`", "foretold", "at most")


def eager_rows(document: Row) -> Iterator[Sequence[str]]:
    """Yield the cells of the table, and geometric means."""

    def cell(gain: float | None) -> str:
        return f"{gain:.2f}x" if gain else ""

    for p in eager(document):
        pairs = p.ratios["thread"]
        means = [cell(gain) for gain in (p.gain("graph"), mean(p.foretold), mean(p.most))]
        yield (
            TITLES.get(p.program, f"`{p.program}`"),
            f"{p.launches}",
            f"{p.plain_us:,.0f}",
            f"{len(pairs)}",
            cell(p.gain("thread")),
            f"{min(pairs):.2f} to {max(pairs):.2f}",
            *means,
        )


SIMULATED_HEAD = ("program", "stream order", "measured", "simulated", "error")


def simulated_rows(document: Row) -> Iterator[Sequence[str]]:
    """Yield the cells of programs whose step under ACS was simulated, us."""
    for row in document["rows"]:
        if "acs" in row:
            times = [f"{row[key]:,.0f}" for key in ("plain_us", "acs_us", "acs")]
            yield (f"`{row['program']}`", *times, f"{row['acs'] / row['acs_us'] - 1:+.0%}")


RUNS_HEAD = ("program", "launches", "on other streams", "results", "checked", "differ", "deleted write noticed")


def runs_rows(document: Row) -> Iterator[Sequence[str]]:
    """Yield the cells of programs that ran with delays, and were checked."""
    for row in document["rows"]:
        checked = row.get("differing", -1) >= 0
        check = [f"{row['checked']:,}", f"{row['differing']:,}"] if checked else ["", ""]
        noticed = ("yes" if row["noticed"] else "no") if "noticed" in row else ""
        same = "those of stream order" if row["same"] else "OTHERS"
        yield (f"`{row['program']}`", f"{row['launches']:,}", f"{row['spread']:,}", same, *check, noticed)
