"""The verifier, compared with an oracle that runs everything that can run without one tile."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from tests.support.counted_lines import counted_lines
from tests.support.policies.graphs import Relation, graph_of
from tests.unit.policy.verification.small_policies import Grid, cases, runs_without
from tileprof.errors import UserError
from tileprof.policy.format import Policy, PolicyError, from_dict, load_policy, to_dict
from tileprof.policy.format.lowering import lower
from tileprof.policy.verification.verifier import verify


@settings(max_examples=300, deadline=None)
@given(cases())
def test_missing_is_exactly_what_can_run_too_early(case: tuple[Policy, list[Grid], Relation]) -> None:
    policy, grids, relation = case
    verdict = verify(policy, graph_of(grids, relation))
    actual = set(
        verdict.missing[["producer", "producer_tile", "consumer", "consumer_tile"]].itertuples(index=False, name=None)
    )
    expected = {
        (i, p, j, c) for (i, j), edges in relation.items() for p, c in edges if (j, c) in runs_without(policy, (i, p))
    }  # fmt: skip
    assert actual == expected
    assert verdict.needed == sum(len(e) for e in relation.values())
    assert verdict.covered == verdict.needed - len(expected)


@pytest.mark.parametrize(("waiting", "value", "sound"), [("0..0 - x", 1, False), ("0..0 - x", 2, True), ("0", 1, True)])
def test_a_count_that_is_reached_without_a_tile_does_not_guarantee_that_tile(
    waiting: str, value: int, sound: bool
) -> None:
    """One or both of the two tiles that post wait for the tile that the last stage needs."""
    edge = {"hazards": ["RAW"], "kind": "row"}
    policy = {
        "tileprof_policy": 1,
        "stages": [
            {"name": name, "grid": [x, 1, 1], "launch": n}
            for n, (name, x) in enumerate(zip("abc", (1, 2, 1), strict=True))
        ],
        "semaphores": [{"producer": n, "grid": [1, 1, 1], "of": ["0", "0", "0"]} for n in range(2)],
        "edges": [
            edge | {"producer": 0, "consumer": 1, "semaphores": 0, "waits": [waiting, "0", "0"], "value": "1"},
            edge | {"producer": 1, "consumer": 2, "semaphores": 1, "waits": ["0", "0", "0"], "value": str(value)},
        ],
    }
    relation: Relation = {(0, 2): {(0, 0)}}
    assert verify(from_dict(policy), graph_of([(1, 1, 1), (2, 1, 1), (1, 1, 1)], relation)).sound is sound


def row_policy(**options: object) -> dict:
    edge = {
        "producer": 0,
        "consumer": 1,
        "hazards": ["RAW"],
        "kind": "row",
        "semaphores": 0,
        "waits": ["0", "y", "0"],
        "value": "4",
    }
    value = {
        "tileprof_policy": 1,
        "stages": [{"name": "up", "grid": [4, 3, 1], "launch": 0}, {"name": "down", "grid": [2, 3, 1], "launch": 1}],
        "semaphores": [{"producer": 0, "grid": [1, 3, 1], "of": ["0", "y", "0"]}],
        "edges": [edge | {k: v for k, v in options.items() if k in edge}],
    }
    return value | {k: v for k, v in options.items() if k not in edge}


def rows() -> Relation:
    return {(0, 1): {(y * 4 + x, y * 2 + c) for y in range(3) for x in range(4) for c in range(2)}}


def test_a_row_policy_covers_rows_and_nothing_more() -> None:
    verdict = verify(from_dict(row_policy()), graph_of([(4, 3, 1), (2, 3, 1)], rows()))
    assert verdict.sound
    assert verdict.excess["excess_tiles"].tolist() == [0]


@pytest.mark.parametrize(
    ("change", "loss_count"),
    [
        ({"value": "3"}, 24),
        ({"waits": ["0", "min(2, y + 1)", "0"]}, 16),
        ({"edges": []}, 24),
        ({"waits": ["0", "0..y - 1", "0"]}, 24),
    ],
)
def test_a_weakened_policy_loses_dependencies(change: dict, loss_count: int) -> None:
    verdict = verify(from_dict(row_policy(**change)), graph_of([(4, 3, 1), (2, 3, 1)], rows()))
    assert not verdict.sound
    assert len(verdict.missing) == loss_count


def test_waits_for_the_wrong_row_are_all_excess() -> None:
    shifted_policy = from_dict(row_policy(waits=["0", "(y + 1) % 3", "0"]))
    (excess,) = verify(shifted_policy, graph_of([(4, 3, 1), (2, 3, 1)], rows())).excess.to_dict("records")
    assert (excess["idle_waits"], excess["awaited_tiles"], excess["excess_tiles"]) == (6, 24, 24)


def test_a_value_beyond_the_posts_never_ends() -> None:
    verdict = verify(from_dict(row_policy(value="5")), graph_of([(4, 3, 1), (2, 3, 1)], rows()))
    assert not verdict.sound
    assert "awaits value 5 on semaphore 0, which 4 tiles post" in verdict.never[0]


def test_without_a_wait_kernel_the_consumer_must_leave_room() -> None:
    value = row_policy(options={"wait_kernel": False})
    assert verify(from_dict(value), graph_of([(4, 3, 1), (2, 3, 1)], rows(), sms=16)).sound
    verdict = verify(from_dict(value), graph_of([(4, 3, 1), (2, 3, 1)], rows(), sms=4))
    assert "leave no room on" in verdict.never[0]


def test_occupancies_are_those_of_the_trace_whatever_the_policy_says() -> None:
    value = row_policy(options={"wait_kernel": False})
    for stage in value["stages"]:
        stage["blocks_per_sm"] = 32
    assert not verify(from_dict(value), graph_of([(4, 3, 1), (2, 3, 1)], rows(), sms=4)).sound


@pytest.mark.parametrize(("key", "other"), [("device", "A100"), ("architecture", "sm_80")])
def test_a_policy_that_relies_on_residency_is_for_one_device(key: str, other: str) -> None:
    graph = graph_of([(4, 3, 1), (2, 3, 1)], rows(), sms=100)
    value = row_policy(options={"wait_kernel": False})
    here = {"device": "H200", "architecture": "sm_90"}
    assert verify(from_dict(value | {"guard": here}), graph).sound
    verdict = verify(from_dict(value | {"guard": here | {key: other}}), graph)
    assert "resides on" in verdict.never[0]
    with_kernel = value | {"guard": here | {key: other}, "options": {"wait_kernel": True}}
    assert verify(from_dict(with_kernel), graph).sound


def test_blocks_that_leave_exactly_enough_room_block_no_stage() -> None:
    """Blocks take half an SM each; one that waits leaves the other half free."""
    half = (512, 64, 0)
    value = from_dict(row_policy(options={"wait_kernel": False}))
    grids: list[tuple[int, int, int]] = [(4, 3, 1), (2, 3, 1)]
    assert verify(value, graph_of(grids, rows(), sms=4, kernels=[half, half])).sound
    assert not verify(value, graph_of(grids, rows(), sms=3, kernels=[half, half])).sound


def test_tiles_without_waits_block_no_stage() -> None:
    value = from_dict(row_policy(options={"wait_kernel": False}, waits=["0", "y..0", "0"]))
    graph = graph_of([(4, 3, 1), (2, 3, 1)], {(0, 1): {(0, 0)}}, sms=3)
    assert verify(value, graph).sound


def test_a_wait_before_the_first_load_is_no_part_of_the_format() -> None:
    """Runtimes of policies do not wait there, so an edge into a kernel that loads nothing would have no wait at all."""
    value = row_policy()
    value["edges"][0]["when"] = "load"
    with pytest.raises(PolicyError, match="'entry' was expected"):
        from_dict(value)
    value["edges"][0]["when"] = "entry"
    assert from_dict(value) == from_dict(row_policy())


def test_a_launch_between_the_stages_that_links_them_is_named() -> None:
    value = row_policy()
    value["stages"][1]["launch"] = 2
    relation = {(0, 1): {(0, 0)}, (1, 2): {(0, 0)}, (0, 2): rows()[0, 1]}
    verdict = verify(from_dict(value), graph_of([(4, 3, 1), (1, 1, 1), (2, 3, 1)], relation))
    assert "launch 1 lies between" in verdict.never[0]


def test_a_launch_between_the_stages_that_recycles_memory_is_named_unless_stages_have_memory_of_their_own() -> None:
    value = row_policy()
    value["stages"][1]["launch"] = 2
    graph = graph_of([(4, 3, 1), (1, 1, 1), (2, 3, 1)], {(0, 1): {(0, 0)}, (1, 2): {(0, 0)}, (0, 2): rows()[0, 1]})
    graph.links["reuse"] = graph.links["consumer"] == 1
    for renamed, message in ((False, 1), (True, 0)):
        assert len(verify(from_dict(value | {"guard": {"renamed": renamed}}), graph).never) == message


def test_a_policy_for_another_shape_is_refused() -> None:
    with pytest.raises(PolicyError, match="has a grid of 4 x 3 x 1 tiles; launch 0 has 5 x 3 x 1"):
        verify(from_dict(row_policy()), graph_of([(5, 3, 1), (2, 3, 1)], {}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tileprof_policy": 2}, "policy format 2; this tileprof"),
        ({"waits": ["0", "y + 1", "0"]}, "tile 4 names 3, outside 0..2"),
        ({"waits": ["0", "q", "0"]}, "uses q"),
        ({"consumer": 0}, "stages run in order"),
        ({"semaphores": [{"producer": 0, "grid": [1, 3, 1], "of": [0, 1]}]}, "list 2 tiles; stage 0 has 12"),
        ({"semaphores": [{"producer": 0, "grid": [1, 3, 1], "of": []}]}, "not valid under any|non-empty|too short"),
        ({"semaphores": [{"producer": 0, "grid": [10**9, 1, 1], "of": ["x", "0", "0"]}]}, "at most 768"),
        ({"value": "-5"}, "awaits value -5; semaphores count up from 0"),
        ({"producer": 0.0}, r"^edges\[0\]\.producer is 0\.0; expected a whole number$"),
        (
            {"stages": [{"name": "a", "grid": [2.0, 1, 1]}]},
            r"^stages\[0\]\.grid\[0\] is 2\.0; expected a whole number$",
        ),
        (
            {"stages": [{"name": "a", "grid": [2, 1, 1], "order": [1.0, 0.0]}]},
            r"order\[0\] is 1\.0; expected a whole number$",
        ),
        (
            {"stages": [{"name": "a", "grid": [2, 1, 1], "launch": 3.0}]},
            r"^stages\[0\]\.launch is 3\.0; expected a whole number or null$",
        ),
        ({"stages": [{"name": "a", "grid": [2**31 - 1, 1, 1]}]}, "has 2,147,483,647 tiles; at most 50,000,000"),
        ({"prediction": {"gain_percent": "much"}}, r'^prediction\.gain_percent is "much"; expected a number$'),
        ({"value": "1+" * 500_000 + "1"}, r"^edges\[0\]\.value: '1\+1.{,300} \.\.\. \(maxLength 400\)$"),
        ({"guard": {"renamed": "no"}}, r'^guard\.renamed is "no"; expected true or false$'),
        ({"guard": {"device": 3}}, r"guard\.device"),
        ({"guard": {"operands": [[3]]}}, r"^guard\.operands\[0\]\[0\] is 3; expected an object$"),
        ({"kind": "magic"}, r'^edges\[0\]\.kind is "magic"; expected one of tile, row, column, strided, '),
        (
            {"extra": 1},
            "^the policy has a field 'extra' that the format does not know; it knows tileprof_policy, created_by",
        ),
        ({"stages": [{"nam": "a", "grid": [2, 1, 1]}]}, r"^stages\[0\] lacks 'name'$"),
        ({"stages": [{"name": "a"}]}, r"^stages\[0\] lacks 'grid'$"),
        ({"guard": []}, "^guard is a list; expected an object$"),
        ({"options": {"reasons": {"k" * 999: 1}}}, r"^options\.reasons\.k{134} \.\.\. is 1; expected a text$"),
        ({"stages": [{"name": "a", "grid": [2, 1, 1], "order": [0, 0]}]}, "does not list each"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(change: dict, message: str) -> None:
    value = row_policy()
    if set(change) & set(value["edges"][0]) and "semaphores" not in change:
        value["edges"][0] |= change
    else:
        value |= change
    if "stages" in change:
        value |= {"semaphores": [], "edges": []}
    with pytest.raises(PolicyError, match=message):
        lower(from_dict(value))


def test_json_round_trip_is_equal(tmp_path) -> None:
    policy = from_dict(row_policy(notes=["a note"], guard={"renamed": True}))
    policy.save(tmp_path / "p.json")
    assert load_policy(tmp_path / "p.json") == policy
    assert from_dict(json.loads(json.dumps(to_dict(policy)))) == policy


def test_a_table_of_a_million_waits_is_not_read_one_by_one() -> None:
    value = row_policy()
    value["edges"][0] |= {"waits": {"indptr": [0] * 6 + [2_000_000], "semaphore": [2] * 2_000_000}, "value": "4"}
    waits, lines = counted_lines(lambda: lower(from_dict(value))[0].semaphore)
    assert len(waits) == 2_000_000
    assert lines < 200_000
    value["edges"][0]["waits"]["semaphore"][1_999_999] = -1
    with pytest.raises(PolicyError, match=r"semaphore\[1999999\]: -1 is less than the minimum"):
        from_dict(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"edges": [], "edges": []}', "'edges' occurs twice in one object"),
        ('{"prediction": {"policy_us": NaN}}', "NaN is not a finite number"),
        ('{"prediction": {"policy_us": 1e999}}', "1e999 is not a finite number"),
    ],
)
def test_what_only_python_takes_for_json_is_refused(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(PolicyError, match=rf"bad\.json: {message}"):
        load_policy(path)


def test_a_byte_order_mark_is_read_over_and_a_device_is_no_policy(tmp_path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(row_policy()), encoding="utf-8-sig")
    assert load_policy(path) == from_dict(row_policy())
    with pytest.raises(PolicyError, match="/dev/zero is not a policy"):
        load_policy("/dev/zero")


def test_a_policy_that_cannot_be_written_leaves_nothing_behind(tmp_path) -> None:
    with pytest.raises(UserError, match=r"could not write .*p\.json: "):
        from_dict(row_policy()).save(tmp_path / "absent" / "p.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"could not write .*folder: Is a directory"):
        from_dict(row_policy()).save(tmp_path / "folder", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    from_dict(row_policy()).save(tmp_path / "p.json")
    (tmp_path / "other").touch()
    assert (tmp_path / "p.json").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, '"x"', "\x00", '{"tileprof_policy": 1}'])
def test_a_file_that_is_no_policy_is_refused_by_name(tmp_path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(PolicyError, match=r"bad\.json"):
        load_policy(path)
