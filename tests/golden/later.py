"""More programs, recorded after the model recorder's rules had been written: `python later.py NAME [DEVICE]`, as in
`programs.py`.

docs/model-recorder.md has the first results. The rules have since been corrected with these programs, too
(`tests/benchmarks/model_recorder/bench_model_against_recorded.py`), so only other programs show how general they are.
"""

import sys

import torch
from programs import DEVICE, half, main
from torch import nn

F = torch.nn.functional


def llama():
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=512, intermediate_size=1408, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=2000
    )  # fmt: skip
    model = LlamaModel(config).to(DEVICE, torch.bfloat16).eval()
    ids = torch.randint(0, 2000, (1, 192), device=DEVICE)
    return lambda: model(ids, use_cache=False).last_hidden_state


def bottleneck():
    """A basic block of ResNet, twice, in half precision and channels last."""

    class Block(nn.Module):
        def __init__(self, wide, narrow):
            super().__init__()
            sizes = ((wide, narrow, 1), (narrow, narrow, 3), (narrow, wide, 1))
            self.convolutions = nn.ModuleList(nn.Conv2d(i, o, k, padding=k // 2, bias=False) for i, o, k in sizes)
            self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _ in sizes)

        def forward(self, x):
            out = x
            for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
                out = norm(convolution(out))
                out = F.relu(out) if i < 2 else out
            return F.relu(out + x)

    blocks = nn.Sequential(Block(256, 64), Block(256, 64)).to(DEVICE, torch.float16, memory_format=torch.channels_last)
    x = torch.randn(4, 256, 28, 28, device=DEVICE, dtype=torch.float16).to(memory_format=torch.channels_last)
    blocks.eval()
    return lambda: blocks(x)


def encoder():
    layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    layer = layer.to(DEVICE, torch.bfloat16).train()  # in eval mode it would be one operator
    x = half(4, 100, 384)
    return lambda: layer(x)


def perceptron():
    layers = nn.Sequential(nn.Linear(300, 700), nn.GELU(), nn.Linear(700, 700), nn.SiLU(), nn.Linear(700, 90))
    layers, x = layers.to(DEVICE), torch.randn(96, 300, device=DEVICE)
    return lambda: layers(x).log_softmax(-1)


def patches():
    """The patch embedding of a vision transformer, and pooling at its end."""
    convolution = nn.Conv2d(3, 192, 16, stride=16).to(DEVICE, torch.bfloat16)
    norm, head = (m.to(DEVICE, torch.bfloat16) for m in (nn.LayerNorm(192), nn.Linear(192, 50)))
    x, place = half(2, 3, 224, 224), half(1, 196, 192)
    return lambda: head(norm(convolution(x).flatten(2).transpose(1, 2) + place).mean(1)).softmax(-1)


def mixture():
    """Indexing, sorting, scans, joins and batched products."""
    x, index = torch.randn(64, 512, device=DEVICE), torch.randint(0, 64, (128,), device=DEVICE)

    def run():
        rows = x.index_select(0, index)
        left, right = rows.chunk(2, dim=1)
        join = torch.cat([left.cumsum(1), right.sigmoid()], dim=1)
        scores = torch.bmm(join.view(8, 16, 512), join.view(8, 16, 512).transpose(1, 2).contiguous())
        return scores.amax(-1) * scores.topk(4, dim=-1).values.sum(-1)

    return run


def gru():
    """One recurrent layer by cuDNN over six steps."""
    layer, x = torch.nn.GRU(256, 256).to(DEVICE, torch.bfloat16).eval(), half(6, 16, 256)
    return lambda: layer(x)[0]


def gru_cells():
    """The same cell by cell: a product of the input and one of the state in each step."""
    cell, x = torch.nn.GRUCell(256, 256).to(DEVICE), torch.randn(4, 16, 256, device=DEVICE)

    def run():
        state = torch.zeros(16, 256, device=DEVICE)
        for step in x:
            state = cell(step, state)
        return state

    return run


def lstm():
    """Two recurrent layers by cuDNN over four steps."""
    layers, x = torch.nn.LSTM(256, 256, num_layers=2).to(DEVICE, torch.bfloat16).eval(), half(4, 16, 256)
    return lambda: layers(x)[0]


NAMES = (llama, bottleneck, encoder, perceptron, patches, mixture, gru, gru_cells, lstm)

if __name__ == "__main__":
    main(sys.argv[1], NAMES)
