"""On a GPU: attention between its products under the schedulers of `measure_dealers.py`: how far from PyTorch, right
under delays, and how long it takes, beside PyTorch's kernels and Triton's.

python tests/gpu/measuring/schedulers/measure_attention.py OUT.json [--compile] [--runs 1000] [--only right|times]
    [--triton] [--chains NAME …]

``--compile`` only builds the kernels, without a GPU; ``--runs``: delayed replays of each chain in ``RIGHT`` and each
scheduler; ``--triton``: Triton's kernels too, which compile for seconds per chain.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import statistics
import time
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from measure_dealers import DELAY_NS, SMS, compile_all, times, wrong

from tileprof.runtime.chain import Chain
from tileprof.runtime.measuring import stage_times, timing
from tileprof.runtime.measuring.cases import attention_block
from tileprof.runtime.persistent.cost import clusters_on
from tileprof.runtime.persistent.tile_choice import tiled
from tileprof.runtime.policy_on_gpu import GpuPipeline

ROWS = ("persistent-dynamic", "ccks", "ccks-ready")
DELAYED = ("persistent", *ROWS, "ccks-overwrite")


def with_tiles(
    chain: Chain, tile: tuple[int, int], rows: int, last_tile: tuple[int, int] | None = None, *, causal: bool = True
) -> Chain:
    """Return an attention block in tiles of its products, and of a number of queries."""
    first, attention, last = chain.operators
    attention = replace(attention, rows=rows, causal=causal)
    return Chain(chain.names, (replace(first, tile=tile), attention, replace(last, tile=last_tile or tile)))


RIGHT = {
    "heads of 64, tiles of 128": with_tiles(attention_block(700, 256, 4, head=64, bias=True), (128, 64), 128),
    "groups of heads of 128, tiles of 64": with_tiles(attention_block(500, 256, 4, 2), (128, 128), 64),
    "64 rows, to all keys": with_tiles(attention_block(400, 256, 8, 2, 64), (64, 64), 64, causal=False),
}


def triton_chains() -> dict[str, Chain]:
    """Return what is timed, in tiles for Triton's kernels. Without the rotary embedding of LLaMA's."""
    gpt2 = {
        f"GPT-2 attention, {tokens} tokens": attention_block(tokens, 768, 12, head=64, bias=True)
        for tokens in (128, 512, 1024)
    }
    llama = {
        f"LLaMA-3-8B attention, {tokens} tokens": attention_block(tokens, 4096, 32, 8) for tokens in (128, 512, 2048)
    }
    return gpt2 | llama


def timed_chains() -> dict[str, Chain]:
    """Return the same in tiles for the persistent kernel."""
    return {name: tiled(chain, clusters_on(SMS))[0] for name, chain in triton_chains().items()}


def measured_chains(results: dict[str, dict]) -> dict[str, Chain]:
    """Return what was timed in a run, in the tiles that it had."""
    chains = triton_chains()
    return {
        name: with_tiles(chains[name], tuple(first), rows, tuple(last))
        for name, (first, (rows, _), last) in results["tiles"].items()
    }


def errors(chain: Chain, schedule: str) -> dict[str, float]:
    """Return how far each stage's result is from PyTorch's, relative."""
    pipeline = GpuPipeline(chain.policy(), schedule=schedule, unchecked=True)
    inputs = pipeline.example()
    pipeline.poison()
    pipeline(**inputs)
    pipeline.check()
    expected = pipeline.reference(inputs)
    off = {}
    for name, operator in zip(chain.names, chain.operators, strict=True):
        result = pipeline._own[operator.out.tensor].as_strided(operator.out.shape, operator.out.strides)
        there = expected[operator.out.tensor].double().reshape(operator.out.shape)
        off[name] = float((result.double() - there).norm() / there.norm())
    return off


def beside(chain: Chain) -> dict[str, float]:
    """Microseconds of PyTorch's kernels in a graph: the chain, and its attention alone, data rotated out of L2.
    ``chain``: in tiles for Triton's kernels, which are not launched.
    """
    count = min(8, stage_times.instances(chain))
    us = {}
    attention = Chain(chain.names[1:2], chain.operators[1:2])
    for name, part in (("PyTorch", chain), ("PyTorch, attention", attention)):
        pipeline = GpuPipeline(part.policy(), schedule="graph", unchecked=True)
        inputs = stage_times.rotated(pipeline, count)
        graph = timing.captured(lambda p=pipeline, sets=inputs: [p.reference(tensors) for tensors in sets])
        us[name] = statistics.median(timing.time_in_turn([graph])[0]) / count
    return us


def times_alone(chain: Chain) -> dict[str, float]:
    """Microseconds of each stage of the persistent kernel alone."""
    return dict(zip(chain.names, stage_times.persistent_stage_us(chain.policy()), strict=True))


def in_heights(chain: Chain) -> dict[str, Chain]:
    """Return the chain with attention in tiles of 64 and of 128 queries."""
    first, _, last = chain.operators
    return {str(rows): with_tiles(chain, first.tile, rows, last.tile) for rows in (64, 128)}


def times_by_height(chain: Chain) -> dict[str, float]:
    """Microseconds of attention alone, by the queries of a tile."""
    return {rows: times_alone(tiled_chain)["attention"] for rows, tiled_chain in in_heights(chain).items()}


def triton_times(chain: Chain) -> dict[str, float]:
    """Microseconds of Triton's kernels in stream order and under cuSync's waits."""
    count, us = min(8, stage_times.instances(chain)), {}
    for row in ("graph", "cusync"):
        pipelines = stage_times.pipelines_of(chain.policy(), row, count)
        inputs = stage_times.rotated(pipelines[0], count)
        graph = timing.captured(partial(stage_times.launch_all, pipelines, inputs))
        us[row] = statistics.median(timing.time_in_turn([graph])[0]) / count
        pipelines[0].check()
    return us


def main() -> None:
    faulthandler.dump_traceback_later(60, repeat=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", choices=("times", "right"))
    parser.add_argument("--triton", action="store_true")
    parser.add_argument("--chains", nargs="+")
    chosen = parser.parse_args()
    start_s, right = time.time(), RIGHT if chosen.only != "times" else {}
    chains = {} if chosen.only == "right" else timed_chains()
    chains = {name: chain for name, chain in chains.items() if not chosen.chains or name in chosen.chains}
    compile_all(right, DELAY_NS, DELAYED[1:])
    compile_all(chains, 0, ROWS)
    compile_all({f"{name}, {rows}": high for name in chains for rows, high in in_heights(chains[name]).items()}, 0, ())
    if chosen.compile:
        return
    print(f"compiled in {time.time() - start_s:.0f} s", flush=True)
    results = {"device": torch.cuda.get_device_name(), "errors": {}, "right": {}, "us": {}, "stages": {}}
    results["tiles"] = {name: [operator.tile for operator in chain.operators] for name, chain in chains.items()}
    results["heights"] = {}

    def note(kind: str, name: str, work: partial) -> None:
        try:
            results[kind].setdefault(name, {}).update(work())
            print(f"{time.time() - start_s:.0f} s", kind, name, results[kind][name], flush=True)
        except Exception:
            traceback.print_exc()
        chosen.output.write_text(json.dumps(results, indent=1) + "\n")

    for name, chain in (right | chains).items():
        note("errors", name, partial(errors, chain, "ccks"))
    for schedule in DELAYED:
        for name, chain in right.items():
            note("right", f"{name}, {schedule}", partial(wrong, chain, schedule, chosen.runs))
    for name, chain in chains.items():
        note("us", name, partial(times, chain, ROWS))
        note("us", name, partial(beside, triton_chains()[name]))
        note("stages", name, partial(times_alone, chain))
        note("heights", name, partial(times_by_height, chain))
    for name in chains if chosen.triton else ():
        note("us", name, partial(triton_times, triton_chains()[name]))


if __name__ == "__main__":
    main()
