"""The programs behind the golden traces: `python programs.py NAME`. What is between profiler start and stop is recorded.

Sizes are small, so that a trace is a few ten kB; shapes are awkward where that exercises edges (ragged tiles).
"""

import sys

import torch

F = torch.nn.functional


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def gemm_pair():
    x, w1, w2 = half(256, 512), half(512, 1024), half(1024, 512)
    return lambda: (x @ w1) @ w2


def gemm_fp32():
    a, b, c = (torch.randn(256, 256, device="cuda") for _ in range(3))
    return lambda: (a @ b) @ c


def layer_norm():
    x, w = half(128, 1024), half(1024)
    return lambda: F.layer_norm(F.layer_norm(x, (1024,), w), (1024,), w)


def softmax():
    x = torch.randn(128, 1000, device="cuda")
    return lambda: (x.softmax(-1) + 1).softmax(-1)


def attention():
    q, k, v = (half(1, 4, 256, 64) for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2


def convolution():
    x = torch.randn(2, 64, 28, 28, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    w = torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    return lambda: F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w, padding=1)


def gpt2():
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=256, n_layer=2, n_head=4, vocab_size=1000)
    model = GPT2Model(config).to("cuda", torch.bfloat16).eval()
    ids = torch.randint(0, 1000, (1, 128), device="cuda")
    return lambda: model(ids, use_cache=False).last_hidden_state


def gpt2_compiled():
    run = torch.compile(gpt2())
    for _ in range(3):
        run()
    return run


def gpt2_graph():
    return graphed(gpt2())


def graphed(run):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()

    def replay():
        graph.replay()
        return out

    return replay


NAMES = (gemm_pair, gemm_fp32, layer_norm, softmax, attention, convolution, gpt2, gpt2_compiled, gpt2_graph)


def main(name: str) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        run = {f.__name__: f for f in NAMES}[name]()
        if name not in {"gpt2_compiled", "gpt2_graph"}:
            run()  # libraries load, and eager replays tell who stores what
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        out = run()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    sys.stdout.write(f"{name} {out.float().abs().sum().item():.6e}\n")


if __name__ == "__main__":
    main(sys.argv[1])
