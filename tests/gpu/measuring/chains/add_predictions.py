"""Predictions beside measured rows: ``python -m tests.gpu.measuring.chains.add_predictions OUT.json``.

`tileprof.runtime.measuring.measure` writes how long each of a chain's Triton kernels takes alone, with what its blocks
hold of an SM. From that ``tileprof run --compare`` predicts the schedulers' rows while the GPU waits; here the same is
done afterwards, for every chain of the file, which is written again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu.measuring.chains.chain_summary import by_chain
from tileprof.cli.running.run_compare import predict
from tileprof.devices import of_driver
from tileprof.runtime.chain import Chain
from tileprof.runtime.measuring.cases import cases
from tileprof.runtime.measuring.stage_times import StageTime


def add_predictions(result: dict[str, Any]) -> int:
    """Put ``predicted_us`` and ``predicted_gain`` into the rows of a result whose stages were timed; how many chains
    got them.
    """
    device = of_driver(result["device"])
    chains: dict[str, Chain] = {case.name: case.chain for case in cases()}
    count = 0
    for name, rows in by_chain(result["rows"]).items():
        stages = rows.get("cusync", {}).get("stages")
        if stages is None or name not in chains:
            continue
        chain = chains[name]
        expected = predict(chain, [chain.policy()], device, [StageTime(**stage) for stage in stages])
        for row in rows.values():
            if row["row"] in expected:
                row["predicted_us"] = round(expected[row["row"]], 3)  # type: ignore[index]
                row["predicted_gain"] = round(1 - expected[row["row"]] / expected["graph"], 4)  # type: ignore[index]
        count += 1
    return count


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    path = Path(arguments[0])
    result = json.loads(path.read_text(encoding="utf-8"))
    count = add_predictions(result)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(f"{count} chains are predicted\n")


if __name__ == "__main__":
    main(sys.argv[1:])
