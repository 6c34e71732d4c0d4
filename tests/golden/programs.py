"""The programs behind the golden traces: `python programs.py NAME [DEVICE]`. What is between profiler start and stop is
recorded; with DEVICE cpu, for the model recorder, what is inside `tileprof.capture()`.

Sizes are small, so that a trace is a few ten kB; shapes are awkward where that exercises edges (ragged tiles).
"""

import contextlib
import sys

import torch

F = torch.nn.functional
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda"


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def gemm_pair():
    x, w1, w2 = half(256, 512), half(512, 1024), half(1024, 512)
    return lambda: (x @ w1) @ w2


def gemm_fp32():
    a, b, c = (torch.randn(256, 256, device=DEVICE) for _ in range(3))
    return lambda: (a @ b) @ c


def layer_norm():
    x, w = half(128, 1024), half(1024)
    return lambda: F.layer_norm(F.layer_norm(x, (1024,), w), (1024,), w)


def softmax():
    x = torch.randn(128, 1000, device=DEVICE)
    return lambda: (x.softmax(-1) + 1).softmax(-1)


def attention():
    q, k, v = (half(1, 4, 256, 64) for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2


def convolution():
    x = torch.randn(2, 64, 28, 28, device=DEVICE, dtype=torch.float16).to(memory_format=torch.channels_last)
    w = torch.randn(64, 64, 3, 3, device=DEVICE, dtype=torch.float16).to(memory_format=torch.channels_last)
    return lambda: F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w, padding=1)


def gpt2():
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=256, n_layer=2, n_head=4, vocab_size=1000)
    model = GPT2Model(config).to(DEVICE, torch.bfloat16).eval()
    ids = torch.randint(0, 1000, (1, 128), device=DEVICE)
    return lambda: model(ids, use_cache=False).last_hidden_state


def gpt2_compiled():
    run = torch.compile(gpt2())
    for _ in range(3):
        run()
    return run


def gpt2_graph():
    return in_a_graph(gpt2())


def in_a_graph(run):
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


@contextlib.contextmanager
def region(device):
    """Select the region to record: with profiler start and stop for the CUDA recorder, with `capture` for the model
    recorder.
    """
    if device == "cpu":
        import tileprof

        with tileprof.capture():
            yield
        return
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    yield
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def main(name: str, programs=NAMES) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        run = {f.__name__: f for f in programs}[name]()
        if name not in {"gpt2_compiled", "gpt2_graph"}:
            run()  # libraries load now, and eager replays show which blocks store what
        with region(DEVICE):
            out = run()
    sys.stdout.write(f"{name} {out.float().abs().sum().item():.6e}\n")


if __name__ == "__main__":
    main(sys.argv[1])
