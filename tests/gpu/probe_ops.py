import sys, torch
torch.manual_seed(0)
F = torch.nn.functional
d = "cuda"
def show(name, t):
    torch.cuda.synchronize()
    print(name, f"{t.float().double().abs().sum().item():.6e}", flush=True)
which = sys.argv[1:] or ["bf16", "fp32", "norm", "softmax", "sdpa", "conv"]
with torch.no_grad():
    if "bf16" in which:
        a = torch.randn(512, 2048, device=d, dtype=torch.bfloat16); b = torch.randn(2048, 1024, device=d, dtype=torch.bfloat16); c = torch.randn(1024, 512, device=d, dtype=torch.bfloat16)
        show("bf16", (a @ b) @ c)
    if "fp32" in which:
        a = torch.randn(512, 512, device=d); show("fp32", (a @ a) @ a)
    if "norm" in which:
        x = torch.randn(256, 1024, device=d, dtype=torch.bfloat16); show("norm", F.layer_norm(x, (1024,)))
    if "softmax" in which:
        x = torch.randn(256, 1024, device=d); show("softmax", x.softmax(-1))
    if "sdpa" in which:
        q = torch.randn(1, 16, 512, 64, device=d, dtype=torch.bfloat16); show("sdpa", F.scaled_dot_product_attention(q, q, q, is_causal=True))
    if "conv" in which:
        x = torch.randn(8, 64, 56, 56, device=d, dtype=torch.float16); w = torch.randn(64, 64, 3, 3, device=d, dtype=torch.float16); show("conv", F.conv2d(F.conv2d(x, w, padding=1), w, padding=1))
