"""Plans of whole-model kernels as policies: the verifier accepts them, and refuses every mutant that lets a tile read
too early or hang.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.runtime.decoder_shapes import TINY
from tests.support.runtime.encoder_programs import post_norm, pre_norm
from tests.support.runtime.networks import small
from tests.support.runtime.whole_mutants import Oracle, Tally
from tileprof.policy.format import Range, from_dict, to_dict
from tileprof.runtime.convnet.plan import plan_network
from tileprof.runtime.decode.handover import Handover
from tileprof.runtime.encoder.plan import plan_of
from tileprof.runtime.programs.whole_policy import of_blocks, of_decoder, of_network

PLANS = {
    "decoder": lambda: of_decoder(Handover(TINY, 132, 200)),
    "blocks of GPT-2": lambda: of_blocks(plan_of(pre_norm(32, 128, 2), 16, 2)),
    "blocks of BERT": lambda: of_blocks(plan_of(post_norm(32, 128, 2), 16, 2)),
    "residual network": lambda: of_network(plan_network(small(2), 132)),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_sound_and_all_that_is_needed_is_awaited(name) -> None:
    plan = PLANS[name]()
    verdict = plan.verified()
    assert verdict.sound, (verdict.never, verdict.missing.head())
    assert verdict.needed == verdict.covered == sum(len(parent) for parent, _ in plan.needed.values()) > 100
    assert not Oracle(plan, plan.policy()).harmful(plan.policy(), len(plan.names) // 2)


@pytest.mark.parametrize("name", PLANS)
def test_no_harmful_mutant_is_accepted_and_no_harmless_one_refused(name) -> None:
    tally = Tally()
    tally.add(PLANS[name](), 48)
    assert tally.escapes.total() == 0, str(tally)
    assert tally.cautious.total() == 0, str(tally)
    assert tally.harmful.total() > 20
    assert tally.counts.total() > tally.harmful.total()


def test_whole_policies_are_policy_files_and_wait_for_whole_stages_in_ranges() -> None:
    policy = PLANS["decoder"]().policy()
    again = from_dict(to_dict(policy))
    assert to_dict(again) == to_dict(policy)
    gate = next(e for e in policy.edges if policy.stages[e.consumer].name == "gate 1")
    assert isinstance(gate.waits[0], Range)
    assert str(gate.waits[0]) == "0..7"


def test_an_omitted_task_and_an_unawaited_band_are_detected() -> None:
    plan = PLANS["residual network"]()
    (key, (semaphores, children)), *_ = [(k, v) for k, v in plan.awaited.items() if len(v[0]) > 4]
    fewer = {**plan.awaited, key: (np.delete(semaphores, 2), np.delete(children, 2))}
    verdict = replace(plan, awaited=fewer).verified()
    assert set(zip(verdict.missing["producer"], verdict.missing["consumer"], strict=True)) == {key}
