"""What a program pays outside captured regions, and that nothing inside is lost when code is patched only there.

Compute Sanitizer itself costs a few microseconds of the CPU for every launch as soon as a tool subscribes, even one that asks
for no callback (``subscriber.cpp``), and also after it has unsubscribed. A program that keeps its GPU busy does not see it; one
that waits for the CPU does. So the first is held against the plain run, the second against a tool that does nothing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tileprof.record.cuda import build, gpu, locate, program
from tileprof.record.cuda.settings import Settings
from tileprof.trace import load

LONGEST_SHARE = 1.05
"""The program's own time outside regions, at most this many times what it is held against."""

SCRIPT = """
import json, sys, time, torch
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(16))).cuda().half()
few, many = (torch.randn(n, 2048, device="cuda").half() for n in (512, 16384))  # the GPU waits for launches; the CPU waits
def us(x, n):
    torch.cuda.synchronize(); begin = time.perf_counter()
    for _ in range(n):
        model(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / n * 1e6
def best():
    return [min(us(few, 50) for _ in range(15)), min(us(many, 5) for _ in range(7))]
with torch.no_grad():
    best()
    before = best()
    torch.cuda.profiler.start()
    model(few)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    after = best()
sys.stdout.write(json.dumps([*before, *after]))
"""
TIMES = ("waiting for launches, before", "busy, before", "waiting for launches, after", "busy, after")


def run(script, environment):
    """Microseconds a forward, the fastest of several rounds: in each of two processes, as their speeds differ."""
    runs = []
    for _ in range(2):
        done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    return dict(zip(TIMES, map(min, *runs), strict=True))


def subscriber(tmp_path, sanitizer):
    library = tmp_path / "libsubscriber.so"
    includes = [f"-I{sanitizer.include}", f"-I{locate.cuda_include()}"]
    source = Path(__file__).parent / "subscriber.cpp"
    subprocess.run([locate.host_compiler(), *build.HOST_FLAGS, *includes, source, "-ldl", "-o", library], check=True)
    return {program.INJECTION: str(library), "TILEPROF_SANITIZER": str(sanitizer.library)}


def test_outside_of_regions_a_program_runs_at_its_own_speed(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    built, sanitizer = build.build(gpu.gpus()[0].architecture), locate.sanitizer()
    us = {"plain": run(script, dict(os.environ))}
    us["a tool that does nothing"] = run(script, os.environ | subscriber(tmp_path, sanitizer))
    (tmp_path / "raw").mkdir()
    settings = Settings(capture_only=True, patch="range")
    variables = program.environment("accesses", tmp_path / "raw", built, sanitizer, settings, skip=0, count=None)
    us["range"] = run(script, variables)
    ratios = {
        name: {time: round(us[name][time] / us[other][time], 3) for time in TIMES}
        for name, other in (("a tool that does nothing", "plain"), ("range", "plain"))
    }
    ratios["range over a tool that does nothing"] = {
        time: round(us["range"][time] / us["a tool that does nothing"][time], 3) for time in TIMES
    }
    found = {"microseconds a forward of 16 products": us, "ratios": ratios}
    (Path(os.environ.get("TILEPROF_RESULTS", tmp_path)) / "ranges.json").write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(f"{found}\n")
    assert max(ratios["range"][time] for time in TIMES if "busy" in time) < LONGEST_SHARE, found
    assert max(ratios["range over a tool that does nothing"].values()) < LONGEST_SHARE, found


@pytest.mark.parametrize("name", ["gemm_pair", "gpt2"])
def test_a_region_holds_the_same_launches_and_bytes_whenever_code_is_patched(record, golden, name):
    first, second = (
        load(record(*golden(name), capture_only=True, patch=patch, passes=("accesses",)).path)
        for patch in ("load", "range")
    )
    assert first.launches.kernel.tolist() == second.launches.kernel.tolist()
    assert first.launches.coverage.tolist() == second.launches.coverage.tolist()
    assert "conservative" not in set(second.launches.coverage)
    assert first.launches.footprint.tolist() == second.launches.footprint.tolist()
