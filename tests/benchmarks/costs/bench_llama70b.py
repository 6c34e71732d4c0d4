"""LLaMA-2-70B, 2048 tokens, on fake tensors: recorded, analysed and reported, with time and memory of each."""

import argparse
import sys
import tempfile
from pathlib import Path
from sys import executable

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import folder_bytes, header, table, tileprof


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="70b")
    parser.add_argument("--tokens", type=int, default=2048)
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
        _sizes(trace)


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


if __name__ == "__main__":
    main()
