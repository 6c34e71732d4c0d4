"""The model recorder: PyTorch programs on any machine, as a chosen GPU would run them.

No GPU is needed: operators are seen as the program executes them, and tile models say what a GPU would launch and which
bytes each thread block would touch.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tileprof.errors import UserError
from tileprof.record import command as commands

if TYPE_CHECKING:
    from tileprof.record import Options

__all__ = ["record"]


def record(options: Options) -> int:
    """Run the program and write its trace; see `tileprof.record` for the contract.

    Where another interpreter was named, or interpreter options, this process becomes that interpreter.

    Raises `UserError` where PyTorch is missing, or hidden by a file.
    """
    command = commands.parse(options.program)
    commands.check_target(command)
    interpreter = commands.other_interpreter(command)
    if interpreter is not None:
        recording = ["-m", "tileprof.cli", "record", "--recorder", "model", *options.arguments()]
        line = [interpreter, *command.options, *recording, "--", interpreter, *command.line()]
        sys.stdout.flush()
        os.execv(interpreter, line)  # noqa: S606 - the user's interpreter
    torch_spec = find_spec("torch")
    if torch_spec is None:
        raise UserError(f"PyTorch is not installed for {sys.executable}: `{sys.executable} -m pip install torch`")
    if torch_spec.submodule_search_locations is None:  # it would be imported in the place of PyTorch
        raise UserError(f"{torch_spec.origin} hides PyTorch, which this recorder needs: rename it, or start elsewhere")
    from tileprof.record.model.recording import run  # noqa: PLC0415 - imports PyTorch

    return run(options, command)
