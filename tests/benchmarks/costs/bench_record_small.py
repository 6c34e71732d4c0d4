"""What recording costs where operators are small: processor time per training step, recorded against plain.

The floor is PyTorch's own: the same steps under a dispatch mode that does nothing.
"""

import argparse
import json
import runpy
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import header, run, table, tileprof

STEPS = str(Path(__file__).with_name("small_steps.py"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--floor", metavar="PROGRAM", help=argparse.SUPPRESS)  # the benchmark's own child
    arguments = parser.parse_args()
    if arguments.floor:
        under_an_idle_mode(arguments.floor)
        return
    header("Recording programs of small operators")
    with tempfile.TemporaryDirectory() as folder:
        rows = [ratios(program, Path(folder) / "trace", arguments.repetitions) for program in ("mlp", "gru")]
    table(("program", "plain", "idle dispatch mode", "recorded", "recorded / plain"), rows)


def ratios(program, trace, repetitions):
    """A row of the table: the least median of each, since other processes can only add."""
    command = (sys.executable, STEPS, program)
    runs = {"plain": [], "idle": [], "recorded": []}
    for _ in range(repetitions):
        runs["plain"].append(run(*command))
        runs["idle"].append(run(sys.executable, __file__, "--floor", program))
        runs["recorded"].append(tileprof("record", "--force", "-o", str(trace), "--", *command))
    least = {name: min(median(json.loads(cost.stdout)) for cost in costs) for name, costs in runs.items()}
    return program, *(f"{least[name] * 1e3:.2f} ms" for name in runs), f"{least['recorded'] / least['plain']:.1f}"


def under_an_idle_mode(program):
    """Run the steps with each operator passing through Python once, as any recorder below autograd has it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Idle(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls):
            return False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    sys.argv = [STEPS, program]
    with Idle():
        runpy.run_path(STEPS, run_name="__main__")


if __name__ == "__main__":
    main()
