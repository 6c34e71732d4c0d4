"""``tileprof doctor``: what recording real kernels needs on this machine, what is missing, and how to repair it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from tileprof.cli.verb import Verb

MARKS = {(True, True): "ok", (True, False): "ok", (False, True): "FAIL", (False, False): "lost"}
"""The mark of a check, by whether it passed and whether recording needs it."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def run(options: argparse.Namespace) -> int:
    """Look; 0 when real kernels can be recorded here, 1 when not."""
    from tileprof.record.cuda import doctor  # noqa: PLC0415 - it loads the driver

    checks = doctor.checks()
    able = all(check.ok for check in checks if check.needed)
    recorders = _recorders(able=able)
    if options.json:
        print(
            json.dumps({"able": able, "recorders": recorders, "checks": [asdict(check) for check in checks]}, indent=2)
        )
        return 0 if able else 1
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{MARKS[check.ok, check.needed]:>4}  {check.name:<{width}}  {check.result}")
    print()
    for name, state in recorders.items():
        print(f"{name + ' recorder:':<17} {state}")
    print("Real kernels can be recorded here." if able else "Real kernels cannot be recorded here; models of them can.")
    return 0 if able else 1


def _recorders(*, able: bool) -> dict[str, str]:
    """Return what each recorder works with here, or the command that gives it what is missing."""

    def version_of(package: str) -> str:
        try:
            return f"ok, {package} {version(package)}"
        except PackageNotFoundError:
            return f"needs {package}; type: {sys.executable} -m pip install {package}"

    return {
        "model": version_of("torch"),
        "triton": version_of("triton"),
        "cuda": "ok" if able else "needs what is marked FAIL above",
    }


VERB = Verb("doctor", "check what recording real kernels needs on this machine", prepare, run)
