import statistics, sys, torch
from transformers import GPT2Config, GPT2Model
torch.manual_seed(0)
n = int(sys.argv[1]) if len(sys.argv) > 1 else 24
m = GPT2Model(GPT2Config(n_embd=1024, n_layer=n, n_head=16)).to("cuda", torch.bfloat16).eval()
ids = torch.randint(0, 50257, (1, 512), device="cuda")
times = []
with torch.no_grad():
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 7):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(); a.record(); out = m(ids).last_hidden_state; b.record(); torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
print("gpt2 ms", [round(t, 2) for t in times], "median of last 4", round(statistics.median(times[-4:]), 2), "checksum", f"{out.float().abs().sum().item():.6e}", flush=True)
