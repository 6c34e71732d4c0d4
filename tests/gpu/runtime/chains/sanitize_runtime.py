"""The runtime under ``compute-sanitizer``: the chains of the tests under every correct scheduler that computes them,
with poison before each replay.

``python tests/gpu/runtime/chains/sanitize_runtime.py [TOOL ...] [--only PATTERN] [--under SCHEDULER] [--replays N]``
with memcheck, racecheck, synccheck or initcheck (default: memcheck). The tool is found on the PATH or in the wheel of
its API. Kernels run far slower under it, so that waits are given a minute. Exits with 1 if a tool objects. racecheck
looks at shared memory alone, synccheck at barriers: one replay of a chain shows them all that there is, under `cusync`
and `persistent`. racecheck does not follow a warp whose lanes store, meet in ``__syncwarp``, and let one of them arrive
at a barrier for all, which is how the persistent kernel hands sums on: it reports these, and nothing once every lane
arrives (docs/development/runtime-experiments.md). So it is run over Triton's kernels.
"""

import argparse
import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[4]))
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.gpu.measuring.recorder.measure_overhead import memcheck
from tests.gpu.runtime.chains.persistent_chains import CHAINS as FOR_PERSISTENT
from tests.gpu.runtime.chains.synchronised_chains import CHAINS
from tileprof.errors import UserError
from tileprof.runtime.policy_on_gpu import GpuPipeline
from tileprof.runtime.schedulers import SCHEDULERS

PATIENCE_NS = 60_000_000_000
INSIDE = "--inside"
SHOULD_BE_BELOW = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 3e-3}


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def options():
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tools", nargs="*", default=["memcheck"], metavar="TOOL")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="chains whose name contains this")
    parser.add_argument("--under", action="append", metavar="SCHEDULER", choices=list(SCHEDULERS))
    parser.add_argument("--replays", type=int, default=3, metavar="N")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def selection(arguments):
    """Yield (chain's name, chain, scheduler): Triton's chains under Triton's schedulers, and those of the persistent
    kernel under its own.
    """
    for chains, persistent in ((CHAINS, False), (FOR_PERSISTENT, True)):
        for name, chain in chains.items():
            for schedule, chosen in SCHEDULERS.items():
                request = chosen.correct if arguments.under is None else schedule in arguments.under
                if request and chosen.persistent == persistent and any(word in name for word in arguments.only or [""]):
                    yield name, chain, schedule


def run_chains(arguments):
    """What the tool watches."""
    for name, chain, schedule in selection(arguments):
        with warnings.catch_warnings(record=True) as message:
            warnings.simplefilter("always")
            try:
                pipeline = GpuPipeline(chain.policy(), schedule=schedule, timeout_ns=PATIENCE_NS, unchecked=True)
            except UserError as error:
                say(f"{name:28} {schedule:18} not run: {error}")
                continue
            inputs = pipeline.example()
            for _ in range(arguments.replays):
                pipeline.poison()
                out = pipeline(**inputs)
                pipeline.check()
        output, view = next(iter(pipeline.outputs.items()))
        with sdpa_kernel(SDPBackend.MATH):  # cuDNN's own attention is not clean under racecheck
            right = pipeline.reference(inputs)[output].double()
        error = float(((out[0] if isinstance(out, tuple) else out).double() - right).norm() / right.norm())
        if not error < SHOULD_BE_BELOW[view.dtype]:
            sys.exit(f"{name} under {schedule}: relative error {error}")
        fell = f", ran as {pipeline.scheduler.name}" if message else ""
        say(f"{name:28} {schedule:18} relative error {error:.1e}{fell}")
    torch.cuda.synchronize()


def main():
    inputs = options()
    if inputs.inside:
        run_chains(inputs)
        return
    program = memcheck()
    if not program:
        sys.exit("compute-sanitizer is neither on the PATH nor in the wheel nvidia-cuda-sanitizer-api")
    bad = []
    for tool in inputs.tools:
        words = [
            program,
            "--tool",
            tool,
            "--error-exitcode",
            "9",
            "--print-limit",
            "20",
            sys.executable,
            *sys.argv,
            INSIDE,
        ]
        code = subprocess.run(words, env=dict(os.environ), check=False).returncode
        say(f"{tool}: {'clean' if code == 0 else f'exit {code}'}")
        bad += [tool] if code else []
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
