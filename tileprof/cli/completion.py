"""``tileprof completion SHELL``: a script that completes verbs, options, devices and files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tileprof.errors import UserError

SHELLS = ("bash", "zsh", "tcsh")
USAGE = 'usage: tileprof completion bash|zsh|tcsh; for bash: eval "$(tileprof completion bash)"'


def run(arguments: Sequence[str]) -> int:
    """Print the script for one shell. Raises `UserError` for other arguments, and where shtab is not installed."""
    if len(arguments) != 1 or arguments[0] not in (*SHELLS, "-h", "--help"):
        raise UserError(USAGE)
    if arguments[0] not in SHELLS:
        print(USAGE)
        return 0
    try:
        import shtab  # noqa: PLC0415 - needed for nothing else
    except ImportError:
        raise UserError("completion needs shtab; type: pip install shtab") from None
    print(shtab.complete(_whole(shtab), arguments[0]))
    return 0


def _whole(shtab: object) -> argparse.ArgumentParser:
    """Return all verbs as one parser, which is what shtab describes."""
    from tileprof.cli.entry import VERBS, add_options, load_verb  # noqa: PLC0415 - circular

    parser = argparse.ArgumentParser(prog="tileprof")
    verbs = parser.add_subparsers()
    for name in VERBS:
        verb = load_verb(name)
        part = verbs.add_parser(name, help=verb.help)
        add_options(verb, part)
        for action in part._actions:  # noqa: SLF001 - argparse offers no other way to its arguments
            if action.metavar in {"TRACE", "FILE", "DIR", "PAGE", "POLICY", "A", "B"}:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
    return parser
