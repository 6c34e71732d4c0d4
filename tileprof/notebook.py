"""The cell magic ``%%tileprof``: record what a cell computes, and show what to do about it."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from tileprof.errors import UserError


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UserError(f"%%tileprof: {message}; {self.format_usage().strip()}")


def _parser() -> _Arguments:
    parser = _Arguments(prog="%%tileprof", add_help=False, allow_abbrev=False)
    parser.add_argument("path", nargs="?", default="cell.tileprof")
    parser.add_argument("--device", default="H200")
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--module")
    parser.add_argument("--tile", action="append", default=[])
    return parser


def register(shell: Any) -> None:
    """Add the magic to an IPython shell; a cell's trace is overwritten when the cell runs again, and is its result."""

    def tileprof(line: str, cell: str) -> Any:
        """%%tileprof [PATH] [--device NAME] [--fake] [--module REGEX] [--tile SHAPE]: record the cell's PyTorch
        operators.
        """
        from tileprof.api import load  # noqa: PLC0415 - heavy
        from tileprof.record.model.recording_context import recording  # noqa: PLC0415 - heavy

        options = vars(_parser().parse_args(shlex.split(line)))
        path = options.pop("path")
        with recording(path, force=True, **options):
            outcome = shell.run_cell(cell)
            if outcome.error_in_exec is not None:
                raise outcome.error_in_exec
        return load(path)

    shell.register_magic_function(tileprof, magic_kind="cell", magic_name="tileprof")
