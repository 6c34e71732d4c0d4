"""Bloom filters of recorded blocks of unmodified kernels: how many answers about later blocks are false.

python tests/benchmarks/bench_inserted.py          no GPU; prints rows
python tests/benchmarks/bench_inserted.py --write  writes results/inserted.json, of which docs/bloom.md has a table

Accesses are those that the CUDA recorder recorded on an H200 (`tests/golden`). Filters are computed from them, with the
bits that the recorder's patches set, and all bits where patches set all: reads of kernels that load through tensor maps
(cuBLAS' nvjet), writes of launches whose results are inferred.
"""

import argparse
import json
from dataclasses import asdict

from measuring import ROOT

from tileprof.analysis.simulate.bloom import Filters, filter_words, touched
from tileprof.analysis.simulate.inserted import WINDOW, answers
from tileprof.trace import load

GOLDEN = ROOT / "tests/golden"
TRACES = ("gemm_fp32", "convolution", "gpt2", "gpt2_compiled", "later/bottleneck", "later/lstm", "later/gru")
SIZES = ((2048, 512), (8192, 512))
BY_TENSOR_MAPS = "nvjet"
RESULTS = ROOT / "tests/benchmarks/results/inserted.json"
READS, WRITES = 0, 1


def words_of(trace, filters, granule):
    """Filters of every kernel of a trace, by launch; copies and fills have none."""
    words = {}
    for launch, row in enumerate(trace.launches.itertuples()):
        if row.registers == 0:
            continue
        words[launch] = filter_words(touched(trace, launch, granule), filters)
        if row.coverage == "conservative" or BY_TENSOR_MAPS in row.kernel:
            words[launch][:, READS] = 0xFFFFFFFF
        if row.coverage != "exact":
            words[launch][:, WRITES] = 0xFFFFFFFF
    return words


def rows():
    for name in TRACES:
        trace = load(GOLDEN / f"{name}.tileprof")
        for bits, granule in SIZES:
            filters = Filters(bits, 2)
            words = words_of(trace, filters, granule)
            answer = answers(trace, words, filters, granule, WINDOW)
            sizes = {"bits": bits, "granule": granule, "launches": len(words), "blocks": sum(map(len, words.values()))}
            row = {"recording": name.rpartition("/")[2], **sizes, "false": answer.false, **asdict(answer)}
            print(row, flush=True)
            yield row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    result = list(rows())
    if chosen.write:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
