"""What recording costs, as ratios of the plain run's GPU time: ``python measure_overhead.py RESULT.json``.

Modes: plain; floor (every instruction calls back and the callbacks do nothing: what the patching itself costs);
blocks; accesses; and ``compute-sanitizer --tool memcheck`` where it is found (the wheel of the API holds it). GPU time is the median of the last
four of seven repetitions, by CUDA events inside the program. Then a whole recording of GPT-2 medium: seconds, size of
the trace, and how much of what it writes is exact.
"""

import datetime as dt
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS, COUNTED = 7, 4


def gpt2_medium(torch):
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(n_embd=1024, n_layer=24, n_head=16)).to("cuda", torch.bfloat16).eval()
    ids = torch.randint(0, 50257, (1, 512), device="cuda")
    return lambda: model(ids).last_hidden_state


def lstm(torch):
    model, x = torch.nn.LSTM(512, 512, 2).cuda(), torch.randn(64, 8, 512, device="cuda")
    return lambda: model(x)[0]


def convolutions(torch):
    x = torch.randn(8, 64, 56, 56, device="cuda", dtype=torch.float16)
    w = 0.02 * torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.float16)

    def run():
        out = x
        for _ in range(4):
            out = torch.nn.functional.conv2d(out, w, padding=1)
        return out

    return run


def gemm_fp32(torch):
    a = torch.randn(1024, 1024, device="cuda")
    return lambda: a @ a


def gemm_bf16(torch):
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    return lambda: a @ a


PROGRAMS = (gpt2_medium, lstm, convolutions, gemm_fp32, gemm_bf16)


def child(name):
    import torch

    torch.manual_seed(0)
    times = []
    with torch.no_grad():
        run = {p.__name__: p for p in PROGRAMS}[name](torch)
        for _ in range(int(os.environ.get("REPEATS", REPEATS))):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            out = run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    row = {"ms": statistics.median(times[-COUNTED:]), "checksum": out.float().abs().sum().item()}
    sys.stdout.write(json.dumps(row) + "\n")


def measured(name, environment, prefix=()):
    command = [*prefix, sys.executable, __file__, "--child", name]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    except (subprocess.TimeoutExpired, StopIteration):
        return None


def memcheck():
    """The command-line tool: on the PATH, else in the wheel, else ""."""
    from tileprof.record.cuda import locate

    beside = locate.sanitizer().library.with_name("compute-sanitizer")
    return shutil.which("compute-sanitizer") or (str(beside) if os.access(beside, os.X_OK) else "")


def ratios(row):
    """Each mode's GPU time over the plain run's, and memcheck's over ours."""
    times = {mode: r["ms"] for mode, r in row.items() if r}
    found = {mode: round(ms / times["plain"], 2) for mode, ms in times.items() if mode != "plain"}
    if "memcheck" in times and "accesses" in times:
        found["memcheck_over_accesses"] = round(times["memcheck"] / times["accesses"], 2)
    return found


def overheads(names):
    from tileprof.record.cuda import build, gpu, locate, program
    from tileprof.record.cuda.settings import Settings

    built, sanitizer = build.build(gpu.gpus()[0].architecture), locate.sanitizer()
    rows = {}
    for name in names:
        row = {"plain": measured(name, dict(os.environ))}
        for mode in ("floor", "blocks", "accesses"):
            with tempfile.TemporaryDirectory() as folder:
                settings = Settings(hooks=False, replay=False)
                variables = program.environment(mode, Path(folder), built, sanitizer, settings, skip=0, count=None)
                row[mode] = measured(name, variables)
        if tool := memcheck():
            row["memcheck"] = measured(name, dict(os.environ), (tool, "--tool", "memcheck", "--print-level", "error"))
        rows[name] = row
        plain = row["plain"]["ms"]
        text = "  ".join(
            f"{mode} {r['ms']:.2f} ({r['ms'] / plain:.1f}x)" if r else f"{mode} failed" for mode, r in row.items()
        )
        row["ratios"] = ratios(row)
        sys.stdout.write(f"{name}: {text}\n")
        sys.stdout.flush()
    return rows


def whole_recording():
    from tileprof.record import Options
    from tileprof.record.cuda import recording
    from tileprof.record.cuda.settings import Settings
    from tileprof.trace import load

    os.environ["REPEATS"] = "2"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpt2_medium.tileprof"
        began = time.monotonic()
        recording.record(Options(program=(sys.executable, __file__, "--child", "gpt2_medium"), output=path), Settings())
        seconds = time.monotonic() - began
        trace = load(path)
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        row = {
            "seconds": round(seconds, 1),
            "megabytes": round(size / 1e6, 2),
            "launches": len(trace.launches),
            "footprints": int(trace.launches.footprint.nunique()),
            "boxes": len(trace.accesses),
            "launches_by_coverage": {k: int(v) for k, v in trace.launches.coverage.value_counts().items()},
            "megabytes_below_50": size < 50e6,
        }
    sys.stdout.write(f"a recording of two forwards, three passes: {row}\n")
    return row


def main(out):
    import torch

    from tileprof.record.cuda import gpu, locate

    found = gpu.gpus()[0]
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    result = {
        "what": "CUDA recorder: GPU milliseconds by CUDA events (median of the last 4 of 7) of each mode, and of memcheck; one whole recording",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "device": found.name,
        "driver": driver,
        "cuda": found.driver,
        "sanitizer": locate.wheel_version(),
        "torch": torch.__version__,
        "gpu_time": overheads([p.__name__ for p in PROGRAMS]),
        "recording_gpt2_medium": whole_recording(),
    }
    Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(sys.argv[2])
    else:
        main(sys.argv[1])
