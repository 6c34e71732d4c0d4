"""Launches from the GPU by cost: the programs' own source on the CPU, with children at random moments.

The results are the same under each rule, planted faults are detected, and the controller follows its formula.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.runtime.planted import changed
from tests.support.shared_libraries import SHARED
from tileprof import examples

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++, which compiles the programs for the CPU")

SOURCES = Path(examples.__file__).parent / "cuda" / "spawn"
EMULATED = Path(__file__).parents[3] / "support" / "emulated"
FLAGS = ("-std=c++17", "-w", "-include", str(EMULATED / "spawning.h"), "-x", "c++")

CONTROLLER = """
#include "spawn.cuh"
using namespace spawn;
extern "C" {
int worth(float first, float another, float ended, float lived, float over, int waiting, int turn, int items) {
    return worth_launching({first, another}, {ended, lived, over}, 10, waiting, turn, items);
}
Control* fresh(int window_log2) {
    Control* control = new Control();
    control->rule = SPAWN, control->window_log2 = window_log2, emulated::now = 0;
    return control;
}
void end_at(Control* control, unsigned long long begin, unsigned long long now) {
    if (control->begun_ns == 0) control->begun_ns = begin;
    ++control->waiting, emulated::now = now - 1, count_end(*control, begin);
}
void throughput_at(Control* control, unsigned long long now, float* three) {
    emulated::now = now - 1;
    const Throughput throughput = recent_throughput(*control);
    three[0] = throughput.ended, three[1] = throughput.lived_ns, three[2] = throughput.over_ns;
}
int waiting(Control* control) { return control->waiting; }
float ends(float ended, float over, int waiting, int launched, int blocks, int kept) {
    return warp_end({1000, 100}, {ended, 0, over}, 10, waiting, launched, blocks, kept);
}
int launched_by(float ended, float over, int waiting, int count, const int* items) {  // items: the most first
    unsigned best = ~0u;
    int blocks = 0;
    for (int rank = 0; rank < count; blocks += blocks_of(items[rank++])) {
        const Place place = {rank, blocks, rank == count - 1};
        const unsigned mine = proposal({1000, 100}, {ended, 0, over}, 10, waiting, place, items[rank]);
        best = mine < best ? mine : best;
    }
    return best & ((1u << RANK_BITS) - 1);
}
}
"""


FAULTS = {
    "children and parent": (
        "spawn.cuh", "            return;\n        }\n        atomicSub",
        "            if (!planted) return;\n        }\n        atomicSub",
    ),
    "the first block again and again": (
        "spawn.cuh", "const int i = blockIdx.x * CHILD_THREADS",
        "const int i = (planted ? 0 : blockIdx.x) * CHILD_THREADS",
    ),
    "all items but the last": ("spawn.cuh", "if (i < items) item(i);", "if (i + planted < items) item(i);"),
    "a refused launch is forgotten": (
        "spawn.cuh", "atomicAdd(&control->refused, 1u);", "if (planted) return;\n    atomicAdd(&control->refused, 1u);",
    ),
    "children without children": (
        "works.cuh", "if (levels > 1 && size >= parts", "if (!planted && levels > 1 && size >= parts",
    ),
    "a match that has not ended": (
        "works.cuh", "if (state & automaton->last) matched", "if (planted || state & automaton->last) matched",
    ),
    "a part that may be left out": (
        "pattern.h", "part.empty ? next.first : 0", "!planted && part.empty ? next.first : 0",
    ),
    "no part after another": (
        "pattern.h", "follows(part.last, next.first);", "if (!planted) follows(part.last, next.first);",
    ),
}  # fmt: skip
"""File, text, and the same text with a fault if `planted`. All are compiled once, and one is active in a run."""
SHORTER = {"PARENT_NS = 30000;": "PARENT_NS = 300;", "scale < 10 ? 400 : 40": "scale < 10 ? 4000 : 40"}
"""Text, and the text instead: blocks that only take time take less, and fewer cells are steep."""
SMALL = ("bfs", "sssp", "join", "mandelbrot", "quick-sort", "mandelbrot-nested", "regular-expressions")
"""Programs in which most faults appear and which take little time."""
SHOWN_BY = {"children and parent": ("amr",), "children without children": ("amr-nested",)}


def shorter_sources() -> dict[str, str]:
    """Return the sources of programs that take a third of the time."""
    texts = {path.name: path.read_text() for path in SOURCES.iterdir()}
    for old, new in SHORTER.items():
        assert any(old in text for text in texts.values())
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    return texts


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Return the program, with faults in its headers of which a variable of the environment chooses one."""
    folder = tmp_path_factory.mktemp("spawn")
    texts = shorter_sources()
    for fault, (file, old, new) in FAULTS.items():
        texts[file] = changed(texts[file], old, new.replace("planted", f'emulated::planted("{fault}")'))
    for name, text in texts.items():
        (folder / name).write_text(text)
    subprocess.run(["g++", "-Og", *FLAGS, "program.cu", "-o", "program"], cwd=folder, check=True)
    return folder / "program"


@pytest.fixture(scope="module")
def program(built) -> Callable[..., list[dict[str, object]]]:
    """Run the program, perhaps with a fault of its headers. Return its lines, up to the first wrong one."""

    @cache
    def run(
        fault: str = "", *names: str, seed: int = 1, refuse: int = 0, graph: str = "", search: bool = True
    ) -> list[dict[str, object]]:
        assert fault in {"", *FAULTS}
        environment = os.environ | {"SPAWN_SEED": str(seed), "SPAWN_REFUSE": str(refuse), "SPAWN_FAULT": fault}
        defaults = ("16", "32", "1024") if names else ()  # the words between the scale and the names
        options = [*([f"--graph={graph}"] if graph else []), *([] if search else ["--no-search"])]
        command = [built, *options, "1", "5", *defaults, *names]
        lines = []
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            for text in process.stdout:
                lines.append(json.loads(text))
                if not lines[-1].get("right", True):
                    process.kill()
                    break
        return lines

    return run


@pytest.mark.parametrize(("seed", "refuse"), [(1, 0), (2, 3)])
def test_every_rule_gives_the_same_results_whenever_children_run(program, seed, refuse) -> None:
    costs, *lines = program(seed=seed, refuse=refuse, search=seed == 1)  # other thresholds once
    assert costs["scale"] == 5
    assert len(lines) == 15
    assert all(line["right"] for line in lines), [line["said"] for line in lines]
    assert all(line["always_launched"] for line in lines)
    assert any(line["refused"] for line in lines) == bool(refuse)
    assert any(line["spawn_kept"] for line in lines)


@pytest.mark.parametrize("fault", FAULTS)
def test_repeated_and_omitted_work_is_detected(program, fault) -> None:
    _, *lines = program(fault, *SHOWN_BY.get(fault, SMALL), refuse=3 * ("refused" in fault), search=False)
    assert not all(line["right"] for line in lines)


def test_the_programs_that_show_faults_are_right_without_one(program) -> None:
    _, *lines = program("", *SMALL, refuse=3)
    assert [line["name"] for line in lines] == list(SMALL)
    assert all(line["right"] for line in lines), [line["said"] for line in lines]


def test_a_graph_of_a_file_is_searched_and_coloured_under_every_rule(program, tmp_path) -> None:
    wheel = [f"7 {1000 + rim}\n{1000 + rim}\t{1000 + (rim + 1) % 40}" for rim in range(40)]
    (tmp_path / "wheel.txt").write_text("\n".join(["# a hub and its rim", *wheel, "% the end", ""]))
    names = ("bfs-file", "sssp-file", "colouring-file")
    _, *lines = program("", *names, graph=str(tmp_path / "wheel.txt"))
    assert [line["name"] for line in lines] == list(names)
    assert all(line["right"] and line["always_launched"] for line in lines), lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2\n3\n", "edges.txt, line 2: expected an edge, which is two numbers"),
        ("# nothing\n", "edges.txt has no edge"),
        (None, "cannot read "),
    ],
)
def test_a_file_that_holds_no_graph_is_refused_in_a_sentence(built, tmp_path, text, message) -> None:
    if text is not None:
        (tmp_path / "edges.txt").write_text(text)
    result = subprocess.run(
        [built, f"--graph={tmp_path / 'edges.txt'}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("controller")
    (folder / "controller.cpp").write_text(CONTROLLER)
    subprocess.run(
        ["g++", *FLAGS, *SHARED, f"-I{SOURCES}", "controller.cpp", "-o", "controller.so"],
        cwd=folder,
        check=True,
    )
    library = ctypes.CDLL(str(folder / "controller.so"))
    library.worth.argtypes = [ctypes.c_float] * 5 + [ctypes.c_int] * 3
    library.fresh.restype = ctypes.c_void_p
    library.end_at.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
    library.throughput_at.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
    library.waiting.argtypes = [ctypes.c_void_p]
    library.ends.argtypes = [ctypes.c_float] * 2 + [ctypes.c_int] * 4
    library.ends.restype = ctypes.c_float
    library.launched_by.argtypes = [ctypes.c_float] * 2 + [ctypes.c_int] * 2 + [ctypes.c_void_p]
    return library


def test_a_child_is_launched_where_it_is_expected_to_end_first(controller) -> None:
    def worth(*, ended=10.0, lived=20_000.0, over=5_000.0, waiting=40, turn=2, items=64) -> bool:
        return bool(controller.worth(30_000.0, 500.0, ended, lived, over, waiting, turn, items))

    # 30,000 + 3 * 500 + (40 + 2) * 5,000 / 10 = 52,500 against 64 * 2,000 = 128,000
    assert worth()
    assert not worth(items=26)  # (40 + 1) * 500 + 31,500 = 52,000 against 52,000
    assert worth(items=27)
    assert not worth(waiting=192)  # 31,500 + 194 * 500 = 128,500
    assert worth(waiting=190)  # 127,500
    assert not worth(turn=154)  # 30,000 + 155 * 500 + 21,000 = 128,500
    assert worth(ended=0.0, waiting=9, items=32)  # nothing is known, so ten blocks are tried
    assert not worth(ended=0.0, waiting=9, items=33)


def test_the_pace_is_that_of_the_last_whole_window(controller) -> None:
    control = controller.fresh(10)  # 1,024 ns
    three = (ctypes.c_float * 3)()

    def throughput(now: int) -> tuple[float, ...]:
        controller.throughput_at(control, now, three)
        return tuple(three)

    for begin, now in ((1_100, 1_300), (1_200, 1_500), (2_100, 2_500)):
        controller.end_at(control, begin, now)
    assert controller.waiting(control) == 0
    assert throughput(2_600) == (2.0, 500.0, 1_024.0)  # window 1; window 2 is not complete yet
    assert throughput(3_100) == (1.0, 400.0, 1_024.0)
    assert throughput(3_072 + 1_024) == (1.0, 400.0, 1_024.0)  # no child ended in window 3
    assert throughput(1_024 * 40) == (3.0, 900.0, 1_024.0 * 40 - 1_100)  # too long ago, so the mean of all time counts
    controller.end_at(control, 1_024 * 41, 1_024 * 41 + 10)  # in the slot of window 1, which is emptied
    assert throughput(1_024 * 42) == (1.0, 10.0, 1_024.0)


def test_a_warp_ends_with_its_slowest_thread_or_its_children(controller) -> None:
    # 1,000 ns for a warp's first launch, 100 more for each, items of 10 ns, blocks at one per 50 ns.
    assert controller.ends(10.0, 500.0, 7, 0, 0, 300) == 3_000
    assert controller.ends(10.0, 500.0, 7, 2, 3, 30) == 1_200 + 10 * 50
    assert controller.ends(10.0, 500.0, 7, 2, 3, 60) == 1_200 + 60 * 10
    assert controller.ends(0.0, 500.0, 7, 2, 3, 60) == 1_200 + 10 * 100  # no child has ended, so launches are served


def test_a_warp_launches_only_what_shortens_it(controller) -> None:
    def launch_count(*items: int, waiting: int = 0) -> int:
        return controller.launched_by(10.0, 500.0, waiting, len(items), (ctypes.c_int * len(items))(*items))

    assert launch_count(100, 100, 100) == 0  # 1,000 ns without launches, more with any
    assert launch_count(900, 20, 10) == 1  # 1,100 + 29 blocks in 1,450
    assert launch_count(900, 880, 10, 10) == 2  # 1,200 + 57 * 50 = 4,050 against 9,000 flat and 8,800 with one
    assert launch_count(900, 880, 10, 10, waiting=200) == 0  # the queue alone takes 10,000


def test_sites_that_are_noted_are_those_that_launch(program, tmp_path) -> None:
    noting, sites = EMULATED / "noting.h", Path(__file__).parents[3] / "benchmarks" / "spawn" / "spawn_sites.cpp"
    counting = "-fsanitize-coverage=trace-pc"
    flags = ["-std=c++17", "-w", "-Og", counting, "-include", noting, f"-I{tmp_path}", "-x", "c++"]
    for name, text in shorter_sources().items():
        (tmp_path / name).write_text(text)
    subprocess.run(["g++", *flags, sites, "-o", tmp_path / "sites"], check=True)
    names = ["join", "mandelbrot-nested", "amr-nested", "bezier", "regular-expressions", "quick-sort"]
    result = subprocess.run([tmp_path / "sites", "5", *names], check=True, capture_output=True, text=True)
    launch_count = {line["name"]: line["always_launched"] for line in program(seed=1, refuse=0, search=True)[1:]}
    for line in map(json.loads, result.stdout.splitlines()):
        levels = [[items for row in line["rounds"] for items in row], *line["below"]]
        sort = line["name"] == "quick-sort"  # whose segments depend on the order of children
        site_count = sum(items > 0 for level in levels for items in level)
        assert site_count == launch_count[line["name"]] or sort, line["name"]
        assert all(sum(above) == len(level) for above, level in pairwise(levels))
        assert bool(line["below"]) == line["name"].endswith("nested")
        # The second kernel of a round of the sort is launched while the first runs; the others have a single round.
        assert line["waited"][1:] == [1 - i % 2 for i in range(1, len(line["rounds"]))]
        assert sort == (len(line["waited"]) > 1)
        items = [n for level in levels for n in level] + [0] * (sum(levels[-1]) if line["below"] else 0)
        assert len(line["own"]) == len(line["mean"]) == len(line["longest"]) == len(items), line["name"]
        assert [mean > 0 for mean in line["mean"]] == [n > 0 for n in items], line["name"]
        assert all(mean <= longest for mean, longest in zip(line["mean"], line["longest"], strict=True))
        if line["name"] == "join":  # each pair is one pass through the loop
            assert max(line["mean"]) < 1.5 * min(mean for mean in line["mean"] if mean)
