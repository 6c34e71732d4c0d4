"""What a convolution computes that does not wait for its halo: cuSync's policies executed on the CPU with one tile held
back.

python tests/benchmarks/policies/bench_halo.py     ResNet-38 and VGG-19, two 3 x 3 convolutions of 56 x 56 pixels and 64
channels, a ReLU between

Stages run tile by tile by the waits of the policy alone (`tileprof.runtime.executor`); memory that no tile has written
yet holds NaN. The tile in the middle of the first convolution runs when nothing else can.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tileprof.analysis import build_graph
from tileprof.policy.operators import describe
from tileprof.policy.synthesis.cusync_kinds import Shipped, shipped_policy
from tileprof.policy.synthesis.epilogue_fusion import fuse
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.overtaken import overtaken_launches
from tileprof.policy.verification.verifier import verify
from tileprof.runtime import Pipeline
from tileprof.runtime.executor import Program, delaying, stream
from tileprof.trace import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import header, table, tileprof

PAIRS = {"resnet38": ("stage1.0.conv1", "stage1.0.conv2"), "vgg19": ("stage1.0", "stage1.2")}
"""Modules of the examples."""

KINDS = ("conv2dtile", "rowsync", "tilesync")


def wrong(policy, order):
    """Pixels of the result that differ from PyTorch's, and all."""
    pipeline = Pipeline(policy)
    inputs = pipeline.example()
    (name,) = pipeline.outputs
    result, _ = pipeline.run(inputs, order(Program.of(policy)))
    expected = pipeline.reference(inputs)[name]
    close = abs(result[name].float() - expected.float()) <= 0.02 * expected.float().abs() + 0.01
    return int((~close).any(dim=-1).sum()), close[..., 0].numel()


def rows_of(program, folder):
    path = Path(folder) / f"{program}.tileprof"
    words = ("--channels-last", "--dtype", "float16")
    tileprof("record", "-o", path, "--fake", "--", sys.executable, "-m", f"tileprof.examples.{program}", *words)
    whole = build_graph(load(path))
    convolutions = whole.launches[whole.launches["kernel"].str.startswith("implicit_gemm")].set_index("module")[
        "launch"
    ]
    pair = [int(convolutions[module]) for module in PAIRS[program]]
    graph, folded_launches = fuse(whole, pair), overtaken_launches(whole, pair)
    policies = {kind: shipped_policy(Shipped(kind), graph, *pair) for kind in KINDS}
    policies = {k: replace(p, stages=describe(whole, p.stages, folded_launches)) for k, p in policies.items()}
    policies["synthesised"] = synthesise(graph, pair, folded=folded_launches)
    for name, policy in policies.items():
        tiles = policy.stages[0].tiles
        halves = tiles // 2
        plain, _ = wrong(policy, stream)
        late, pixels = wrong(policy, lambda program, tile=halves: delaying(program, tile))
        missing = len(verify(policy, graph, pair).missing)
        yield program, tiles, name, f"{missing:,}", plain, late, f"{pixels:,}"


def main():
    header("The omitted halo, executed")
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for program in PAIRS for row in rows_of(program, folder)]
    table(("network", "tiles", "policy", "missing", "wrong in stream order", "wrong, one tile late", "of pixels"), rows)


if __name__ == "__main__":
    main()
