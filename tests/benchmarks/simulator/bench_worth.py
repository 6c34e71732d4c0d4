"""What each scheduler's deviations from its source are worth: simulated times under the source's rule beside ours.

python tests/benchmarks/simulator/bench_worth.py

Writes `RESULTS`; a test compares the table of docs/simulator-accuracy.md and the docstrings of the schedulers with it.
Times are simulated.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tileprof.analysis import build_graph
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.analysis.simulate.schedulers.wireframe import Wireframe
from tileprof.analysis.simulate.spawning import Spawning, spawn
from tileprof.analysis.workloads import SPAWNS
from tileprof.trace import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, tileprof

RESULTS = Path(__file__).parents[1] / "results" / "worth.json"

PROGRAMS = {
    "GPT-2": "tests/golden/gpt2.tileprof",
    "mixture of experts": ("moe",),
    "GRU": ("gru", "--steps", "8", "--hidden", "256", "--batch", "16"),
}
"""A trace recorded on an H200, and programs that the model recorder records for one."""

CHILDREN = ("bfs", "sssp", "join")
"""Programs for SPAWN, whose threads launch child grids; a trace has none."""
SCALE = 12

LEVELS = "wireframe, tiles by level"
NEIGHBOURS = "blockmaestro, read after write between neighbours"


@dataclass(frozen=True)
class Rule:
    """One rule of a scheduler: what its ``source`` says and what is simulated (``here``), and the schedulers that
    follow each; ``theirs`` is another one's name where no option gives it.
    """

    scheduler: str
    rule: str
    source: str
    here: str
    theirs: str
    ours: str


RULES = (
    Rule("stream", "host", "not stated", "time per launch", "stream:issue=0ns", "stream"),
    Rule("graph", "many free nodes", "not stated", "one per `issue_ns`", "graph:issue=0ns", "graph"),
    Rule("pdl", "trigger", "at a block's end", "at its entry", "pdl:issue=0ns,trigger=1", "pdl:issue=0ns"),
    Rule("pdl", "wait", "where the kernel says", "where bytes are needed", "pdl:issue=0ns,prologue=0", "pdl:issue=0ns"),
    Rule("streams", "queues watched", "4 of 8, in turn", "all", "streams:issue=0ns,hardware=4", "streams:issue=0ns"),
    Rule("acs-sw", "hazards", "by ranges", "the same; `exact=1`", "acs-sw:issue=0ns", "acs-sw:issue=0ns,exact=1"),
    Rule(
        "acs-sw", "which hazards", "the printed check", "all three", "acs-sw:issue=0ns,published=1", "acs-sw:issue=0ns"
    ),
    Rule("acs-sw", "order", "by host threads", "the same; `events=1`", "acs-sw:issue=0ns", "acs-sw:issue=0ns,events=1"),
    Rule("acs-hw", "hazards", "by ranges", "the same; `exact=1`", "acs-hw", "acs-hw:exact=1"),
    Rule("acs-hw", "which hazards", "the printed check", "all three", "acs-hw:published=1", "acs-hw"),
    Rule("cusync", "RowSync's wait", "at entry", "the faster", "cusync:issue=0ns,inside=0", "cusync:issue=0ns"),
    Rule(
        "cusync", "TileSync's wait", "in the main loop", "the faster", "cusync:issue=0ns,inside=1", "cusync:issue=0ns"
    ),
    Rule(
        "cusync", "kernels under way", "a pair", "the same; `window=0`", "cusync:issue=0ns", "cusync:issue=0ns,window=0"
    ),
    Rule("persistent", "lists", "dynamic (MPK)", "static", "persistent-dynamic", "persistent"),
    Rule(
        "persistent-dynamic",
        "schedulers",
        "4 SMs of 132",
        "the same; `scheduler_sms=0`",
        "persistent-dynamic",
        "persistent-dynamic:scheduler_sms=0,decide=0ns",
    ),
    Rule("inline", "tiles ahead", "all in the queue", "without free workers'", "inline:policy=3", "inline"),
    Rule("ccks", "decisions", "ahead of parents", "the same; `speculate=0`", "ccks", "ccks:speculate=0"),
    Rule("ccks", "bypass", "one parent", "the same; `bypass=0`", "ccks", "ccks:bypass=0"),
    Rule(
        "blockmaestro", "dependencies", "RAW of neighbours", "all in the window", NEIGHBOURS, "blockmaestro:issue=0ns"
    ),
    Rule(
        "blockmaestro",
        "gathers",
        "whole kernel",
        "the same; `static=0`",
        "blockmaestro:issue=0ns",
        "blockmaestro:issue=0ns,static=0",
    ),
    Rule("wireframe", "order", "by level", "of issue", LEVELS, "wireframe"),
    Rule(
        "dataflow-bloom",
        "filters",
        "cost nothing",
        "as measured",
        "dataflow-bloom:insert=0ns,look_up=0ns",
        "dataflow-bloom",
    ),
    Rule("dataflow-bloom", "dependencies", "by filters", "the same; exact", "dataflow-bloom", "dataflow"),
    Rule("dataflow", "graph", "stored at first run", "known; `first=1`", "dataflow:first=1", "dataflow"),
)

WINDOW = Rule("spawn", "throughput", "windows of 1,024 cycles", "all of time", "window", "cumulative")
WINDOW_NS = 1024 / 0.706
"""A window of 1,024 cycles of a K20c at 706 MHz, in ns."""


def by_level(program):
    """Wireframe's draft with ready tiles of the launch with the fewest launches before it first."""
    draft = Wireframe().draft(program)
    level = [0] * program.count
    for launch in range(program.count):
        level[launch] = 1 + max((level[parent] for parent in program.all_parents(launch)), default=-1)
    order = sorted(range(program.count), key=lambda launch: (level[launch], launch))
    draft.rank = [0] * program.count
    for place, launch in enumerate(order):
        draft.rank[launch] = place
    return draft


class ByLevel(Wireframe):
    """Wireframe in its paper's order."""

    def draft(self, program):
        return by_level(program)


def of_neighbours(graph):
    """The graph with what BlockMaestro's analysis finds: reads of what the launch before has written."""
    links = graph.links
    selection = (links["hazard"] == "RAW") & (links["consumer"] == links["producer"] + 1)
    return replace(graph, links=links[selection].reset_index(drop=True))


def time_of(graph, text):
    if text == LEVELS:
        return Simulator(graph).run(ByLevel()).time_ns
    if text == NEIGHBOURS:
        return Simulator(of_neighbours(graph)).run(scheduler("blockmaestro:issue=0ns")).time_ns
    return Simulator(graph).run(scheduler(text)).time_ns


def worth(theirs_ns, ours_ns):
    """Return how much the source's rule changes the simulated time, in percent of ours."""
    return round(100 * (theirs_ns / ours_ns - 1), 1) + 0.0


def graph_of(what, folder):
    if isinstance(what, str):
        return build_graph(load(ROOT / what))
    path = Path(folder) / f"{what[0]}.tileprof"
    tileprof("record", "-o", path, "--", sys.executable, "-m", f"tileprof.examples.{what[0]}", *what[1:])
    return build_graph(load(path))


def measurements(progress: Callable[[str], None] = lambda _: None):
    actual = {rule: [] for rule in RULES}
    with tempfile.TemporaryDirectory() as folder:
        for name, what in PROGRAMS.items():
            graph, times = graph_of(what, folder), {}
            for rule in RULES:
                for text in (rule.theirs, rule.ours):
                    if text not in times:
                        times[text] = time_of(graph, text)
                        progress(f"{name} {text} {times[text]:.0f}")
                actual[rule].append(worth(times[rule.theirs], times[rule.ours]))
    ns = [
        [spawn(SPAWNS[name](SCALE, 0), Spawning(window_ns=window), "spawn").time_ns for window in (WINDOW_NS, 0.0)]
        for name in CHILDREN
    ]
    actual[WINDOW] = [worth(*pair) for pair in ns]
    return actual


def rows_of(results):
    """The rows of Markdown: by scheduler its rules, and what each is worth."""
    return {
        (r["scheduler"], r["rule"]): f"| {r['rule']} | {r['source']} | {r['here']} | {in_percent(r['worth'])} |"
        for r in results
    }


def in_percent(values):
    return ", ".join("0" if value == 0 else f"{value:+.1f}" for value in values) + "%"


def table(results):
    """The table of docs/simulator-accuracy.md."""
    rows = rows_of(results).items()
    return "\n".join(f"| `{name}` {row}" for (name, _), row in rows)


def main():
    actual = measurements(lambda text: print(text, flush=True))
    header = ("scheduler", "rule", "source", "here")
    results = [{**{name: getattr(rule, name) for name in header}, "worth": values} for rule, values in actual.items()]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
