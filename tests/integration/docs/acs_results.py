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
    """A program in eager mode: launches and microseconds of a step, by mode and pair of runs.

    ``most`` is the gain of a scheduler that costs nothing: the step is then what the program itself takes to issue it.
    Where it reads results back, it may have waited while kernels ran, so that their time is not counted; None where the
    time until a step was issued was not measured.
    """

    program: str
    launches: int
    us: Mapping[str, Mapping[int, float]]
    same: bool
    foretold: float | None
    most: float | None

    def step(self, mode: str) -> float:
        """Return the median of a step, us."""
        return statistics.median(self.us[mode].values())

    def gain(self, mode: str) -> float | None:
        """Return the gain over stream order of the medians; None where it was not measured."""
        return self.step("plain") / self.step(mode) if self.us.get(mode) else None

    def pairs(self, mode: str) -> list[float]:
        """Return the gain of each pair of runs."""
        plain = self.us["plain"]
        return [plain[pair] / us for pair, us in sorted(self.us[mode].items()) if pair in plain]


def eager(document: Row) -> Iterator[Eager]:
    """Yield the programs of ``acs_eager.json``, whose ``issue_us`` is what the driver takes to issue a launch."""
    issue_us = document["issue_us"]
    for program in dict.fromkeys(row["program"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["program"] == program and row["us"]]
        us: dict[str, dict[int, float]] = {}
        for row in rows:
            us.setdefault(row["mode"], {})[row["pair"]] = row["us"]
        if not (us.get("plain") and us.get("thread")):
            continue
        plain = statistics.median(us["plain"].values())
        of_step = next((row for row in rows if row.get("launches_of_step")), None)
        launches = of_step["launches_of_step"] if of_step else document["launches"].get(program, 0)
        foretold = most = None
        issued = [row["issue_us"] for row in rows if row["mode"] == "thread" and row.get("issue_us")]
        if of_step is not None and issued:
            own = statistics.median(issued) - PUSH_US * launches - (of_step["kernels_us"] if of_step["reads"] else 0)
            most = plain / max(own, of_step["longest_us"])
            if of_step["kernels_us"] < plain / 2:
                foretold = plain / (plain - launches * (issue_us - PUSH_US))
        same = len({row["said"] for row in rows}) == 1
        yield Eager(program, launches, us, same, foretold, most)


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
    return [
        gain for p in eager(document) if (not programs or p.program in programs) and (gain := p.gain(mode)) is not None
    ]


EAGER_HEAD = ("program", "launches", "stream order", "`acs`", "by pair of runs", "`acs-graph`", "foretold", "at most")


def eager_rows(document: Row) -> Iterator[Sequence[str]]:
    """Yield the cells of the table, and geometric means."""

    def cell(gain: float | None) -> str:
        return f"{gain:.2f}x" if gain else ""

    for p in eager(document):
        title = TITLES.get(p.program, f"`{p.program}`")
        pairs = p.pairs("thread")
        spread = f"{min(pairs):.2f} to {max(pairs):.2f}"
        others = [cell(gain) for gain in (p.gain("graph"), p.foretold, p.most)]
        yield (title, f"{p.launches}", f"{p.step('plain'):,.0f}", cell(p.gain("thread")), spread, *others)
    means = [cell(statistics.geometric_mean(gains(document, mode))) for mode in ("thread", "graph")]
    yield ("geometric mean", "", "", means[0], "", means[1], "", "")


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
