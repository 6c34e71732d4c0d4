"""The interface of verbs of the command line: a name, a line of help, options, and an action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb, named ``VERB`` in its module; `tileprof.cli.entry.VERBS` lists the names of all.

    ``prepare`` adds the options to the verb's parser; ``run`` does the work and returns the exit code (0 fine,
    1 the answer is no, 2 bad usage). ``run`` raises `UserError` for what the user can mend. Modules of verbs
    import what is heavy inside ``run``, so that `--help` stays fast. ``options_anywhere``: options may stand between
    the positional arguments, too. ``epilog``: what `--help` adds below the options, such as names of devices.
    ``takes_program``: a user's command may follow ``--``; ``run`` gets it as the tuple ``program``, or None.
    """

    name: str
    help: str
    prepare: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    options_anywhere: bool = False
    epilog: Callable[[], str] | None = None
    takes_program: bool = False
