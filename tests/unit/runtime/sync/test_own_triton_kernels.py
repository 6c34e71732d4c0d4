"""A user's kernels with the two added lines, without a GPU: they run as before."""

from __future__ import annotations

import pytest
import torch

from tests.support.runtime.chains import CHAINS

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402 - only where there is Triton

from tileprof.errors import UserError  # noqa: E402
from tileprof.runtime.synchroniser import Synchroniser, enter, leave, unsynchronised  # noqa: E402


@triton.jit
def scale(x, y, sync, BLOCK: tl.constexpr):  # noqa: N803 - as kernels spell it
    tile = enter(sync, tl.program_id(0))
    at = tile * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at))
    leave(sync, tile)


@pytest.mark.filterwarnings("ignore")
def test_an_unsynchronised_kernel_runs_as_it_did() -> None:
    x, y = torch.arange(256.0), torch.zeros(256)
    scale[(4,)](x, y, unsynchronised(), BLOCK=64)
    assert torch.equal(y, 2 * x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_what_to_use(tmp_path) -> None:
    CHAINS["mlp"].policy().save(tmp_path / "p.json")
    with pytest.raises(UserError, match=r"no GPU here .* unsynchronised"):
        Synchroniser.from_policy(tmp_path / "p.json")
