"""The executor detects the races that the verifier predicts, and no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.runtime.random_policies import policies, touches_of, traced
from tileprof.policy.format import Policy, from_dict
from tileprof.policy.verification.verifier import verify
from tileprof.runtime.executor import Memory, Program, Touches, delaying, execute, randomly, recycled, search, stream
from tileprof.runtime.executor.cells import Cells


def memory_of(policy: Policy, touches: list[Touches]) -> Memory:
    return Memory.build([s.tiles for s in policy.stages], touches)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_delaying_every_tile_shows_exactly_the_dependencies_that_verify_misses(data: st.DataObject) -> None:
    policy = data.draw(policies())
    touches = data.draw(st.deferred(lambda: touches_of(policy)))
    verdict = verify(policy, traced(policy, touches))
    program, memory = Program.of(policy), memory_of(policy, touches)
    actual = set()
    for node in range(program.nodes):
        run = execute(program, delaying(program, node), memory)
        assert run.deadlock is None
        actual |= {
            (r.producer, r.producer_tile, r.consumer, r.consumer_tile)
            for r in run.races
            if (r.producer, r.producer_tile) == program.place(node)
        }
    columns = ["producer", "producer_tile", "consumer", "consumer_tile"]
    assert actual == set(verdict.missing[columns].itertuples(index=False, name=None))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_dependencies_of_memory_are_those_of_the_tile_graph(data: st.DataObject) -> None:
    policy = data.draw(policies())
    touches = data.draw(st.deferred(lambda: touches_of(policy)))
    graph = traced(policy, touches)
    producer, consumer = memory_of(policy, touches).needs()
    expected = {
        (int(graph.tile_base[p]) + pt, int(graph.tile_base[c]) + ct)
        for p, pt, c, ct in graph.edges[
            ["producer_launch", "producer_tile", "consumer_launch", "consumer_tile"]
        ].itertuples(index=False, name=None)
    }
    assert set(zip(producer.tolist(), consumer.tolist(), strict=True)) == expected


@settings(max_examples=60, deadline=None)
@given(policies(), st.integers(0, 99))
def test_every_order_runs_each_tile_once_and_never_before_its_waits_end(policy: Policy, seed: int) -> None:
    program = Program.of(policy)
    run = execute(program, randomly(program, seed))
    assert sorted(run.ran) == list(range(program.nodes))
    actual = np.zeros(len(program.waits_of) - 1, int)
    semaphore = np.repeat(np.arange(len(actual)), np.diff(program.waits_of))
    for node in run.ran:
        mine = program.waiter == node
        assert (actual[semaphore[mine]] >= program.value[mine]).all()
        np.add.at(actual, program.posts[program.posts_of[node] : program.posts_of[node + 1]], 1)


def test_memory_handed_out_again_is_one_memory_by_address() -> None:
    """Buffers 1 and 2 share addresses 100 to 150; buffer 0 shares none."""
    base, size = np.array([400, 50, 100]), np.array([10, 100, 100])
    read = Touches.of([(0, 2, 0, 20, 10, 1, 0, 1, 0), (0, 0, 0, 3, 4, 1, 0, 1, 0), (0, 1, 0, 70, 1, 1, 0, 1, 0)])
    actual = recycled(read, base, size)
    assert actual.buffer.tolist() == [1, 0, 1]
    assert actual.offset.tolist() == [70, 3, 70]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cells_of_any_pitch_are_the_bytes_of_their_boxes(data: st.DataObject) -> None:
    policy = data.draw(policies())
    touches = data.draw(st.deferred(lambda: touches_of(policy)))
    cells = Cells.of(touches)
    written_bytes = {int(b) for t in touches for b, m in zip(t.buffer, t.mode, strict=True) if m}
    for t in touches:
        expected = {
            (int(t.tile[r]), int(t.mode[r]), int(t.buffer[r]), int(t.offset[r] + i * t.stride_0[r] + b))
            for r in range(len(t.tile))
            if t.buffer[r] in written_bytes
            for i in range(t.count_0[r])
            for b in range(t.length[r])
        }
        actual = set()
        for tile, mode, cell in zip(*cells.entries(t), strict=True):
            pitch, run = cells.grids[int(cells.buffer[cell])].pitch, int(cells.run[cell])
            for start in range(0, int(cells.bytes[cell]), run):
                low = int(cells.low[cell]) + start // run * pitch
                actual |= {(int(tile), int(mode), int(cells.buffer[cell]), low + b) for b in range(run)}
        assert actual == expected


def rows(**options: object) -> Policy:
    """Four tiles of a row feed a consumer's row; there are three rows."""
    edge = {
        "producer": 0, "consumer": 1, "hazards": ["RAW"], "kind": "row", "semaphores": 0,
        "waits": ["0", "y", "0"], "value": "4",
    }  # fmt: skip
    return from_dict({
        "tileprof_policy": 1,
        "stages": [{"name": "up", "grid": [4, 3, 1]}, {"name": "down", "grid": [2, 3, 1]}],
        "semaphores": [{"producer": 0, "grid": [1, 3, 1], "of": ["0", "y", "0"]}],
        "edges": [edge | options],
    })  # fmt: skip


def row_touches() -> list[Touches]:
    up = [(y * 4 + x, 7, 1, y * 400 + x * 100, 100, 1, 0, 1, 0) for y in range(3) for x in range(4)]
    down = [(y * 2 + x, 7, 0, y * 400, 400, 1, 0, 1, 0) for y in range(3) for x in range(2)]
    return [Touches.of(up), Touches.of(down)]


def test_a_sound_policy_runs_clean_in_every_order() -> None:
    findings = search(rows(), memory_of(rows(), row_touches()))
    assert findings.clean
    assert findings.executions >= 3 + 4 + 18 + 4
    assert findings.tiles == findings.executions * 18


@pytest.mark.parametrize(
    ("bug", "change"),
    [
        ("a value lowered", {"value": "3"}),
        ("a tile shifted", {"waits": ["0", "(y + 1) % 3", "0"]}),
        ("no wait", {"waits": ["0", "1..0", "0"]}),
    ],
)
def test_a_planted_bug_is_found_and_named(bug: str, change: dict) -> None:
    findings = search(rows(**change), memory_of(rows(), row_touches()))
    assert not findings.clean, bug
    message = findings.sentences({7: "the activations"})[0]
    assert message.startswith("RAW race: tile (")
    assert "of stage 1 (down) touched 100 bytes of the activations (from byte" in message
    assert "and further on" not in message  # one run of bytes


def test_bytes_in_several_runs_are_not_said_to_be_one_range() -> None:
    findings = search(rows(waits=["0", "1..0", "0"]), memory_of(rows(), row_touches()))
    key, (race, order) = next(iter(findings.races.items()))
    findings.races = {key: (replace(race, begin=0, end=20), order)}
    assert "touched 100 bytes of buffer 7 (from byte 0 to 20, and further on) before tile" in findings.sentences()[0]


def test_a_wait_that_cannot_end_is_a_deadlock_with_its_numbers() -> None:
    findings = search(rows(value="5"), memory_of(rows(), row_touches()))
    assert findings.deadlock is not None
    assert findings.deadlock[0].waiting == 6
    assert (
        "  tile (0, 0, 0) of stage 1 (down) awaits semaphore 0 of array 0: seen 4, expected 5" in findings.sentences()
    )


def test_consumers_that_take_every_slot_first_deadlock() -> None:
    program = Program.of(rows())
    consumers_first = np.concatenate([np.arange(12, 18), np.arange(12)])
    assert execute(program, stream(program), slots=7, dispatch=consumers_first).deadlock is None
    deadlock = execute(program, stream(program), slots=6, dispatch=consumers_first).deadlock
    assert deadlock is not None
    assert deadlock.waiting == 18
    assert {m.actual for m in deadlock.first} == {0}


def test_overwriting_what_a_late_reader_needs_is_found() -> None:
    policy = rows()
    third = replace(policy.stages[0], name="again")
    policy = replace(policy, stages=(*policy.stages, third))
    touches = [*row_touches(), row_touches()[0]]
    findings = search(policy, memory_of(policy, touches))
    assert {race.hazard for race, _ in findings.races.values()} == {"WAR", "WAW"}
