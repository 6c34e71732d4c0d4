"""From ``tileprof record`` to a measured gain in five commands, on a GPU: ``python tests/gpu/one_road.py DIR``.

Records programs of PyTorch with the CUDA recorder, exports a policy of their operators, verifies it against the recording,
runs it and compares it with stream order and PyTorch. Every step has a limit, and none ends the walk.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

PERCEPTRON = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 4096)).half().cuda().eval()
x = torch.randn(64, 4096, dtype=torch.float16, device="cuda")
with torch.no_grad():
    print(net(x).float().norm().item())
"""
CONVOLUTIONS = """
import torch
torch.manual_seed(0)
layers = [torch.nn.Conv2d(128, 128, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(128, 128, 3, padding=1), torch.nn.ReLU()]
net = torch.nn.Sequential(*layers).half().cuda().eval().to(memory_format=torch.channels_last)
x = torch.randn(1, 128, 28, 28, dtype=torch.float16, device="cuda").to(memory_format=torch.channels_last)
with torch.inference_mode():
    print(net(x).float().norm().item())
"""
PROGRAMS = {"perceptron": (PERCEPTRON, "aten::addmm"), "convolutions": (CONVOLUTIONS, "aten::convolution")}


def run(name, *words, folder, limit_s):
    """One command; its exit code, what it printed, and the seconds it took."""
    begun = time.monotonic()
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "tileprof", *words], cwd=folder, capture_output=True, text=True, timeout=limit_s,
            check=False,
        )  # fmt: skip
        code, text = ended.returncode, ended.stdout + ended.stderr
    except subprocess.TimeoutExpired as error:
        code, text = 124, f"{error.stdout} {error.stderr}"
    print(f"--- {name}: exit {code}, {time.monotonic() - begun:.1f} s\n{text[-3500:]}", flush=True)
    return code


def calls(trace):
    """Operators and kernels of a recording, and how many launches say how they were called."""
    from tileprof.trace import load

    rows = load(trace).launches
    for row in rows.to_dict("records"):
        text = json.loads(row["call"]) if row["call"] else {}
        operands = [o["argument"] if o else "workspace" for o in text.get("operands", [])]
        grid = (row["grid_x"], row["grid_y"], row["grid_z"])
        kernel = f"{row['kernel'][:50]} {grid}"
        print(
            f"{row['launch']:3} {row['op']:22} {kernel:66} {row['coverage']:12} {text.get('number')} {operands}",
            flush=True,
        )
    return rows


def walk(program, op, folder):
    """The five commands; what came of each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "infer.py").write_text(program)
    codes = {"record": run("record", "record", "--", "python", "infer.py", folder=folder, limit_s=60)}
    trace = folder / "infer.tileprof"
    try:
        rows = calls(trace)
        chosen = (rows["op"] == op).to_numpy().nonzero()[0].tolist()
    except Exception as error:
        print("no trace:", error)
        return codes
    for label, options in (("chain", ["--fuse", "--launches", ",".join(map(str, chosen))]), ("pair", [])):
        out = f"out-{label}"
        words = ["export", "--format", "json", "-o", out, *options, "infer.tileprof"]
        codes[f"export {label}"] = run(f"export {label}", *words, folder=folder, limit_s=30)
        if codes[f"export {label}"] or label == "pair":  # that a pair names operators is in what export prints
            continue
        policy = f"{out}/policy.json"
        codes[f"verify {label}"] = run(
            "verify", "verify", policy, "infer.tileprof", "--fuse", folder=folder, limit_s=30
        )
        codes[f"compare {label}"] = run("run --compare", "run", "--compare", policy, folder=folder, limit_s=90)
    return codes


def main():
    out = Path(sys.argv[1])
    results = {}
    for name, (program, op) in PROGRAMS.items():
        print(f"===== {name}", flush=True)
        results[name] = walk(program, op, out / name)
    for name, codes in results.items():
        print(f"{name:14}", "  ".join(f"{step}: {code}" for step, code in codes.items()), flush=True)


if __name__ == "__main__":
    main()
