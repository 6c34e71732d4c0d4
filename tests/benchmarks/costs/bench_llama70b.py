"""LLaMA-2-70B, 2048 tokens, on fake tensors: recorded, analysed and reported, with time and memory of each.

``--write FILE`` writes a results file (`tests/benchmarks/results/llama70b.json`).
"""

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from sys import executable

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import folder_bytes, header, machine, table, tileprof


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="70b")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--write", type=Path, metavar="FILE", help="results as JSON: seconds, 1e9 and 1e6 bytes")
    options = parser.parse_args()
    header(f"LLaMA {options.preset}, {options.tokens} tokens, --fake")
    program = (executable, "-m", "tileprof.examples.llama", "--preset", options.preset, "--tokens", str(options.tokens))
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "llama.tileprof"
        costs = {
            "record": tileprof("record", "--fake", "-o", str(trace), "--", *program),
            "analyse and report": tileprof("report", str(trace)),
        }
        table(
            ("step", "wall", "peak memory"),
            [(step, f"{cost.wall_s:.1f} s", f"{cost.peak_bytes / 1e9:.2f} GB") for step, cost in costs.items()]
            + [("sum, maximum", _sum(costs), f"{max(c.peak_bytes for c in costs.values()) / 1e9:.2f} GB")],
        )
        sizes = _sizes(trace)
    if options.write:
        results = {
            "script": "tests/benchmarks/costs/bench_llama70b.py", "machine": f"{machine()}, torch {version('torch')}",
            "date": f"{datetime.now(UTC):%Y-%m-%d}", "tokens": options.tokens, **sizes,
        }  # fmt: skip
        for name, cost in zip(("record", "report"), costs.values(), strict=True):
            results |= {f"{name}_s": round(cost.wall_s, 1), f"{name}_gb": round(cost.peak_bytes / 1e9, 2)}
        options.write.write_text(json.dumps(results, indent=1) + "\n")


def _sum(costs):
    return f"{sum(c.wall_s for c in costs.values()):.1f} s"


def _sizes(path):
    from tileprof.analysis import build_graph
    from tileprof.trace import load

    trace = load(path)
    links = build_graph(trace).links
    print(
        f"{len(trace.launches):,} launches with {trace.launches.footprint.nunique():,} footprints, "
        f"{trace.launches.tiles.sum():,} tiles, {links.edges.sum():,} tile edges in {len(links):,} links "
        f"({links.block.nunique():,} distinct), {folder_bytes(path) / 1e6:.1f} MB on disk"
    )
    return {
        "launches": len(trace.launches), "million_tiles": round(int(trace.launches.tiles.sum()) / 1e6, 1),
        "billion_edges": round(int(links.edges.sum()) / 1e9, 2), "trace_mb": round(folder_bytes(path) / 1e6, 1),
    }  # fmt: skip


if __name__ == "__main__":
    main()
