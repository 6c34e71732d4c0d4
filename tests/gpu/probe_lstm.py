import statistics, sys, torch
torch.manual_seed(0)
def timed(name, f, n=7):
    ts = []
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(); a.record(); out = f(); b.record(); torch.cuda.synchronize(); ts.append(a.elapsed_time(b))
    print(name, "ms", round(statistics.median(ts[-4:]), 2), f"{(out[0] if isinstance(out, tuple) else out).float().abs().sum().item():.6e}", flush=True)
with torch.no_grad():
    m = torch.nn.LSTM(512, 512, 2).cuda(); x = torch.randn(64, 8, 512, device="cuda"); timed("lstm", lambda: m(x))
    x = torch.randn(8, 64, 56, 56, device="cuda", dtype=torch.float16); w = torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.float16)
    F = torch.nn.functional; timed("conv4", lambda: F.conv2d(F.conv2d(F.conv2d(F.conv2d(x, w, padding=1), w, padding=1), w, padding=1), w, padding=1))
    a = torch.randn(1024, 1024, device="cuda"); timed("gemm_fp32", lambda: a @ a)
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16); timed("gemm_bf16_4096", lambda: a @ a)
