"""Programs as users write them: `python clients.py NAME [DEVICE]`, as in `programs.py`.

Models of transformers, timm, torchvision and torch_geometric, at sizes that take seconds to record. The model
recorder's rules were corrected with them; `held_out.py` has programs with which nothing was corrected. Weights and
inputs are made on the CPU, so that accesses that depend on values (routing, suppression) are nearly the same on both
devices.
"""

import sys

import torch
from programs import region
from torch import nn

F = nn.functional
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda"


def mamba():
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(
        hidden_size=256, state_size=16, num_hidden_layers=2, vocab_size=2000, use_mambapy=False, use_cache=False
    )
    model = MambaModel(config).eval().to(DEVICE)
    ids = torch.randint(0, 2000, (1, 20)).to(DEVICE)
    return lambda: model(ids).last_hidden_state


def t5_step():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=256, d_kv=64, d_ff=1024, num_layers=2, num_heads=4, vocab_size=4000, decoder_start_token_id=0,
        dropout_rate=0.1,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).train().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    ids, labels = (torch.randint(1, 4000, (4, n)).to(DEVICE) for n in (64, 32))

    def run():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss

    return run


def whisper():
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        d_model=384, encoder_layers=2, decoder_layers=2, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536,
    )  # fmt: skip
    model = WhisperModel(config).eval().to(DEVICE, torch.float16)
    sound, ids = torch.randn(1, 80, 3000).to(DEVICE, torch.float16), torch.randint(0, 50000, (1, 8)).to(DEVICE)
    return lambda: model(input_features=sound, decoder_input_ids=ids, use_cache=False).last_hidden_state


def graph():
    """Return features and edges of a random graph."""
    return torch.randn(1200, 64).to(DEVICE), torch.randint(0, 1200, (2, 6000)).to(DEVICE)


def gcn():
    from torch_geometric.nn import GCNConv

    first, second = GCNConv(64, 128).eval().to(DEVICE), GCNConv(128, 16).eval().to(DEVICE)
    x, edges = graph()
    return lambda: second(first(x, edges).relu(), edges).log_softmax(-1)


def gat():
    from torch_geometric.nn import GATConv

    first, second = GATConv(64, 32, heads=4).eval().to(DEVICE), GATConv(128, 16, heads=1).eval().to(DEVICE)
    x, edges = graph()
    return lambda: second(F.elu(first(x, edges)), edges).log_softmax(-1)


def qwen3_moe():
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    config = Qwen3MoeConfig(
        hidden_size=1024, intermediate_size=3072, moe_intermediate_size=384, num_hidden_layers=2, num_experts=32,
        num_experts_per_tok=4, num_attention_heads=16, num_key_value_heads=4, vocab_size=8000,
    )  # fmt: skip
    model = Qwen3MoeModel(config).eval().to(DEVICE, torch.bfloat16)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("grouped_mm")
    ids = torch.randint(0, 8000, (1, 256)).to(DEVICE)
    return lambda: model(ids).last_hidden_state


def timm_model(name):
    import timm

    model = timm.create_model(name).eval().to(DEVICE, torch.float16)
    images = torch.randn(2, 3, 224, 224).to(DEVICE, torch.float16)
    return lambda: model(images)


def convnext():
    return timm_model("convnext_tiny")


def mixer():
    return timm_model("mixer_s16_224")


def faster_rcnn():
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn as detector

    model = detector(weights=None, weights_backbone=None).eval().to(DEVICE)
    image = torch.rand(3, 320, 320).to(DEVICE)
    return lambda: model([image])[0]["boxes"]


def unet():
    def block(into, out):
        layers = [nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(8, out), nn.SiLU()]
        return nn.Sequential(*layers, nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(8, out), nn.SiLU())

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.middle = block(3, 64), block(64, 128), block(128, 256)
            self.up, self.upper = nn.ConvTranspose2d(256, 128, 2, stride=2), nn.ConvTranspose2d(128, 64, 2, stride=2)
            self.third, self.fourth, self.last = block(256, 128), block(128, 64), nn.Conv2d(64, 3, 1)
            self.pool = nn.MaxPool2d(2)

        def forward(self, x):
            a = self.first(x)
            b = self.second(self.pool(a))
            x = self.up(self.middle(self.pool(b)))
            x = self.upper(self.third(torch.cat([x, b], 1)))
            return self.last(self.fourth(torch.cat([x, a], 1)))

    model = UNet().eval().to(DEVICE, torch.float16)
    image = torch.randn(2, 3, 128, 128).to(DEVICE, torch.float16)
    return lambda: model(image)


def compiled(run, times=3):
    for _ in range(times):
        run()
    return run


def triton_products():
    """Return six products that Inductor's autotuner implements in Triton."""
    torch._inductor.config.max_autotune_gemm_backends = "TRITON"
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU()) for _ in range(6)))
    layers, x = layers.eval().to(DEVICE, torch.bfloat16), torch.randn(512, 512).to(DEVICE, torch.bfloat16)
    run = torch.compile(layers, mode="max-autotune-no-cudagraphs")
    return compiled(lambda: run(x))


def flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as attention

    q, k, v = (torch.randn(1, 8, 512, 64).to(DEVICE, torch.bfloat16) for _ in range(3))
    mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, 512, 512, device=DEVICE)
    run = torch.compile(lambda q, k, v: attention(q * 0.5, k, v, block_mask=mask).relu())
    return compiled(lambda: run(q, k, v))


def static_decode():
    """Return one step of a compiled LLaMA with a static cache."""
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        hidden_size=512, intermediate_size=1408, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=2000,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().to(DEVICE, torch.bfloat16)
    cache = StaticCache(config=config, max_cache_len=128)
    ids, place = torch.randint(0, 2000, (1, 32)).to(DEVICE), torch.arange(32, device=DEVICE)
    model(ids, past_key_values=cache, cache_position=place, position_ids=place[None])
    token, place = ids[:, :1].contiguous(), torch.tensor([32], device=DEVICE)
    step = torch.compile(model)
    return compiled(lambda: step(token, past_key_values=cache, cache_position=place, position_ids=place[None]).logits)


NAMES = (
    mamba, t5_step, whisper, gcn, gat, qwen3_moe, convnext, mixer, faster_rcnn, unet, triton_products, flex_attention,
    static_decode,
)  # fmt: skip


def make(program):
    """Return the function to record, after it ran once, with its random numbers fixed."""
    torch.manual_seed(0)
    run = program()
    run()  # libraries load now, and eager replays show which blocks store what
    return run


def main(name, programs=NAMES):
    with torch.set_grad_enabled(name.endswith("_step")):
        run = make({f.__name__: f for f in programs}[name])
        with region(DEVICE):
            out = run()
    sys.stdout.write(f"{name} {out.float().abs().sum().item():.6e}\n")


if __name__ == "__main__":
    main(sys.argv[1])
