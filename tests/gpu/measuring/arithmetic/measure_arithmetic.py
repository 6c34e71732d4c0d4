"""How busy the arithmetic units are in DeepBench's products, recurrent layers and convolutions, on a GPU.

python tests/gpu/measuring/arithmetic/measure_arithmetic.py OUT.json [--seconds 60] [--counters]

Every shape runs in half precision (accumulated in single) through PyTorch, several times in a CUDA graph. The share of
peak arithmetic is what the shape has to multiply and add over time times the peak of tensor cores at the clock of the
data sheet: useful work, so that padded tiles and other kernels of the operator (im2col, conversions of layouts) lower
it; shapes that OUT.json has are not timed again. With ``--counters`` the same graphs run under CUPTI's range profiler
(`hardware_counters.py`): shares of the cycles in which tensor cores and FP32 pipes were busy, warps resident and SMs
busy. Where CUPTI refuses, Nsight Compute (`ncu`) counts them for every kernel of every shape; of a shape's kernels the
mean by time. ``counted`` says what refused.
"""

import argparse
import csv
import io
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from hardware_counters import METRICS, CountersError, HardwareCounters

from tileprof.devices import get
from tileprof.examples.deepbench import PRODUCTS

DATA = Path(__file__).parents[4] / "notebooks/data"
REPEATS, ROUNDS = 20, 5


def tensors(*shapes):
    return [torch.randn(*shape, dtype=torch.float16, device="cuda") for shape in shapes]


def products():
    for m, n, k in PRODUCTS:
        a, b = tensors((m, k), (k, n))
        yield "product", f"{m} x {n} x {k}", 2 * m * n * k, lambda a=a, b=b: a @ b


def recurrent():
    with (DATA / "deepbench_rnn.csv").open() as file:
        for row in csv.DictReader(file):
            hidden, batch, gates = (int(row[name]) for name in ("hidden", "batch", "gates"))
            x, w = tensors((batch, hidden), (gates * hidden, hidden))
            name = f"{row['cell']} {hidden}, batch {batch} ({row['suite']})"
            flops = 2 * batch * hidden * gates * hidden
            yield "recurrent product", name, flops, lambda x=x, w=w: torch.nn.functional.linear(x, w)


def convolutions():
    with (DATA / "deepbench_conv.csv").open() as file:
        for row in csv.DictReader(file):
            n = {name: int(value) for name, value in row.items() if name != "suite"}
            x, w = tensors((n["batch"], n["c"], n["h"], n["w"]), (n["filters"], n["c"], n["fh"], n["fw"]))
            x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
            stride, padding = (n["stride_h"], n["stride_w"]), (n["pad_h"], n["pad_w"])
            high, wide = (
                (n[s] + 2 * p - n[f]) // step + 1
                for s, f, p, step in zip("hw", ("fh", "fw"), padding, stride, strict=True)
            )
            flops = 2 * n["batch"] * n["filters"] * high * wide * n["c"] * n["fh"] * n["fw"]
            name = (
                " x ".join(row[key] for key in ("batch", "c", "h", "w", "filters", "fh", "fw")) + f" ({row['suite']})"
            )
            yield (
                "convolution", name, flops,
                lambda x=x, w=w, s=stride, p=padding: torch.nn.functional.conv2d(x, w, stride=s, padding=p),
            )  # fmt: skip


def repeated(run):
    """Return a graph of several runs."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run(), run()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            run()
    return graph


def time_us(graph):
    """Return the median over rounds of one run in a graph of several."""
    times = []
    for _ in range(ROUNDS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(), graph.replay(), end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / REPEATS)
    return statistics.median(times[1:])


def counted(shapes, counters):
    """Return percent of the GPU's maximum, by counter, of each shape."""
    for _, _, _, run in shapes:
        graph = repeated(run)
        graph.replay()
        torch.cuda.synchronize()

        def replays(graph=graph):
            for _ in range(ROUNDS):
                graph.replay()

        values = counters.count(replays, torch.cuda.synchronize)
        yield {key: round(value, 3) for key, value in zip(METRICS, values, strict=True)}


COUNTERS = {
    "tensor": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
    ),
    "fma": ("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",),
    "warps": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "sms": ("sm__cycles_active.avg.pct_of_peak_sustained_elapsed",),
    "ns": ("gpu__time_duration.sum",),
}
"""Names of each counter; the first one that this GPU has is used."""
MARK = "spin_kernel"


def all_shapes():
    return itertools.chain(products(), recurrent(), convolutions())


def run_once():
    """Run every shape once under a profiler, each behind a kernel that marks it."""
    for _, _, _, run in all_shapes():
        run()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        torch.cuda._sleep(1)
        run()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def counts(seconds, write):
    """Return percent of peak by counter, per shape, and the profiler that counted, or the answers of CUPTI and Nsight
    Compute.
    """
    torch.zeros(1, device="cuda")  # the profiler needs a context
    try:
        counters = HardwareCounters(METRICS.values())
        result = {"by": "CUPTI", "device": torch.cuda.get_device_name(), "counters": METRICS, "shapes": []}
        for shape in counted(all_shapes(), counters):
            result["shapes"].append(shape)
            write(result)
        counters.close()
    except CountersError as error:
        return {"CUPTI": str(error)} | counts_of_ncu(seconds)
    return result


def counts_of_ncu(seconds):
    """Return the same from Nsight Compute."""
    if shutil.which("ncu") is None:
        return {"ncu": "not installed"}
    query = subprocess.run(["ncu", "--query-metrics", "--chip", "gh100"], capture_output=True, text=True, check=True)
    metric_names = {line.split()[0] for line in query.stdout.splitlines() if line.strip()}
    names = {key: next((c for c in some if c.split(".")[0] in metric_names), None) for key, some in COUNTERS.items()}
    names = {key: name for key, name in names.items() if name}
    words = ["ncu", "--csv", "--page", "raw", "--profile-from-start", "off", "--metrics", ",".join(names.values())]
    words += ["--print-units", "base", "--cache-control", "none", "--clock-control", "none", sys.executable, __file__]
    run_result = subprocess.run([*words, "--once", "-"], capture_output=True, text=True, check=False, timeout=seconds)
    text = run_result.stdout[run_result.stdout.find('"ID"') :]
    if not text.startswith('"ID"'):
        return {"ncu": f"no table: {run_result.stdout[-1500:]} {run_result.stderr[-1500:]}"}
    lines, rows = [], list(csv.DictReader(io.StringIO(text)))
    for row in rows[1:]:  # the first row has units
        if MARK in row["Kernel Name"]:
            lines.append([])
        else:
            lines[-1].append({key: float(row[name].replace(",", "")) for key, name in names.items()})
    means = []
    for kernels in lines:
        ns = sum(k["ns"] for k in kernels)
        means.append({key: sum(k[key] * k["ns"] for k in kernels) / ns for key in names if key != "ns"} | {"ns": ns})
    return {"by": "ncu", "counters": names, "shapes": means}


def driver():
    words = ["nvidia-smi", "--query-gpu=driver_version,clocks.current.sm", "--format=csv,noheader,nounits"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--counters", action="store_true")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        run_once()
        return
    name = torch.cuda.get_device_name()
    peak = get(next(word for word in name.split() if word in ("H200", "H100", "A100", "V100"))).peak_flops["fp16"]
    result = {"device": name, "driver, MHz at rest": driver(), "torch": torch.__version__, "peak": peak, "rows": []}
    if arguments.output.exists():
        result = json.loads(arguments.output.read_text())
    rows, end = result["rows"], time.monotonic() + arguments.seconds
    for kind, shape, flops, run in () if rows else all_shapes():
        if time.monotonic() > end:
            break
        us = time_us(repeated(run))
        rows.append({"kind": kind, "shape": shape, "us": round(us, 2), "share": flops / (us * 1e-6 * peak)})
    result["MHz after"] = driver()
    arguments.output.write_text(json.dumps(result))
    if arguments.counters:
        result["counted"] = counts(
            arguments.seconds, lambda part: arguments.output.write_text(json.dumps(result | {"counted": part}))
        )
        arguments.output.write_text(json.dumps(result))
        print({key: value for key, value in result["counted"].items() if key != "shapes"})
    for kind in dict.fromkeys(row["kind"] for row in rows):
        shares = sorted(row["share"] for row in rows if row["kind"] == kind)
        some = [shares[int(q * (len(shares) - 1))] for q in (0, 0.25, 0.5, 0.75, 1)]
        print(kind, len(shares), " ".join(f"{share:.3f}" for share in some))


if __name__ == "__main__":
    main()
