"""Policies of whole models: seconds to verify GPT-2's and LLaMA-1B's, and what becomes of mutants.

python tests/benchmarks/policies/bench_whole_policies.py [GPT2 [LLAMA]]     numbers of mutants: of GPT-2 (default 400)
and of two layers of LLaMA-1B (default 80)
"""

import sys
import time
from pathlib import Path

from tileprof.runtime.convnet.plan import plan_network
from tileprof.runtime.decode.handover import Handover
from tileprof.runtime.decode.shape import DecoderShape
from tileprof.runtime.encoder.plan import plan_of
from tileprof.runtime.programs.whole_policy import of_blocks, of_decoder, of_network

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, header

sys.path.insert(0, str(ROOT))

from tests.support.runtime.encoder_programs import pre_norm
from tests.support.runtime.networks import small
from tests.support.runtime.whole_mutants import Tally

BLOCKS = 132
LLAMA = DecoderShape(
    "bfloat16", batch=1, layers=16, hidden=2048, intermediate=8192, heads=32, kv_heads=8, head_dim=64,
    vocabulary=128256, cache=1024, epsilon=1e-5, scale=0.125,
)  # fmt: skip


def gpt2():
    return of_blocks(plan_of(pre_norm(128, 768, 12), BLOCKS, 2))


def llama(layers=16):
    return of_decoder(Handover(LLAMA, BLOCKS, 512), layers)


def seconds_of(name, make):
    begin = time.perf_counter()
    plan = make()
    planned_at = time.perf_counter()
    verdict = plan.verified()
    end = time.perf_counter()
    print(
        f"{name}: {len(plan.names)} stages, {sum(plan.tiles):,} tiles, {verdict.needed:,} dependencies, "
        f"{verdict.covered:,} covered, "
        f"{'sound' if verdict.sound else 'NOT SOUND'}; {planned_at - begin:.1f} s to lay out, {end - planned_at:.1f} s "
        "to verify",
        flush=True,
    )
    return plan


def main():
    counts = [int(a) for a in sys.argv[1:]] or [400, 80]
    print(header("Policies of whole models"))
    blocks = seconds_of("GPT-2, 128 tokens", gpt2)
    seconds_of("LLaMA-1B, one token", llama)
    few = seconds_of("LLaMA-1B, two layers", lambda: llama(2))
    network = seconds_of("a small residual network", lambda: of_network(plan_network(small(2), BLOCKS)))
    programs = (
        ("GPT-2", blocks, counts[0]),
        ("LLaMA-1B, two layers", few, counts[1]),
        ("residual network", network, 400),
    )
    for name, plan, count in programs:
        tally = Tally()
        tally.add(plan, count)
        print(f"{name}: {tally}", flush=True)


if __name__ == "__main__":
    main()
