"""The runtime under ``compute-sanitizer``: every chain of the tests under every correct scheduler, three replays each, with poison before each.

``python tests/gpu/sanitize_runtime.py [TOOL ...]`` with memcheck, racecheck, synccheck or initcheck (default: memcheck). The tool is found on the PATH or in the
wheel of its API. Kernels run far slower under it, so that waits are given a minute. Exits with 1 if a tool objects.
"""

import os
import subprocess
import sys
import warnings

import torch
from measure_overhead import memcheck
from test_runtime_synchronised import CHAINS

from tileprof.errors import UserError
from tileprof.runtime.gpu import GpuPipeline
from tileprof.runtime.schedulers import SCHEDULERS

PATIENCE_NS = 60_000_000_000
INSIDE = "--inside"
SHOULD_BE_BELOW = 3e-3


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_chains():
    """What the tool watches."""
    for name, chain in CHAINS.items():
        policy = chain.policy()
        for schedule in (name for name, chosen in SCHEDULERS.items() if chosen.correct):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    pipeline = GpuPipeline(policy, schedule=schedule, timeout_ns=PATIENCE_NS, unchecked=True)
                except UserError as error:
                    say(f"{name:28} {schedule:18} not run: {error}")
                    continue
                given = pipeline.example()
                for _ in range(3):
                    pipeline.poison()
                    out = pipeline(**given)
                    pipeline.check()
            right = pipeline.reference(given)[next(iter(pipeline.outputs))].double()
            error = float(((out[0] if isinstance(out, tuple) else out).double() - right).norm() / right.norm())
            if not error < SHOULD_BE_BELOW:
                sys.exit(f"{name} under {schedule}: relative error {error}")
            fell = f", ran as {pipeline.scheduler.name}" if said else ""
            say(f"{name:28} {schedule:18} relative error {error:.1e}{fell}")
    torch.cuda.synchronize()


def main():
    if sys.argv[1:] == [INSIDE]:
        run_chains()
        return
    program = memcheck()
    if not program:
        sys.exit("compute-sanitizer is neither on the PATH nor in the wheel nvidia-cuda-sanitizer-api")
    bad = []
    for tool in sys.argv[1:] or ["memcheck"]:
        words = [
            program,
            "--tool",
            tool,
            "--error-exitcode",
            "9",
            "--print-limit",
            "20",
            sys.executable,
            __file__,
            INSIDE,
        ]
        code = subprocess.run(words, env=dict(os.environ), check=False).returncode
        say(f"{tool}: {'clean' if code == 0 else f'exit {code}'}")
        bad += [tool] if code else []
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
