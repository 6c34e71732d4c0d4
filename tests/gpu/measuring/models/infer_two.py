"""A program that knows nothing of tileprof, for `tileprof run -- python infer_two.py`: a small LLaMA that decodes a
token, and two blocks of GPT-2.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from model_cases import decoding, of_transformers, tokens

SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    decoder = decoding(
        of_transformers("LlamaForCausalLM", "LlamaConfig", "cuda", None, head_dim=64, **SMALL),
        torch.bfloat16,
        1,
        100,
        256,
        "cuda",
    )
    blocks = tokens(
        of_transformers("GPT2Model", "GPT2Config", "cuda", None, n_layer=2), torch.float16, 128, "cuda", use_cache=False
    )
    with torch.no_grad():
        for case in (decoder, blocks):
            print(case.call(case.model).float().std().item())
