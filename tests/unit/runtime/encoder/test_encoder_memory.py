"""Memory between stages of the transformer kernel is reused behind fences, and a plan is refused if a stage could read
memory that has been overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.runtime.encoder_programs import post_norm, pre_norm
from tileprof.runtime.encoder.memory import Memory, memory_faults, memory_of
from tileprof.runtime.encoder.plan import Plan, plan_of
from tileprof.runtime.encoder.program import Program
from tileprof.runtime.programs.whole_policy import of_blocks


def set_bytes(plan: Plan) -> int:
    """Return the bytes of one set of all matrices between stages."""
    return sum(rows * columns * size for rows, columns, size in plan.sizes.values())


def plan() -> Plan:
    return plan_of(pre_norm(33, 64, 4), 3, 1)


@pytest.mark.parametrize(
    "program", [pre_norm(40, 128, 12), post_norm(48, 128, 6), pre_norm(16, 64, 1), pre_norm(64, 64, 2)]
)
@pytest.mark.parametrize("blocks", [4, 24])
@pytest.mark.parametrize("stages", [1, 3, 7])
def test_memory_is_sound_and_no_more_than_two_sets(program: Program, blocks: int, stages: int) -> None:
    encoder_plan = plan_of(program, blocks, 1)
    memory = memory_of(encoder_plan, stages=stages)
    assert memory_faults(encoder_plan, memory) == []
    assert memory.bytes <= 2.2 * set_bytes(encoder_plan)  # rings begin at multiples of 128 bytes
    assert memory_faults(encoder_plan, memory_of(encoder_plan, reuse=False)) == []


@pytest.mark.parametrize(("program", "cluster", "megabytes"), [
    (pre_norm(128, 768, 12), 2, 9), (post_norm(128, 768, 12), 2, 8), (pre_norm(197, 768, 12, k_major=True), 1, 11),
])  # fmt: skip
def test_twelve_layers_need_a_fraction_of_two_sets(program: Program, cluster: int, megabytes: int) -> None:
    encoder_plan = plan_of(program, 132, cluster)
    planned_bytes = memory_of(encoder_plan).bytes
    assert planned_bytes < megabytes * 10**6
    assert planned_bytes < 0.08 * 2 * set_bytes(encoder_plan)


def longest(change: Callable[[int, int], tuple[int, int]]) -> Callable[[Memory], Memory]:
    """Change slots and distance of the largest ring."""

    def changed_memory(memory: Memory) -> Memory:
        at = max(range(len(memory.rings)), key=lambda n: len(memory.rings[n].names))
        ring = memory.rings[at]
        slots, ahead = change(ring.slots, ring.ahead)
        rings = *memory.rings[:at], replace(ring, slots=slots, ahead=ahead), *memory.rings[at + 1 :]
        return replace(memory, rings=rings)

    return changed_memory


MUTANTS: dict[str, tuple[Callable[[Memory], Memory], str]] = {
    "a slot too few": (longest(lambda slots, ahead: (slots - ahead, ahead)), "still read|not absent"),
    "wiped a place too near": (longest(lambda slots, ahead: (slots, ahead - 3)), "not absent"),
    "wiped where it is read": (longest(lambda slots, ahead: (slots, ahead + 6)), "still read|not absent"),
    "no fences": (
        lambda memory: replace(memory, generations=tuple(0 for _ in memory.generations)),
        "still read|not abs",
    ),
    "generations in disorder": (lambda memory: replace(memory, generations=memory.generations[::-1]), "in order"),
    "a generation passed over": (
        lambda memory: replace(memory, generations=tuple(3 * g for g in memory.generations)), "passes over",
    ),
    "rings that overlap": (
        lambda memory: replace(memory, rings=tuple(replace(ring, offset=0) for ring in memory.rings)), "begins in that",
    ),
    "a ring is missing": (lambda memory: replace(memory, rings=memory.rings[1:]), "no memory"),
    "readers of several wipe": (longest(lambda slots, _: (4 * slots, 0)), "not read once"),
    "slots that are too small": (
        lambda memory: replace(memory, rings=(replace(memory.rings[0], slot_bytes=128), *memory.rings[1:])), "size",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_memory_that_lacks_something_is_refused(mutant: str) -> None:
    change, message = MUTANTS[mutant]
    encoder_plan = plan()
    memory = memory_of(encoder_plan, stages=2)
    assert memory_faults(encoder_plan, memory) == []
    actual = memory_faults(encoder_plan, change(memory))
    assert any(word in fault for fault in actual for word in message.split("|")), actual


def test_addresses_repeat_after_a_period_and_never_meet() -> None:
    memory = memory_of(plan(), stages=2)
    assert memory.places(0) == memory.places(memory.runs)
    assert memory.runs > 1
    for run in range(memory.runs):
        places, wiped_places = memory.places(run), memory.wiped(run)
        assert all(wiped_places[name] != places[name] for name in wiped_places)
        assert max(places.values()) < memory.bytes


def test_the_verifier_takes_memory_that_is_used_again_and_misses_the_fences() -> None:
    encoder_plan = plan_of(pre_norm(128, 64, 4), 8, 1)
    memory = memory_of(encoder_plan, stages=2)
    whole = of_blocks(encoder_plan, memory)
    assert whole.verified().sound
    assert any("WAR" in edge.hazards for edge in whole.policy().edges)
    unfenced_policy = of_blocks(encoder_plan, replace(memory, generations=tuple(0 for _ in memory.generations)))
    assert len(unfenced_policy.verified().missing)
