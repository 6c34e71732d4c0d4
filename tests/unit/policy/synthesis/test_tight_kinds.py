"""For the chains that cuSync's authors tuned by hand, synthesis chooses their kind of policy or a better one, with a
reason.
"""

from __future__ import annotations

import pytest

from tests.support.policies.published_chains import chains, measure

EXPECTED = {
    ("gpt3-175b-tp8", "v100", "mlp", 64),
    ("gpt3-175b-tp8", "v100", "mlp", 1024),
    ("gpt3-175b-tp8", "a100", "mlp", 1792),
    ("llama-65b-tp8", "a100", "mlp", 2816),
    ("gpt3-175b-tp8", "v100", "attention", 512),
    ("llama-65b-tp8", "v100", "attention", 1024),
    ("resnet-38(cusync)", "v100", "C64", 4),
    ("vgg-19(cusync)", "v100", "C256", 4),
}
"""All 152 pairs: tests/benchmarks/policies/bench_policy_kinds.py."""


@pytest.mark.parametrize("key", sorted(EXPECTED))
def test_no_kind_of_cusync_that_waits_for_everything_is_faster(key, tmp_path) -> None:
    (chain,) = (c for c in chains() if (c.model, c.arch, c.block, c.size) == key)
    for result in measure(chain, tmp_path):
        assert result.policy_us <= result.best_shipped_us * 1.001
        assert result.reason.startswith(f"{result.kind}, {result.semaphores} semaphore")
        if chain.convolutions and result.semaphores > 1:
            assert result.kind == "interval", "the halo"
            assert all(result.missing.values()), "no kind of cuSync's waits for the halo"


def test_rows_are_found_where_they_pay(tmp_path) -> None:
    (chain,) = (c for c in chains() if (c.model, c.arch, c.size) == ("gpt3-175b-tp8", "a100", 1792))
    (actual,) = measure(chain, tmp_path)
    assert actual.kind == "row"
    assert actual.policy_us < 0.97 * actual.stream_us
    assert "fewer are" in actual.reason
