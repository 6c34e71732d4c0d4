"""How much of what programs write is recorded exactly, and why not: ``measure_coverage.py RESULT.json [NAME ...]``.

Programs that users recorded: a training step of a ResNet-50 (channels last, bf16 autocast, foreach SGD), grouped
products as a mixture of experts makes them, a Qwen3-MoE, a U-Net with group norms (fp16, NCHW), timm's ConvNeXt. Each
is recorded by a process of its own, several at once. Bytes are distinct ones per launch, as the recorder's closing line
counts them. Beside RESULT.json a folder per program holds the events and, where they are small, the records of the
device; those of some launches that are conservative in any case.
"""

import json
import lzma
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
LIMIT_S = 170
MOST_RAW_BYTES = 50_000_000
MOST_KEPT, MOST_ENTRIES = 2, 200_000


def resnet50_step(torch):
    from torchvision.models import resnet50

    model = resnet50().cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    images = torch.randn(8, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (8,), device="cuda")

    def run():
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return run


def grouped_mm(torch):
    tokens = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(16, 1024, 768, device="cuda", dtype=torch.bfloat16)
    ends = torch.arange(32, 513, 32, device="cuda", dtype=torch.int32)
    return lambda: torch._grouped_mm(tokens, weights, offs=ends)


PROGRAMS = {"resnet50_step": resnet50_step, "grouped_mm": grouped_mm}
CLIENTS = ("qwen3_moe", "unet", "convnext")
"""Programs of `tests/golden/clients.py`."""
NAMES = (*PROGRAMS, *CLIENTS)


def function_to_record(name, torch):
    """Return the function to be recorded."""
    if name in PROGRAMS:
        return PROGRAMS[name](torch)
    sys.path.insert(0, str(GOLDEN))
    import clients

    clients.DEVICE = "cuda"  # it reads the device from a command line of its own
    return getattr(clients, name)()


def child(name):
    import torch

    import tileprof

    torch.manual_seed(0)
    run = function_to_record(name, torch)
    training = name.endswith("_step")
    with torch.set_grad_enabled(training):
        run()
        torch.cuda.synchronize()
        with tileprof.capture():
            out = run()
        torch.cuda.synchronize()
    sys.stdout.write(f"{name}: {out.float().abs().sum().item():.6g}\n")


def one(name, out):
    """Record a program. Return its launches that are not exact, by kernel, with bytes and reason."""
    from tileprof.record import Options
    from tileprof.record.cuda import decode, recording
    from tileprof.record.cuda.settings import Settings

    rows, total, notes = Counter(), Counter(), {}
    examine = decode.examine

    def counts(records, launch, reason):
        report = examine(records, launch, reason)
        size = 0 if reason else report.bytes_written
        total[report.coverage] += size
        if report.coverage != "exact":
            key = report.coverage, launch.kernel["name"]
            rows[key] += size
            notes.setdefault(key, Counter())["; ".join(report.notes)] += 1
            if report.coverage == "conservative" and len(notes[key]) <= MOST_KEPT:
                packed = lzma.compress(launch.entries[:MOST_ENTRIES].tobytes(), preset=0)
                (out / f"launch-{launch.event['launch']}.bin.xz").write_bytes(packed)
        return report

    decode.examine = counts
    result = {"program": name}
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        began = time.monotonic()
        try:
            options = Options(program=(sys.executable, __file__, "--child", name), output=Path(folder) / "t.tileprof")
            result["exit"] = recording.record(options, Settings(passes=("accesses",), capture_only=True, raw=raw))
        except Exception:
            result["failure"] = traceback.format_exc()[-3000:]
        result["seconds"] = round(time.monotonic() - began, 1)
        keep(raw, out)
    result["bytes"] = dict(total)
    result["kernels"] = [
        {"coverage": level, "kernel": kernel, "bytes": size, "notes": dict(notes[level, kernel])}
        for (level, kernel), size in rows.most_common()
    ]
    (out / "result.json").write_text(json.dumps(result, indent=1))


def keep(raw, out):
    """Copy raw records, compressed."""
    for path in sorted(raw.rglob("*")):
        if path.is_file() and path.stat().st_size <= MOST_RAW_BYTES:
            packed = lzma.compress(path.read_bytes(), preset=0)
            if len(packed) < 11_000_000:
                (out / f"{path.parent.name}-{path.name}.xz").write_bytes(packed)


def summary(result):
    """Return the lines of a short table."""
    total = sum(result["bytes"].values()) or 1
    shares = ", ".join(f"{level} {size / total:.1%}" for level, size in result["bytes"].items())
    yield f"{result['program']}: {shares} of {total:,} bytes; {result['seconds']} s; exit {result.get('exit')}"
    if "failure" in result:
        yield result["failure"]
    for row in result["kernels"][:12]:
        yield f"  {row['coverage'][:4]} {row['bytes'] / total:6.1%} {row['kernel'][:110]}"
        for note, launches in Counter(row["notes"]).most_common(3):
            yield f"       {launches} launches: {note[:220]}"


def main(path, *names):
    path = Path(path)
    children = []
    for name in names or NAMES:
        out = path.with_suffix("") / name
        out.mkdir(parents=True, exist_ok=True)
        log = (out / "log.txt").open("w")
        children.append((name, out, subprocess.Popen((sys.executable, __file__, "--one", name, str(out)), stdout=log,
                                                     stderr=subprocess.STDOUT)))  # fmt: skip
    results, end = [], time.monotonic() + LIMIT_S
    for name, out, process in children:
        try:
            process.wait(max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        result_file = out / "result.json"
        results.append(json.loads(result_file.read_text()) if result_file.exists() else {"program": name, "cut": True})
        path.write_text(json.dumps(results, indent=1) + "\n")
        lines = (
            summary(results[-1])
            if result_file.exists()
            else [f"{name}: no result", (out / "log.txt").read_text()[-1500:]]
        )
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(sys.argv[2])
    elif sys.argv[1] == "--one":
        one(sys.argv[2], Path(sys.argv[3]))
    else:
        main(*sys.argv[1:])
