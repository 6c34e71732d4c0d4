"""Measures the costs of launches on this machine, as a device file that `tileprof simulate --device FILE` takes.

python -m tileprof.runtime.acs.costs -o here.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tileprof import building, devices
from tileprof.devices.catalogue import of_driver
from tileprof.errors import UserError
from tileprof.runtime.acs.acs_build import SOURCES

MEASURED: Final = ("host_issue_ns", "host_issue_shared_ns", "graph_issue_ns")
"""Keys of `Device` that are measured here."""

_WHAT: Final = "the program that measures launches"
_PATIENCE_S: Final = 60


def measure() -> dict[str, Any]:
    """Return times in ns per launch, by key of `Device` and for events, and the GPU's ``name``.

    Raises `UserError` where there is no GPU, and where the program does not end.
    """
    with tempfile.TemporaryDirectory(prefix="tileprof-costs-") as folder:
        program = Path(folder) / "launch_costs"
        source = str(SOURCES / "launch_costs.cc")
        building.run(
            [
                str(building.host_compiler()),
                "-std=c++17",
                "-O2",
                "-pthread",
                "-x",
                "c++",
                source,
                "-ldl",
                "-o",
                str(program),
            ],
            _WHAT,
        )
        try:
            process = subprocess.run([program], capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise UserError(f"launches were not measured: the program did not end in {_PATIENCE_S} s") from None
    if process.returncode != 0:
        raise UserError(f"launches cannot be measured here: {process.stderr.strip()}")
    costs: dict[str, Any] = json.loads(process.stdout)
    return costs


def device_file(costs: dict[str, Any], like: str | None = None) -> dict[str, Any]:
    """Return the measured GPU as the JSON of a device file, with all else from the device ``like``, by default the one
    of its name.
    """
    device = devices.get(like) if like else of_driver(str(costs["name"]))
    source = f"measured {datetime.now(UTC):%Y-%m-%d} by tileprof.runtime.acs.costs on {costs['name']}"
    values = {key: float(costs[key]) for key in MEASURED}
    sources = {**device.sources, **dict.fromkeys(MEASURED, source)}
    return replace(device, sources=sources, **values).to_dict()  # type: ignore[arg-type]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the file; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="device file to write, .json")
    parser.add_argument(
        "--like", metavar="NAME", help="device whose other numbers hold; default: the one of the GPU's name"
    )
    options = parser.parse_args(argv)
    try:
        costs = measure()
        sys.stdout.write(json.dumps(costs, indent=1) + "\n")
        if options.output is not None:
            options.output.write_text(json.dumps(device_file(costs, options.like), indent=1) + "\n", encoding="utf-8")
    except (UserError, OSError) as error:
        sys.stderr.write(f"tileprof: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
