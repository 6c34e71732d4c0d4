"""Synthesis and verification of a whole program's policy: GPT-2's forward pass, and a layer of LLaMA-2-70B.

python tests/benchmarks/costs/bench_policy.py     CPU seconds of this process, compiled code warm, and their share of
what each may take
"""

import sys
import tempfile
import time
from pathlib import Path

from tileprof.analysis import build_graph
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.verifier import verify
from tileprof.trace import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import header, table, tileprof

LLAMA = ("--fake", "--module", r"layers\.0\b")
PROGRAMS = {
    "GPT-2 small, 128 tokens, forward": ((), ("gpt2",), 10.0),
    "LLaMA-2-70B, 2048 tokens, one layer": (
        LLAMA, ("llama", "--preset", "70b", "--layers", "1", "--tokens", "2048"), 60.0,
    ),
}  # fmt: skip
"""Options of ``record``, example with options, CPU seconds allowed."""


def measure(path):
    graph = build_graph(load(path))
    launches = range(len(graph.launches))
    small = list(launches)[:3]
    verify(synthesise(graph, small), graph, small)  # compiles what is compiled
    begin = time.process_time()
    policy = synthesise(graph, launches)
    result = time.process_time()
    verdict = verify(policy, graph)
    return policy, verdict, result - begin, time.process_time() - result


def main():
    header("Synthesis and verification of whole programs")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (options, (module, *words), allowed_s) in PROGRAMS.items():
            path = Path(folder) / f"{module}.tileprof"
            tileprof("record", *options, "-o", path, "--", sys.executable, "-m", f"tileprof.examples.{module}", *words)
            policy, verdict, made_s, checked_s = measure(path)
            tiles = sum(stage.tiles for stage in policy.stages)
            share = (made_s + checked_s) / allowed_s
            rows.append((
                name, len(policy.stages), f"{tiles:,}", f"{verdict.needed:,}", "sound" if verdict.sound else "UNSOUND",
                f"{made_s:.1f} s", f"{checked_s:.1f} s", f"{share:.2f} of {allowed_s:.0f} s",
                f"{policy.prediction['gain_percent']}%",
            ))  # fmt: skip
    columns = (
        "program",
        "stages",
        "tiles",
        "dependencies",
        "verdict",
        "synthesis",
        "verification",
        "together",
        "modelled gain",
    )
    table(columns, rows)


if __name__ == "__main__":
    main()
