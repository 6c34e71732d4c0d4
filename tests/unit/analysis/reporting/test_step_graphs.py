"""The step of a loop from which on the graph of thread blocks repeats."""

import numpy as np
import pytest

from tests.support.synthetic_graphs import footprint, graph, one_to_one, trace
from tileprof.analysis import build_graph
from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.analysis.reporting.step_graphs import step_graphs
from tileprof.cli.text.report_text import step_graphs_sentence
from tileprof.devices import get
from tileprof.trace import READ, WRITE, Boxes, Footprint, Launch, TraceWriter, load

STEPS = 5


def reversed_block():
    """Tile 0 waits for tile 1, and tile 1 for tile 0."""
    ends = np.ones(2, np.float32)
    return EdgeBlock(
        np.array([0, 1], np.int32),
        np.array([0, 1, 2]),
        np.array([1, 0], np.int32),
        np.array([4, 4]),
        ends,
        0 * ends,
    )


def loop(links, sizes=None):
    """Return a launch before the loop, then `STEPS` times launches a and b (1 + 2 i, 2 + 2 i)."""
    modules = ["weights", *["a", "b"] * STEPS]
    sizes = sizes or [2] * len(modules)
    prints = {n: footprint(n, duration_ns=10.0) for n in set(sizes)}
    rows = [
        {"footprint": n, "timing": "modelled", "duration_ns": 10, "begin_ns": 20 * i, "module": m, "block_x": 256}
        for i, (m, n) in enumerate(zip(modules, sizes, strict=True))
    ]
    return step_graphs(graph(sizes, links, trace(rows, prints)))


def inside():
    return [(1 + 2 * n, 2 + 2 * n, one_to_one(2)) for n in range(STEPS)]


def carried_state():
    return [(2 + 2 * n, 3 + 2 * n, one_to_one(2)) for n in range(STEPS - 1)]


def test_steps_that_depend_on_themselves_alone_repeat_at_once():
    graphs = loop(inside())
    assert (graphs.steps, graphs.launches, graphs.settled, graphs.changes, graphs.first_kinds) == (STEPS, 2, 0, 0, 1)
    assert graphs.reused_share == pytest.approx(4 / 5)


def test_a_state_that_is_handed_on_makes_the_first_step_another_one():
    graphs = loop(inside() + carried_state())
    assert (graphs.settled, graphs.changes) == (1, 1)
    assert graphs.reused_share == pytest.approx(6 / 9)


def test_what_was_made_before_the_loop_is_the_same_launch_for_all_steps():
    assert loop([*inside(), *((0, 1 + 2 * n, one_to_one(2)) for n in range(STEPS))]).settled == 0


def test_a_parent_of_fixed_distance_is_another_one_than_a_fixed_launch():
    graphs = loop([*inside(), *((1, 2 + 2 * n, one_to_one(2)) for n in range(1, STEPS))])
    assert graphs.settled == 1


def test_other_tiles_are_another_graph():
    links = [*inside()[:3], *((p, c, reversed_block()) for p, c, _ in inside()[3:])]
    assert (loop(links).settled, loop(links).changes) == (3, 1)


def test_recycled_memory_is_distinguished_from_data():
    links = [*inside(), (1, 2 * STEPS, one_to_one(2), True)]
    graphs = loop(links)
    assert (graphs.settled, graphs.settled_renamed, graphs.reused_share) == (None, 0, 0.0)


@pytest.mark.parametrize(
    ("links", "line"),
    [
        (
            inside() + carried_state(),
            "Loop of 5 steps of 2 launches: from step 2 on the thread block graph is the same; 67%",
        ),
        ([*inside(), (1, 10, one_to_one(2), True)], "launches: the thread block graph changes only through recycled"),
        ([*inside(), (3, 10, one_to_one(2))], "launches: the thread block graph still changes in the last step (1"),
        (
            [*inside(), (0, 2, one_to_one(2), True)],
            "from step 2 on the thread block graph is the same (without recycled memory from step 1); ",
        ),
    ],
)
def test_the_report_says_it_in_a_sentence(links, line):
    assert line in step_graphs_sentence(loop(links))


def test_a_program_without_a_loop_has_none():
    rows = [
        {"footprint": 2, "timing": "modelled", "duration_ns": 1, "begin_ns": n, "module": m, "block_x": 256}
        for n, m in enumerate("abcd")
    ]
    assert step_graphs(graph([2] * 4, [], trace(rows, {2: footprint(2, duration_ns=1.0)}))) is None


def test_a_growing_footprint_never_repeats():
    """Step n reads what n steps wrote, as attention over a cache does."""
    sizes = [2, *(size for n in range(STEPS) for size in (2, 3 + n))]
    graphs = loop([], sizes)
    assert (graphs.steps, graphs.settled, graphs.changes, graphs.first_kinds) == (STEPS, None, STEPS - 1, 1 + STEPS)


def test_two_buffers_in_turn_repeat_from_the_second_step_on(tmp_path):
    """Recorded bytes: a step squares a state and adds to the sum, in buffers at other addresses each time."""
    with TraceWriter(tmp_path / "t", recorder="test", command=["t"], device=get("H200")) as writer:
        boxes = Boxes.of(
            tile=[0, 0, 1, 1], operand=[0, 1, 0, 1], mode=[READ, WRITE] * 2, offset=[0, 0, 64, 64], length=64
        )
        square = writer.add_footprint(Footprint(np.array([[0, 0, 0], [1, 0, 0]], np.int32), boxes))
        state = [writer.add_buffer(base=4096 * n, bytes=128, kind="activation") for n in range(1, 2 * STEPS + 2)]
        for n in range(2 * STEPS):
            writer.add_launch(
                Launch(
                    square,
                    ((state[n], 0), (state[n + 1], 0)),
                    kernel="square",
                    module="ab"[n % 2],
                    grid=(2, 1, 1),
                    block=(128, 1, 1),
                    duration_ns=100,
                    timing="modelled",
                    coverage="exact",
                )
            )
    graphs = step_graphs(build_graph(load(writer.path)))
    assert (graphs.steps, graphs.launches, graphs.settled, graphs.settled_renamed) == (STEPS, 2, 1, 1)
