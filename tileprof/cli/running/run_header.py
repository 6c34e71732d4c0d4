"""``tileprof run policy.h``: an exported header on the bundled runtime."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tileprof.cli.running.run_gpu import check_device
from tileprof.cli.text.progress import steps
from tileprof.errors import UserError


def run_header(header: Path, *, as_json: bool) -> int:
    """Compile and run the example beside an exported header; 0 where no tile went on too early, otherwise 1."""
    from tileprof.runtime.exported_header import check_exported, run_exported  # noqa: PLC0415 - heavy, and not needed for --help

    policy = check_exported(header)
    architecture = _architecture()
    check_device(policy)
    with steps() as say:
        say("compiling the header and running its waits")
        counts = run_exported(header, architecture)
    fields = {"rounds": counts.rounds, "tiles": counts.tiles, "early": counts.early, "clean": counts.early == 0}
    if as_json:
        json.dump(fields, sys.stdout, indent=1)
        print()
    else:
        names = " -> ".join(stage.name for stage in counts.policy.stages)
        print(
            f"{names}: {counts.rounds} rounds of {counts.tiles:,} tiles on the GPU ({architecture}), without "
            "arithmetic."
        )
        verdict = "no tile went on" if counts.early == 0 else f"{counts.early:,} tiles WENT ON"
        print(f"{verdict} before what it awaits had happened.")
    return 0 if counts.early == 0 else 1


def _architecture() -> str:
    """Return the current GPU's, as nvcc names it; raises `UserError` where there is none."""
    try:
        import torch  # noqa: PLC0415 - slow to import
    except ImportError:
        raise UserError("running a header needs PyTorch, which queries the GPU: pip install torch") from None
    if not torch.cuda.is_available():
        raise UserError(
            "there is no GPU here that PyTorch can use, so a header cannot run; `tileprof run policy.json` "
            "executes the "
            "policy on the CPU"
        )
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"
