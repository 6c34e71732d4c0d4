"""Sizes from the field in the persistent kernel, on a GPU: a thousand delayed replays, each compared bit for bit with
its stages one after the other.
"""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

from tests.gpu.runtime.chains.replays import wrong_replays
from tileprof.runtime.measuring.cases import convolution_pair, gated_mlp, gelu_mlp
from tileprof.runtime.persistent.cost import clusters_on
from tileprof.runtime.persistent.tile_choice import tiled

pytestmark = pytest.mark.gpu

GPT_3 = {tokens: gelu_mlp(tokens, (64, 128), (64, 128)) for tokens in (64, 512)}
CHAINS = {
    "GPT-3 MLP TP8, 64 tokens": GPT_3[64],
    "GPT-3 MLP TP8, 512 tokens": GPT_3[512],
    "LLaMA-7B MLP, 16 tokens": gated_mlp(16, (16, 64), (16, 128), 4096, 11008),
    "VGG-19, 56 x 56 x 256, batch 8": convolution_pair(8, 56, 256, (64, 64)),
    "ResNet-38, 14 x 14 x 256, batch 1": convolution_pair(1, 14, 256, (16, 64)),
}


@pytest.mark.parametrize("name", list(CHAINS))
def test_a_thousand_delayed_replays_are_right_to_the_bit(name) -> None:
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    chain, _ = tiled(CHAINS[name], clusters_on(sms))
    assert wrong_replays(chain.policy(), replays=1000, schedule="persistent", order="persistent-stages") == 0
