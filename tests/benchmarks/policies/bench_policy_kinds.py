"""Which kinds of policies synthesis finds for the chains that cuSync's authors tuned by hand, beside the kinds that
cuSync ships.

python tests/benchmarks/policies/bench_policy_kinds.py [MODEL...]     one row per pair of kernels; times are modelled,
waits at the begin of a tile
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, header, table

sys.path.insert(0, str(ROOT))

from tests.support.policies.published_chains import chains, measure

COLUMNS = ("chain", "size", "pair", "stream", "synthesised", "us", "cuSync's: us (dependencies missing)", "why")


def row(result):
    chain = result.chain
    kinds = ", ".join(
        f"{k} {us:.1f}" + (f" ({result.missing[k]:,})" if result.missing[k] else "")
        for k, us in result.shipped_us.items()
    )
    grouping = f"{result.kind}, {result.semaphores}"
    name = f"{chain.model} {chain.arch} {chain.block}"
    return (
        name,
        chain.size,
        result.pair,
        f"{result.stream_us:.1f}",
        grouping,
        f"{result.policy_us:.1f}",
        kinds,
        result.reason,
    )


def main():
    header("Kinds of policies: synthesised, and cuSync's")
    expected = sys.argv[1:]
    rows, kinds, beaten, equal, worse, unsound = [], Counter(), 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for chain in chains():
            if expected and not any(word in f"{chain.model} {chain.arch} {chain.block}" for word in expected):
                continue
            for result in measure(chain, Path(folder)):
                rows.append(row(result))
                kinds[result.kind] += 1
                ratio = result.policy_us / result.best_shipped_us
                beaten, equal, worse = (
                    beaten + (ratio < 0.999),
                    equal + (0.999 <= ratio <= 1.0011),
                    worse + (ratio > 1.0011),
                )
                unsound += all(result.missing.values())
    table(COLUMNS, rows)
    print(f"{len(rows)} pairs: {', '.join(f'{k} {n}' for k, n in kinds.most_common())}.")
    print(
        f"Beside the best of cuSync's kinds that waits for everything: {equal} as fast (within 0.1%), {beaten} faster "
        "or the only one, "
        f"{worse} slower. Pairs for which none of them waits for everything: {unsound}."
    )


if __name__ == "__main__":
    main()
