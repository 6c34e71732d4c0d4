"""Bloom filters of recorded blocks of unmodified kernels: how many answers about later blocks are false.

python tests/benchmarks/filters/bench_inserted.py          no GPU; prints rows
python tests/benchmarks/filters/bench_inserted.py --write  writes results/inserted.json for docs/bloom.md

Accesses are those that the CUDA recorder recorded on an H200 (`tests/golden`). Filters are computed from them, with the
bits that the recorder's patches set, and all bits where patches set all: reads of kernels that load through tensor maps
(cuBLAS' nvjet), writes of launches whose results are inferred. Each row also has the graph that filters alone give,
beside the exact one, and what the simulator makes of both.
"""

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tileprof.analysis import build_graph
from tileprof.analysis.simulate import SCHEDULERS, Simulator
from tileprof.analysis.simulate.filters.bloom import Filters, filter_words, touched
from tileprof.analysis.simulate.filters.filter_graph import against, filter_graph
from tileprof.analysis.simulate.filters.inserted import WINDOW, answers
from tileprof.trace import load
from tileprof.trace.filters import LaunchFilters, StoredFilters

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, print_or_write

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


def graphs(trace, words, filters, granule):
    """The graph of filters alone beside the exact one, and microseconds under both."""
    rows_of = [LaunchFilters(launch, each, np.full(len(each), -1)) for launch, each in sorted(words.items())]
    exact = build_graph(trace)
    graph = filter_graph(trace, StoredFilters(filters.bits, filters.hashes, granule, rows_of))
    agreement = against(graph, exact)
    runs = (("stream", exact, "stream"), ("exact", exact, "dataflow"), ("filters", graph, "dataflow"))
    us = {name: Simulator(of).run(SCHEDULERS[way]).time_ns / 1e3 for name, of, way in runs}
    return {**asdict(agreement), "false": agreement.false, "us": us}


def rows():
    for name in TRACES:
        trace = load(GOLDEN / f"{name}.tileprof")
        for bits, granule in SIZES:
            filters = Filters(bits, 2)
            words = words_of(trace, filters, granule)
            answer = answers(trace, words, filters, granule, WINDOW)
            sizes = {"bits": bits, "granule": granule, "launches": len(words), "blocks": sum(map(len, words.values()))}
            row = {"recording": name.rpartition("/")[2], **sizes, "false": answer.false, **asdict(answer)}
            row["graph"] = graphs(trace, words, filters, granule)
            print(row, flush=True)
            yield row


if __name__ == "__main__":
    print_or_write(rows(), RESULTS)
