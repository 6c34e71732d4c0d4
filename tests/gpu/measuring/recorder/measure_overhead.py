"""What recording costs, as ratios of the plain run's GPU time: ``python measure_overhead.py RESULT.json [MODE ...]``.

Modes: plain; accesses (as users get it: kernels whose accesses are computed have no patches); patched (all kernels have
patches); and ``compute-sanitizer --tool memcheck`` where it is found (the wheel of the API holds it); blocks; floor
(every instruction calls back and the callbacks do nothing: what the patching itself costs). Each is one process that
runs all programs. GPU time is the median of the last four of seven repetitions, by CUDA events inside the program,
without gaps in which the GPU waits for the host (``ms``), and with them (``with_gaps_ms``). Between them a whole
recording of GPT-2 medium: seconds, size of the trace, and how much of what it writes is exact. What matters most comes
first, and RESULT.json is written after each number: a run that is ended early says what it lacks. With MODEs only
these beside plain, and no whole recording; ``accesses@PATCHES.fatbin`` is accesses with other device patches, which
``nvcc --fatbin --compile-as-tools-patch`` makes. Beside the accesses modes stand the kernels that take longest under
them: how many entries a launch makes, and its microseconds.
"""

import datetime as dt
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

REPEATS, COUNTED = 7, 4
CYCLES_PER_S, LONGEST_WAIT_S = 2e9, 0.3


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


MOST_KERNELS = 30
MODES = ("plain", "accesses", "patched", "memcheck", "blocks", "floor")
LONGEST_MODE_S = 120
PROGRAMS = (gpt2_medium, lstm, convolutions, gemm_fp32, gemm_bf16)


def child(names):
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name in names:
            row = gpu_time(torch, {p.__name__: p for p in PROGRAMS}[name](torch))
            sys.stdout.write(json.dumps({name: row}) + "\n")
            sys.stdout.flush()


def gpu_time(torch, run):
    """Return the GPU's milliseconds, without and with gaps, and a checksum of the result.

    For the former, a kernel that waits runs in front, as long as the host takes to issue the launches: they queue up
    behind it, so that the time has no gaps in which the GPU waits for the host.
    """
    times, with_gaps, issue_s = [], [], 0.0
    repeats = int(os.environ.get("REPEATS", REPEATS))
    for repeat in range(2 * repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        if repeat < repeats:
            torch.cuda._sleep(int(CYCLES_PER_S * min(1.5 * issue_s, LONGEST_WAIT_S)))
        begin.record()
        issue_began = time.perf_counter()
        out = run()
        issue_s = time.perf_counter() - issue_began
        end.record()
        torch.cuda.synchronize()
        (times if repeat < repeats else with_gaps).append(begin.elapsed_time(end))
    return {
        "ms": statistics.median(times[-COUNTED:]),
        "with_gaps_ms": statistics.median(with_gaps[-COUNTED:]),
        "checksum": out.float().abs().sum().item(),
    }


def measurements(environment, prefix=()):
    """Yield the rows of one mode by program, as they come within the limit."""
    from tileprof.record.cuda.code import proofs
    from tileprof.record.cuda.installation import locate

    if environment.get("TILEPROF_PROOFS") == "":
        with proofs.Server(locate.nvdisasm()) as server:
            yield from measurements(environment | {"TILEPROF_PROOFS": str(server.path)}, prefix)
        return
    command = [*prefix, sys.executable, __file__, "--child", *(p.__name__ for p in PROGRAMS)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        ender = threading.Timer(LONGEST_MODE_S, end, (process,))
        ender.start()
        for line in process.stdout:
            if line.startswith("{"):
                yield from json.loads(line).items()
        ender.cancel()


def end(process):
    """End a process and its children: memcheck starts the program."""
    subprocess.run(["pkill", "-KILL", "-P", str(process.pid)], check=False)
    process.kill()


def memcheck():
    """Return the command-line tool: from the PATH, or from the wheel, or ""."""
    from tileprof.record.cuda.installation import locate

    beside = locate.sanitizer().library.with_name("compute-sanitizer")
    return shutil.which("compute-sanitizer") or (str(beside) if os.access(beside, os.X_OK) else "")


def ratios(row):
    """Return each mode's GPU time relative to the plain run's, and memcheck's relative to tileprof's."""
    times = {mode: r["ms"] for mode, r in row.items() if r}
    actual = {mode: round(ms / times["plain"], 2) for mode, ms in times.items() if mode != "plain"}
    gaps = {mode: r["with_gaps_ms"] for mode, r in row.items() if r}
    actual |= {f"{mode}_with_gaps": round(ms / gaps["plain"], 2) for mode, ms in gaps.items() if mode != "plain"}
    if "memcheck" in times and "accesses" in times:
        actual["memcheck_over_accesses"] = round(times["memcheck"] / times["accesses"], 2)
    return actual


def mode(name, folder):
    """Return environment and command prefix of a mode's process; None if it cannot run."""
    from tileprof.record.cuda import recorded_run
    from tileprof.record.cuda.installation import gpu, locate, recorder_build
    from tileprof.record.cuda.settings import Settings

    if name == "plain":
        return dict(os.environ), ()
    if name == "memcheck":
        tool = memcheck()
        return (dict(os.environ), (tool, "--tool", "memcheck", "--print-level", "error")) if tool else None
    recorder_files, sanitizer = recorder_build.build(gpu.gpus()[0].architecture), locate.sanitizer()
    pass_, _, patches = name.partition("@")
    pass_ = "accesses" if pass_ == "patched" else pass_
    recorder_files = (
        recorder_build.Built(recorder_files.library, Path(patches).resolve()) if patches else recorder_files
    )
    settings = Settings(hooks=False, replay=False)
    environment = recorded_run.environment(pass_, Path(folder), recorder_files, sanitizer, settings, skip=0, count=None)
    return environment | ({"TILEPROF_PROOFS": ""} if name == "accesses" else {}), ()


def slowest(folder):
    """Return kernels and grids by the time of all their launches: launches, median microseconds and entries of one
    launch.
    """
    import numpy as np

    from tileprof.record.cuda.records import raw

    rows = []
    for process in raw.processes(Path(folder)):
        names = {e["id"]: e["name"] for e in process.events if e["e"] == "kernel"}
        times, entries = {}, {}
        for event in (e for e in process.events if e["e"] == "launch"):
            own = process.of(event["launch"], 0)
            payload = own["payload"][raw.kinds(own) == raw.BLOCK].astype(np.int64)
            if len(payload):
                begin, end = (payload[:, i] | payload[:, i + 1] << 32 for i in (0, 2))
                key = names[event["kernel"]][:120], tuple(event["grid"])
                times.setdefault(key, []).append(int(end.max() - begin.min()) / 1e3)
                entries.setdefault(key, []).append(len(own))
        rows += [
            {"kernel": name, "grid": grid, "launches": len(us), "us": round(statistics.median(us), 1),
             "entries": statistics.median_low(entries[name, grid])}
            for (name, grid), us in times.items()
        ]  # fmt: skip
    return sorted(rows, key=lambda row: -row["launches"] * row["us"])[:MOST_KERNELS]


def overheads(result, names, write):
    """Add the rows of these modes to ``result["gpu_time"]``, by program."""
    rows = result["gpu_time"]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            ways = mode(name, folder)
            for program, row in measurements(*ways) if ways else ():
                if name != "plain" and program not in rows:
                    continue
                rows.setdefault(program, {})[name] = row
                rows[program]["ratios"] = ratios({m: r for m, r in rows[program].items() if m != "ratios"})
                sys.stdout.write(
                    f"{program}: {name} {row['ms']:.2f} ({row['ms'] / rows[program]['plain']['ms']:.1f}x)\n"
                )
                sys.stdout.flush()
                write()
            if name.startswith(("accesses", "patched")):
                result.setdefault("kernels", {})[name] = slowest(folder)
                write()


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
        del os.environ["REPEATS"]
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


def main(out, *only):
    import torch

    from tileprof.record.cuda.installation import gpu, locate

    gpus = gpu.gpus()[0]
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    result = {
        "what": "CUDA recorder: GPU milliseconds by CUDA events (median of the last 4 of 7, with the launches queued "
        "before) per mode, one process per mode; one whole recording",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "device": gpus.name,
        "driver": driver,
        "cuda": gpus.driver,
        "sanitizer": locate.wheel_version(),
        "torch": torch.__version__,
        "gpu_time": {},
        "recording_gpt2_medium": {},
    }

    def write():
        Path(out).write_text(json.dumps(result | {"left_out": left_out(result)}, indent=1) + "\n")

    if only:
        overheads(result, ("plain", *only), write)
        return
    overheads(result, MODES[:4], write)
    result["recording_gpt2_medium"] = whole_recording()
    write()
    overheads(result, MODES[4:], write)


def left_out(result):
    """Return what a result lacks, because it failed or there was no time."""
    names = [p.__name__ for p in PROGRAMS]
    missing = [f"{n}: {m}" for m in MODES for n in names if m not in result["gpu_time"].get(n, {})]
    return missing + ([] if result["recording_gpt2_medium"] else ["recording_gpt2_medium"])


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(sys.argv[2:])
    else:
        main(*sys.argv[1:])
