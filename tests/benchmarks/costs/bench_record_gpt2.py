"""What recording costs: GPT-2 small, 12 layers, 128 tokens, on the CPU, recorded against plain.

Whole processes from start to exit, and the forward passes alone, taken in turns so that a busy minute hits both alike.
The first pass is the one that models each kind of operator; the later ones find them modelled.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import folder_bytes, header, run, spread, table, tileprof

PROGRAM = (sys.executable, "-m", "tileprof.examples.gpt2", "--layers", "12", "--tokens", "128")
FORWARDS = (sys.executable, str(Path(__file__).with_name("forwards.py")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    repetitions = parser.parse_args().repetitions
    header("Recording GPT-2 small, 12 layers, 128 tokens")
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "gpt2.tileprof"
        plain, recording = in_turns(PROGRAM, trace, repetitions)
        bytes_on_disk = folder_bytes(trace)
        passes = [[json.loads(c.stdout) for c in costs] for costs in in_turns(FORWARDS, trace, repetitions)]
    walls = [[c.wall_s for c in costs] for costs in (plain, recording)]
    firsts = [[seconds[0] for seconds in runs] for runs in passes]
    laters = [[median(seconds[1:]) for seconds in runs] for runs in passes]
    table(
        ("what", "plain", "recorded", "ratio"),
        [_row("process", *walls), _row("first forward pass", *firsts), _row("later forward passes", *laters)],
    )
    peaks = [max(c.peak_bytes for c in costs) / 1e9 for costs in (plain, recording)]
    print(f"{repetitions} repetitions: median (range); peak memory {peaks[0]:.2f} GB plain, {peaks[1]:.2f} GB recorded")
    same = len({c.stdout for c in plain + recording}) == 1
    print(f"trace {bytes_on_disk / 1e6:.2f} MB; stdout {'the same' if same else 'DIFFERENT'}")


def in_turns(program, trace, repetitions):
    """Costs of the plain and the recorded runs, the first of each left out: it fills caches."""
    plain, recording = [], []
    for _ in range(repetitions + 1):
        plain.append(run(*program))
        recording.append(tileprof("record", "--force", "-o", str(trace), "--", *program))
    return plain[1:], recording[1:]


def _row(what, plain, recording):
    ratios = [r / p for p, r in zip(plain, recording, strict=True)]
    return what, spread(plain), spread(recording), spread(ratios, "")


if __name__ == "__main__":
    main()
