"""For the chains that cuSync's authors tuned by hand synthesis finds their kind of policy, or a better one, and says
why.
"""

from __future__ import annotations

import pytest
from published_chains import chains, measure

WANTED = {
    ("gpt3-175b-tp8", "v100", "mlp", 64),
    ("gpt3-175b-tp8", "v100", "mlp", 1024),
    ("gpt3-175b-tp8", "a100", "mlp", 1792),
    ("llama-65b-tp8", "a100", "mlp", 2816),
    ("gpt3-175b-tp8", "v100", "attention", 512),
    ("llama-65b-tp8", "v100", "attention", 1024),
    ("resnet-38(cusync)", "v100", "C64", 4),
    ("vgg-19(cusync)", "v100", "C256", 4),
}
"""All 152 pairs: tests/benchmarks/bench_policy_kinds.py."""


@pytest.mark.parametrize("key", sorted(WANTED))
def test_no_kind_of_cusync_that_waits_for_everything_is_faster(key, tmp_path) -> None:
    (chain,) = (c for c in chains() if (c.model, c.arch, c.block, c.size) == key)
    for found in measure(chain, tmp_path):
        assert found.policy_us <= found.best_shipped_us * 1.001
        assert found.reason.startswith(f"{found.kind}, {found.semaphores} semaphore")
        if chain.convolutions and found.semaphores > 1:
            assert found.kind == "interval", "the halo"
            assert all(found.missing.values()), "no kind of cuSync's waits for the halo"


def test_rows_are_found_where_they_pay(tmp_path) -> None:
    (chain,) = (c for c in chains() if (c.model, c.arch, c.size) == ("gpt3-175b-tp8", "a100", 1792))
    (found,) = measure(chain, tmp_path)
    assert found.kind == "row"
    assert found.policy_us < 0.97 * found.stream_us
    assert "fewer are" in found.reason
