"""Bloom filters that binary patches fill in unmodified kernels: false dependencies, none missed, and what they cost.

python tests/gpu/measuring/recorder/measure_inserted.py OUT.json [--phase counts|times]
    [--sizes BITS,HASHES,GRANULE ...]

Programs of PyTorch (a recurrent network, a block of ResNet, products, blocks of GPT-2; closed kernels of cuBLAS and
cuDNN among them) and the kernels of measure_filters.py compiled as they are, smallest first.

*Counts*, beside others: for each size of filter the pairs of blocks within a window of launches, how many depend on
each other in the exact graph of the same run, how many the filters answer yes for, and how many they miss (0). *Times*,
alone: GPU times of the PyTorch programs (CUDA events, medians of the last four of seven) plain, recorded, recorded with
filters, and with filters alone, each mode a process of its own; then, for the first size, how long blocks live while
they fill filters and leave no records. OUT.json is written after each row; rows that it has are not measured again.
Lines of output begin with the seconds since the start, and a process that does not end in time is described, so that
one that hangs is told from a slow one.
"""

import argparse
import datetime as dt
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

SIZES = ("8192,2,512", "2048,2,512", "32768,2,128")
WINDOW = 4
LIMIT_S = 60
"""Seconds for a recording, or for a mode's process."""
AT_ONCE = 6
BEGAN = time.monotonic()
OWN = """
#include <cstdio>
#include <vector>
float* memory(size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i * 2654435761u % 1000) / 8000 - 0.06f;
    float* at;
    cudaMalloc(&at, count * sizeof(float));
    cudaMemcpy(at, values.data(), count * sizeof(float), cudaMemcpyHostToDevice);
    return at;
}
void recurrent(int steps, int batch, int width) {
    float *weights[4], *sums[2], *states[2], *bias = memory(width);
    for (float*& w : weights) w = memory(static_cast<size_t>(width) * width);
    for (int i = 0; i < 2; ++i) sums[i] = memory(batch * width), states[i] = memory(batch * width);
    for (int step = 0; step < steps; ++step) {
        float* below = memory(batch * width);
        for (int layer = 0; layer < 2; ++layer) {
            product<true><<<dim3(width / T, batch / T), dim3(T, T)>>>(
                layer ? states[0] : below, weights[2 * layer], states[layer], weights[2 * layer + 1], sums[layer],
                batch, width, width);
            cell<<<batch * width / 128, 128>>>(sums[layer], bias, states[layer], batch * width, width);
        }
    }
}
void chain(int size, int rounds) {
    size_t count = static_cast<size_t>(size) * size;
    float *x = memory(count), *y = memory(count), *result = memory(count), *rotated = memory(count);
    for (int i = 0; i < rounds; ++i) {
        product<false><<<dim3(size / T, size / T), dim3(T, T)>>>(x, y, x, y, result, size, size, size);
        transposed<<<dim3(size / T, size / T), dim3(T, T)>>>(result, rotated, size);
        add<<<count / 128, 128>>>(rotated, x, x, static_cast<int>(count));
    }
}
int main(int, char** words) {
    if (words[1][0] == 'r') recurrent(6, 32, 256);
    else chain(256, 3);
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) printf("%s\\n", cudaGetErrorString(error));
    return error != cudaSuccess;
}
"""


def products_fp32(torch):
    """Three products and what stands between them, in single precision without tensor cores."""
    a, b, c = (torch.randn(512, 512, device="cuda") for _ in range(3))
    return lambda: torch.relu(a @ b) @ c + a


def products_bf16(torch):
    """The same in half the precision and twice the size: kernels that may load and store through tensor maps."""
    a, b, c = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return lambda: torch.relu(a @ b) @ c + a


def gpt2_block_fp32(torch, dtype=None):
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(n_embd=768, n_layer=1, n_head=12)).to("cuda", dtype).eval()
    ids = torch.randint(0, 50257, (1, 128), device="cuda")
    return lambda: model(ids).last_hidden_state


def gpt2_block_bf16(torch):
    return gpt2_block_fp32(torch, torch.bfloat16)


def resnet_block(torch):
    from torchvision.models.resnet import BasicBlock

    block = BasicBlock(64, 64).cuda().eval()
    x = torch.randn(4, 64, 28, 28, device="cuda")
    return lambda: block(x)


def lstm(torch):
    model, x = torch.nn.LSTM(256, 256, 2).cuda(), torch.randn(6, 32, 256, device="cuda")
    return lambda: model(x)[0]


PROGRAMS = (lstm, resnet_block, products_fp32, gpt2_block_fp32, products_bf16, gpt2_block_bf16)
OWN_PROGRAMS = ("recurrent", "chain")
EVERY = "all"
"""The PyTorch programs in one process."""
MODES = ("plain", "accesses", "accesses and filters", "filters")


def say(*words):
    print(f"{time.monotonic() - BEGAN:6.1f} s", *words, flush=True)


def child(*names):
    """Run programs of PyTorch; where CAPTURED is set once warm and once recorded, with a launch of frac before it."""
    faulthandler.dump_traceback_later(LIMIT_S - 5)
    import torch
    from measure_overhead import gpu_time

    import tileprof

    torch.manual_seed(0)
    mark = torch.full((32,), 0.5, device="cuda")
    with torch.no_grad():
        for program in PROGRAMS:
            if names and program.__name__ not in names:
                continue
            run = program(torch)
            if "CAPTURED" not in os.environ:
                print(json.dumps({program.__name__: gpu_time(torch, run)}), flush=True)
                continue
            run()
            torch.cuda.synchronize()
            with tileprof.capture():
                torch.frac(mark)
                run()
                torch.cuda.synchronize()


def gpu_times(result, write):
    """Add the milliseconds of each program by mode."""
    from tileprof.record.cuda import recorded_run
    from tileprof.record.cuda.installation import gpu, locate, recorder_build
    from tileprof.record.cuda.settings import Settings
    from tileprof.record.filter_settings import FilterSettings

    recorder_files, sanitizer = recorder_build.build(gpu.gpus()[0].architecture), locate.sanitizer()
    how = FilterSettings.parse(SIZES[0])
    for mode in MODES:
        if any(mode in row for row in result["gpu_ms"].values()):
            continue
        filters = how if "filters" in mode else None
        passes = ("accesses", "filters", "blocks") if filters else ("accesses", "blocks")
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ)
            if mode != "plain":
                settings = Settings(passes=passes, hooks=False, replay=False, filters=filters)
                environment = recorded_run.environment(
                    mode.split()[0], Path(folder), recorder_files, sanitizer, settings, skip=0, count=None
                )
            for line in lines_of(mode, [sys.executable, __file__, "--child"], environment):
                if line.startswith("{"):
                    for program, row in json.loads(line).items():
                        result["gpu_ms"].setdefault(program, {})[mode] = round(row["ms"], 4)
                        write()


def lines_of(name, command, environment):
    """Run a command within the limit; yield its lines as they come."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        ender = threading.Timer(LIMIT_S, end, (name, process.pid))
        ender.start()
        for line in process.stdout:
            say(f"{name}: {line.rstrip()[:300]}")
            yield line
        ender.cancel()
    if process.returncode:
        say(f"{name}: exit {process.returncode}")


def end(name, group):
    """End a command and the processes that it started.

    One that spins has used its seconds of processor time, or the GPU is busy.
    """
    busy = "nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader"
    state = f"ps -o pid,stat,time,wchan:24,args --cols 160 -g {group}"
    try:
        run = subprocess.run(f"{busy}; {state}", shell=True, capture_output=True, text=True, timeout=10, check=False)
        say(f"{name}: not within {LIMIT_S} s:", run.stdout + run.stderr)
    finally:
        os.killpg(group, signal.SIGKILL)


def record(path, size, passes, program, own):
    """Record a program of its own, or of PyTorch within its capture, with filters."""
    command = [sys.executable, "-P", "-m", "tileprof", "record", "--recorder", "cuda", "--filters", size, "--passes"]
    command += [passes, "-o", str(path)]
    environment = dict(os.environ)
    if program in OWN_PROGRAMS:
        command += [str(own), program]
    else:
        environment["CAPTURED"] = "1"
        command += ["--capture", "--", sys.executable, __file__, "--child"]
        command += [] if program == EVERY else [program]
    for _ in lines_of(f"{program} {size} {passes}", command, environment):
        pass


def own_program(folder):
    from measure_filters import KERNELS

    from tileprof.record.cuda.installation import locate
    from tileprof.record.source import INCLUDE

    source, program = folder / "own.cu", folder / "own"
    source.write_text(KERNELS + OWN)
    command = [locate.nvcc(), "-O3", "-std=c++17", "-arch=native", f"-I{INCLUDE}", source, "-o", program]
    subprocess.run([str(word) for word in command], check=True)
    return program


def parts_of(trace, program):
    """Return programs and launches, by the marks in front of programs."""
    if program in OWN_PROGRAMS:
        return [(program, range(len(trace.launches)))]
    names = zip(trace.launches.kernel, trace.launches.op, strict=True)
    marks = [n for n, (kernel, op) in enumerate(names) if "frac_kernel" in kernel or op.endswith("frac")]
    programs = [p.__name__ for p in PROGRAMS] if program == EVERY else [program]
    return [(p, range(m + 1, e)) for p, m, e in zip(programs, marks, [*marks[1:], len(trace.launches)], strict=False)]


def lives_of(path, program):
    """Return how long blocks run in the plain run and while they fill filters, by program and kernel, in ns."""
    from tileprof.trace import filters, load

    trace = load(path)
    stored = filters.read(path)
    times = trace.columns("times")
    for name, launches in parts_of(trace, program):
        lives = {}
        for f in stored.launches:
            if f.launch not in launches:
                continue
            at = slice(*np.searchsorted(times["launch"], [f.launch, f.launch + 1]).tolist())
            plain = np.full(len(f.words), -1)
            plain[times["tile"][at]] = times["end_ns"][at] - times["begin_ns"][at]
            both = (plain >= 0) & (f.filling_ns >= 0)
            if both.any():
                pair = [float(np.median(plain[both])), float(np.median(f.filling_ns[both]))]
                lives.setdefault(trace.launches.kernel[f.launch][:100], []).append(pair)
        yield name, {kernel: np.median(pairs, axis=0).tolist() for kernel, pairs in lives.items()}


def row_of(path, program, size):
    """Return the answers of a program's filters."""
    from tileprof.analysis.simulate.filters.bloom import Filters
    from tileprof.analysis.simulate.filters.inserted import answers
    from tileprof.trace import filters, load

    trace = load(path)
    stored = filters.read(path)
    ((_, launches),) = parts_of(trace, program)
    words = {f.launch: f.words for f in stored.launches if f.launch in launches}
    answer = answers(trace, words, Filters(stored.bits, stored.hashes), stored.granule, WINDOW)
    coverage = trace.launches.coverage.iloc[list(launches)].value_counts()
    return {
        "program": program, "size": size, "launches": len(words), "blocks": sum(map(len, words.values())),
        "false": answer.false, **asdict(answer), "coverage": {k: int(v) for k, v in coverage.items()},
    }  # fmt: skip


def counts(result, write, sizes, folder):
    """Add a row for each program and size."""
    own = own_program(folder)
    done_keys = {(row["program"], row["size"]) for row in result["rows"]}
    lock = threading.Lock()

    def job(program, size):
        path = folder / f"{program}-{size}.tileprof"
        record(path, size, "accesses", program, own)
        if not path.exists():
            say(f"{program} {size}: no trace")
            return
        row = row_of(path, program, size)
        with lock:
            result["rows"].append(row)
            write()
            say(*(f"{k}={v}" for k, v in row.items()))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [
            (p, s) for s in sizes for p in (*OWN_PROGRAMS, *(q.__name__ for q in PROGRAMS)) if (p, s) not in done_keys
        ]
        for future in [pool.submit(job, *one) for one in jobs]:
            try:
                future.result()
            except Exception as error:
                say(f"a row failed: {error!r}")


def block_lives(result, write, size, folder):
    """Add the durations of blocks of all programs; each is a recording of three passes."""
    own = own_program(folder)
    for program in (*OWN_PROGRAMS, EVERY):
        if program in result["block_ns"] or (program == EVERY and len(result["block_ns"]) > len(OWN_PROGRAMS)):
            continue
        path = folder / f"{program}-lives.tileprof"
        record(path, size, "accesses,filters,blocks", program, own)
        if path.exists():
            result["block_ns"] |= dict(lives_of(path, program))
            write()
    for program, kernels in result["block_ns"].items():
        for kernel, (plain, filling) in kernels.items():
            say(f"{program}: {kernel[:60]}: a block lives {plain:.0f} ns, {filling:.0f} ns while it fills filters")


def about():
    import torch

    from tileprof.record.cuda.installation import gpu, locate

    device = gpu.gpus()[0]
    return {
        "what": "Bloom filters that binary patches fill; see measure_inserted.py",
        "date": dt.datetime.now(dt.UTC).date().isoformat(), "device": device.name, "cuda": device.driver,
        "sanitizer": locate.wheel_version(), "torch": torch.__version__, "window": WINDOW, "rows": [], "gpu_ms": {},
        "block_ns": {},
    }  # fmt: skip


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--phase", choices=("counts", "times"), help="this alone (default: both, counts first)")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="BITS,HASHES,GRANULE")
    options = parser.parse_args(words)
    result = json.loads(options.out.read_text()) if options.out.exists() else about()

    def write():
        options.out.write_text(json.dumps(result, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        if options.phase != "times":
            counts(result, write, options.sizes, Path(folder))
        if options.phase != "counts":
            gpu_times(result, write)
            block_lives(result, write, options.sizes[0], Path(folder))
    return any(row["missed"] or row["lacking"] for row in result["rows"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
