"""What a program pays outside captured regions, and that nothing inside is lost when code is patched only there."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tileprof.record.cuda import build, gpu, locate, program
from tileprof.record.cuda.settings import Settings
from tileprof.trace import load

LONGEST_SHARE = 1.05
"""The program's own time outside regions, at most this many times what it is without a recorder."""

SCRIPT = """
import json, sys, time, torch
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(16))).cuda().half()
x = torch.randn(512, 2048, device="cuda").half()
def seconds():
    torch.cuda.synchronize(); begin = time.perf_counter()
    for _ in range(50):
        model(x)
    torch.cuda.synchronize()
    return time.perf_counter() - begin
with torch.no_grad():
    seconds()
    outside = [seconds() for _ in range(5)]
    torch.cuda.profiler.start()
    model(x)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    after = [seconds() for _ in range(5)]
sys.stdout.write(json.dumps([outside, after]))
"""


def run(script, environment):
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    return [statistics.median(s) for s in json.loads(done.stdout)]


def test_outside_of_regions_a_program_runs_at_its_own_speed(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    built, sanitizer = build.build(gpu.gpus()[0].architecture), locate.sanitizer()
    plain = run(script, dict(os.environ))
    shares = {}
    for patch in ("load", "range"):
        raw = tmp_path / patch
        raw.mkdir()
        settings = Settings(capture_only=True, patch=patch)
        variables = program.environment("accesses", raw, built, sanitizer, settings, skip=0, count=None)
        shares[patch] = [recorded / without for recorded, without in zip(run(script, variables), plain, strict=True)]
    (Path(os.environ.get("TILEPROF_RESULTS", tmp_path)) / "ranges.json").write_text(json.dumps(shares))
    sys.stdout.write(f"times the plain run, before and after the region: {shares}\n")
    assert max(shares["range"]) < LONGEST_SHARE, shares


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
