"""cuSync's way to overlap, two streams and a wait kernel, beside programmatic launch in one stream, at the sizes of
chain-times.md.

``python tests/gpu/measuring/schedulers/measure_streams.py OUT.json [--budget SECONDS]``. The stages are Triton's
kernels in all rows: stream order (``graph``), ``cusync`` (one stream, programmatic launch, waits) and
``cusync-streams``. They are compiled by as many processes as there are cores, then timed one chain after the other,
rows in turn; ``--part compile`` and ``--part measure`` do one of the two, with kernels in Triton's cache between them.
OUT.json is written after every chain; chains that it holds are not measured again.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean

ROWS = ("graph", "cusync", "cusync-streams")


def compiled(number):
    """Compile one case's kernels under every scheduler, into Triton's cache.

    Return their number, or why there are none.
    """
    import torch

    from tileprof.errors import UserError
    from tileprof.runtime.measuring.cases import cases
    from tileprof.runtime.policy_on_gpu import GpuPipeline

    case = list(cases())[number]
    try:
        policy = case.chain.policy()
        for row in ROWS:
            pipeline = GpuPipeline(policy, schedule=row, unchecked=True)
            pipeline.launch(pipeline.example())
            pipeline.check()
    except (UserError, torch.OutOfMemoryError) as error:
        return number, str(error).splitlines()[0]
    finally:
        torch.cuda.empty_cache()
    return number, ""


def rows_of(case):
    """Return the rows of one chain, with their error relative to PyTorch."""
    from tileprof.runtime.measuring.measure import measure

    return measure(case.chain, [case.chain.policy()], schedulers=ROWS, beside_torch=False)


def in_order(cases):
    """Return the numbers of the chains, one of each kind first."""
    return sorted(range(len(cases)), key=lambda n: (not cases[n].thorough, n % 3, n))


def warm_cases(cases, done_chains, budget_s):
    """Return the numbers of chains not in ``done_chains`` whose kernels compile in time, and reasons for leaving out
    others.
    """
    start_s, ready, skip_reasons = time.monotonic(), [], {}
    order = [number for number in in_order(cases) if cases[number].name not in done_chains]
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))
    for future in as_completed([pool.submit(compiled, n) for n in order]):
        number, reason = future.result()
        if reason:
            skip_reasons[cases[number].name] = reason
        else:
            ready.append(number)
        if time.monotonic() - start_s > budget_s:
            break
    pool.shutdown(wait=True, cancel_futures=True)
    print(f"{len(ready)} of {len(order)} chains are compiled, {time.monotonic() - start_s:.0f} s", flush=True)
    return sorted(ready), skip_reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--part", choices=("all", "compile", "measure"), default="all")
    options = parser.parse_args()
    start_s = time.monotonic()

    import torch

    from tileprof.runtime.measuring.cases import cases
    from tileprof.runtime.measuring.measure import measured_on

    all_cases = list(cases())
    results = json.loads(options.out.read_text()) if options.out.exists() else {**measured_on(), "rows": []}
    done_chains = {row["chain"] for row in results["rows"]}
    share = {"all": 0.6, "compile": 1.0}
    ready, skip_reasons = (
        (in_order(all_cases), {})
        if options.part == "measure"
        else warm_cases(all_cases, done_chains, share[options.part] * options.budget)
    )
    if options.part == "compile":
        for name, reason in skip_reasons.items():
            print(f"{name} is left out: {reason}")
        return
    for number in ready:
        case = all_cases[number]
        if case.name in done_chains:
            continue
        if time.monotonic() - start_s > options.budget:
            break
        try:
            rows = rows_of(case)
        except Exception as error:
            print(f"{case.name}: {type(error).__name__}: {error}", flush=True)
            continue
        torch.cuda.empty_cache()
        results["rows"] += [{"chain": case.name, **row} for row in rows]
        us = {row["row"]: row["us"] for row in rows}
        wrong = [row["row"] for row in rows if row["relative_error"] is None or row["relative_error"] > 0.02]
        print(
            f"{case.name:52}",
            *(f"{us[row]:9.2f}" for row in ROWS),
            "wrong: " + ", ".join(wrong) if wrong else "",
            flush=True,
        )
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    by_chain = {}
    for row in results["rows"]:
        by_chain.setdefault(row["chain"], {})[row["row"]] = row["us"]
    for row in ROWS[1:]:
        gains = [us["graph"] / us[row] for us in by_chain.values()]
        print(
            f"{row}: {geometric_mean(gains):.3f}x stream order, {min(gains):.3f} to {max(gains):.3f}, {len(gains)} "
            "chains"
        )
    for name, reason in skip_reasons.items():
        print(f"{name} is left out: {reason}")


if __name__ == "__main__":
    sys.exit(main())
