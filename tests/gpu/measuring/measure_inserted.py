"""Bloom filters that binary patches fill in unmodified kernels: false dependencies, none missed, and what they cost.

python tests/gpu/measuring/measure_inserted.py OUT.json [SIZE ...]

Programs of PyTorch (products, a block of GPT-2, one of ResNet, a recurrent network; closed kernels of cuBLAS and cuDNN
among them) and the kernels of measure_filters.py compiled as they are. For each size of filter (BITS,HASHES,GRANULE):
pairs of blocks within a window of launches, how many depend on each other in the exact graph of the same run, how many
the filters answer yes for, and how many they miss (0). For the first size also how long blocks live while they fill
filters and leave no records. GPU times of the PyTorch programs (CUDA events, medians of the last four of seven) plain,
recorded, recorded with filters, and with filters alone; each mode is a process of its own.
"""

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

SIZES = ("8192,2,512", "2048,2,512", "32768,2,128")
WINDOW = 4
LIMIT_S = 150
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


PROGRAMS = (products_fp32, products_bf16, gpt2_block_fp32, gpt2_block_bf16, resnet_block, lstm)
OWN_PROGRAMS = ("recurrent", "chain")


def child():
    """Run every program; where CAPTURED is set once warm and once recorded, with a launch of frac before it."""
    import torch
    from measure_overhead import gpu_time

    import tileprof

    torch.manual_seed(0)
    mark = torch.full((32,), 0.5, device="cuda")
    with torch.no_grad():
        for program in PROGRAMS:
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


def gpu_times():
    """Milliseconds of each program by mode."""
    from tileprof.record.cuda import recorded_run
    from tileprof.record.cuda.installation import build, gpu, locate
    from tileprof.record.cuda.settings import Settings
    from tileprof.record.filter_settings import FilterSettings

    built, sanitizer = build.build(gpu.gpus()[0].architecture), locate.sanitizer()
    how = FilterSettings.parse(SIZES[0])
    modes = {"plain": None, "accesses": None, "accesses and filters": how, "filters": how}
    rows = {}
    for mode, filters in modes.items():
        pass_ = mode.split()[0]
        passes = ("accesses", "filters", "blocks") if filters else ("accesses", "blocks")
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ)
            if mode != "plain":
                settings = Settings(passes=passes, hooks=False, replay=False, filters=filters)
                place = Path(folder)
                environment = recorded_run.environment(pass_, place, built, sanitizer, settings, skip=0, count=None)
            out = ended([sys.executable, __file__, "--child"], environment)
        for line in out.splitlines():
            if line.startswith("{"):
                for program, row in json.loads(line).items():
                    rows.setdefault(program, {})[mode] = round(row["ms"], 4)
                    print(f"{program}: {mode} {row['ms']:.3f} ms", flush=True)
    return rows


def ended(command, environment):
    """Run a command within the limit; its stdout."""
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        print(f"not within {LIMIT_S} s: {command}", flush=True)
        return (error.stdout or b"").decode()
    if result.returncode:
        print(result.stderr[-3000:], flush=True)
    return result.stdout


def record(path, size, passes, program, environment):
    command = [sys.executable, "-P", "-m", "tileprof", "record", "--recorder", "cuda", "--filters", size, "--passes"]
    command += [passes, "-o", str(path), *program]
    ended(command, {**os.environ, **environment})


def own_program(folder):
    from measure_filters import KERNELS

    from tileprof.record.cuda.installation import locate
    from tileprof.record.source import INCLUDE

    source, program = folder / "own.cu", folder / "own"
    source.write_text(KERNELS + OWN)
    command = [locate.nvcc(), "-O3", "-std=c++17", "-arch=native", f"-I{INCLUDE}", source, "-o", program]
    subprocess.run([str(word) for word in command], check=True)
    return program


def parts_of(trace):
    """Program and launches, by the marks between programs; a trace without marks is one program."""
    names = zip(trace.launches.kernel, trace.launches.op, strict=True)
    marks = [n for n, (kernel, op) in enumerate(names) if "frac_kernel" in kernel or op.endswith("frac")]
    ends = [*marks[1:], len(trace.launches)]
    return [(p.__name__, range(m + 1, e)) for p, m, e in zip(PROGRAMS, marks, ends, strict=False)]


def rows_of(path, name, size):
    from tileprof.analysis.simulate.bloom import Filters
    from tileprof.analysis.simulate.inserted import answers
    from tileprof.trace import filters, load

    if not path.exists():
        return
    trace = load(path)
    stored = filters.read(path)
    times = trace.columns("times")
    for program, launches in [(name, range(len(trace.launches)))] if name else parts_of(trace):
        here = {f.launch: f for f in stored.launches if f.launch in launches}
        words = {launch: f.words for launch, f in here.items()}
        answer = answers(trace, words, Filters(stored.bits, stored.hashes), stored.granule, WINDOW)
        coverage = trace.launches.coverage.iloc[list(launches)].value_counts()
        lives = {}
        for launch, f in here.items():
            at = slice(*np.searchsorted(times["launch"], [launch, launch + 1]).tolist())
            plain = np.full(len(f.words), -1)
            plain[times["tile"][at]] = times["end_ns"][at] - times["begin_ns"][at]
            both = (plain >= 0) & (f.filling_ns >= 0)
            if both.any():
                pair = [float(np.median(plain[both])), float(np.median(f.filling_ns[both]))]
                lives.setdefault(trace.launches.kernel[launch][:100], []).append(pair)
        yield {
            "program": program, "size": size, "launches": len(here), "false": answer.false, **asdict(answer),
            "coverage": {k: int(v) for k, v in coverage.items()},
            "block_ns": {kernel: np.median(pairs, axis=0).tolist() for kernel, pairs in lives.items()},
        }  # fmt: skip


def main(out, *sizes):
    import torch

    from tileprof.record.cuda.installation import gpu, locate

    device = gpu.gpus()[0]
    result = {
        "what": "Bloom filters that binary patches fill; see measure_inserted.py",
        "date": dt.datetime.now(dt.UTC).date().isoformat(), "device": device.name, "cuda": device.driver,
        "sanitizer": locate.wheel_version(), "torch": torch.__version__, "window": WINDOW, "gpu_ms": {}, "rows": [],
    }  # fmt: skip

    def write():
        Path(out).write_text(json.dumps(result, indent=1) + "\n")

    def keep(path, program, size):
        result["rows"] += rows_of(path, program, size)
        write()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = own_program(folder)
        jobs = []
        for number, size in enumerate(sizes or SIZES):
            for program in (*OWN_PROGRAMS, ""):
                path = folder / f"{size}-{program}.tileprof"
                words = [str(own), program] if program else ["--", sys.executable, "-P", __file__, "--child"]
                words = words if program else ["--capture", *words]
                passes = "accesses" if number else "accesses,filters,blocks"
                environment = {} if program else {"CAPTURED": "1"}
                jobs.append((path, size, passes, words, environment, program))
        alone, others = jobs[: len(OWN_PROGRAMS) + 1], jobs[len(OWN_PROGRAMS) + 1 :]
        for job in alone:  # the lives of their blocks are measured
            record(*job[:5])
            keep(job[0], job[5], job[1])
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda job: record(*job[:5]), others))
        for job in others:
            keep(job[0], job[5], job[1])
    result["gpu_ms"] = gpu_times()
    write()
    for row in result["rows"]:
        print(*(f"{k}={v}" for k, v in row.items() if k != "block_ns"), flush=True)
        for kernel, (plain, filling) in row["block_ns"].items():
            print(
                f"   {kernel[:60]}: a block lives {plain:.0f} ns, {filling:.0f} ns while it fills filters", flush=True
            )
    return any(row["missed"] or row["lacking"] for row in result["rows"]) or not result["rows"]


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child()
    else:
        sys.exit(main(*sys.argv[1:]))
