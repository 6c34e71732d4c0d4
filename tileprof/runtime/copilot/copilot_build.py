"""Compiling a co-pilot for a plan, once per machine, into a cache: its tables and choices are constants of the program.

~/.cache/tileprof/copilot/<key>/pilot.so, graph.h
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

import numpy as np

from tileprof import building
from tileprof.runtime.copilot.choices import Choices, grades, places, programs
from tileprof.runtime.persistent.dealing import COMMANDS, TaskGraph, completions
from tileprof.runtime.persistent.plan import I32, Plan

SOURCE: Final = Path(__file__).parent / "native" / "pilot.cpp"
PILOT_THREAD: Final = SOURCE.with_name("pilot_thread.cpp")
HEADERS: Final = (SOURCE.with_name("link.h"), SOURCE.with_name("exports.h"))
LIBRARY: Final = "pilot.so"
FLAGS: Final = ("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra")
_WHAT: Final = "the co-pilot"
_KIN: Final = 64
"""Ready tasks that are remembered for a cluster which has made their last input."""


def compiled(plan: Plan, choices: Choices, source: str | None = None) -> Path:
    """Return the library of a plan's co-pilot, compiled now if it is not in the cache.

    ``source``: another text of pilot.cpp. Raises `UserError` as `building.cached`.
    """
    return compiled_source(source or SOURCE.read_text(encoding="utf-8"), header(plan, choices))


def compiled_pilot_thread() -> Path:
    """Return the library of the thread that steps co-pilots."""
    return compiled_source(PILOT_THREAD.read_text(encoding="utf-8"), "")


def compiled_source(text: str, graph: str) -> Path:
    """Return the library of a source of C++ that may include `HEADERS`, and ``graph`` as graph.h."""
    compiler, headers = str(building.host_compiler()), {p.name: p.read_text(encoding="utf-8") for p in HEADERS}
    key = hashlib.sha256(json.dumps([compiler, FLAGS, text, graph, headers]).encode()).hexdigest()[:24]

    def make(work: Path) -> None:
        (work / "graph.h").write_text(graph, encoding="utf-8")
        for name, header_text in headers.items():
            (work / name).write_text(header_text, encoding="utf-8")
        (work / SOURCE.name).write_text(text, encoding="utf-8")
        building.run([compiler, *FLAGS, f"-I{work}", str(work / SOURCE.name), "-o", str(work / LIBRARY)], _WHAT)

    return building.cached(building.cache_folder("copilot") / key, (LIBRARY,), make, _WHAT) / LIBRARY


def header(plan: Plan, choices: Choices) -> str:
    """Return the text of graph.h."""
    graph, place = TaskGraph.of(plan), places(plan, choices)
    program_of = programs(plan)[plan.tasks[:, 0]]
    constants = {
        "TASKS": len(plan.tasks), "CLUSTERS": plan.clusters, "SPLIT": plan.split,
        "SEMAPHORES": max(1, plan.semaphores), "COMMANDS": COMMANDS, "COMPLETIONS": completions(plan),
        "DEPTH": choices.depth, "KIN": _KIN, "AFFINITY": int(choices.affinity), "SPECULATE": int(choices.speculate),
        "OVERWRITE": int(choices.overwrite),         "PROGRAMS": int(program_of.max(initial=0)) + 1,
    }  # fmt: skip
    tables: dict[str, I32] = {
        "READY_TASKS": graph.ready, "NEEDS": graph.needs, "PLACE": place, "GRADE": grades(plan, choices),
        "AT_PLACE": np.argsort(place).astype(np.int32), "POST_PTR": plan.post_ptr, "POSTS": plan.posts,
        "EVENT_PTR": graph.event_ptr, "WAITERS": graph.waiters, "PROGRAM_OF": program_of,
        "PROGRAM_TASKS": np.bincount(program_of).astype(np.int32),
    }  # fmt: skip
    events = ", ".join(f"{{{value}, {begin}, {end}}}" for value, begin, end in graph.events.tolist()) or "{0, 0, 0}"
    lines = [
        "#pragma once",
        *(f"constexpr int {name} = {value};" for name, value in constants.items()),
        *(
            f"static const int {name}[] = {{{', '.join(map(str, table.tolist())) or '0'}}};"
            for name, table in tables.items()
        ),
        f"static const int EVENTS[][3] = {{{events}}};",
    ]
    return "\n".join(lines) + "\n"
