"""Tiles that a queue or the co-pilot assigns, on a GPU: stream order's bits under delays, waits that end, and programs
that end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

from tests.gpu.measuring.schedulers.measure_dealers import RIGHT, SCHEDULERS
from tests.gpu.runtime.chains import replays
from tileprof.runtime.errors import WaitTimeoutError
from tileprof.runtime.policy_on_gpu import GpuPipeline

pytestmark = pytest.mark.gpu

LEAVES = """
import torch
from measure_dealers import RIGHT
from tileprof.runtime.policy_on_gpu import GpuPipeline
pipeline = GpuPipeline(RIGHT["products"].policy(), schedule="ccks", unchecked=True, delay_ns=20_000)
given = pipeline.example()
for _ in range(200):
    pipeline(**given)
print("leaves", flush=True)
"""


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("name", list(RIGHT))
def test_a_thousand_replays_with_random_delays_are_right(name, schedule) -> None:
    assert replays.wrong_replays(RIGHT[name].policy(), replays=1000, schedule=schedule, order="persistent-stages") == 0


def test_a_copilot_that_has_ended_ends_the_kernel_and_a_new_one_goes_on() -> None:
    pipeline = GpuPipeline(RIGHT["four MLPs"].policy(), schedule="ccks-ready", unchecked=True)
    inputs = pipeline.example()
    right = pipeline(**inputs).clone()
    torch.cuda.synchronize()
    pipeline._counts[-1].close()
    pipeline.launch(inputs)
    with pytest.raises(WaitTimeoutError):
        pipeline.check()
    assert torch.equal(pipeline(**inputs), right)
    pipeline.check()


def test_a_program_that_ends_while_kernels_run_ends() -> None:
    folders = (str(Path(__file__).parents[2] / "measuring" / "schedulers"), os.environ.get("PYTHONPATH", ""))
    result = subprocess.run(
        [sys.executable, "-P", "-c", LEAVES],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders).strip(os.pathsep)},
    )
    assert (result.stdout, result.returncode) == ("leaves\n", 0), result.stderr
