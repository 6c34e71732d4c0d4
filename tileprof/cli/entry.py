"""The entry of the command line: it finds the verb, and is the one place where exceptions become exit codes."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

from tileprof import __version__
from tileprof.cli import address_space
from tileprof.cli.text.messages import say
from tileprof.errors import UserError
from tileprof.terminal_text import harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileprof.cli.verb import Verb

VERBS = ("record", "times", "report", "view", "simulate", "diff", "export", "verify", "run", "doctor")
"""Names of verbs, in the order of use; a verb is in the module ``tileprof.cli.verbs.<name>``."""

BAD_USAGE, OUR_FAILURE = 2, 70
"""70 is EX_SOFTWARE of sysexits.h."""

_OF_A_PATH: Final = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS, errno.ENOSPC,
        errno.EDQUOT, errno.EMFILE, errno.ENFILE,
    }
)  # fmt: skip
"""Failures of the system with a file that the user named, or with a folder above it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; `SystemExit` and `KeyboardInterrupt` pass through.

    A user's error prints one paragraph on stderr and returns its code; any other exception is a bug of tileprof,
    prints its traceback and returns 70. What `record`, or `run --`, runs owns stdout, and may close it.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    own_verb = words[:1] != ["record"] and not (words[:1] == ["run"] and "--" in words)
    if own_verb and sys.stdout is None:
        say("tileprof: cannot write to stdout: it is closed")
        return BAD_USAGE
    small = address_space.too_small()
    if own_verb and small and words[:1] and words[0] in VERBS:
        say(f"tileprof: {small}")
        return BAD_USAGE
    try:
        code = _run(words)
        if own_verb:
            sys.stdout.flush()  # a closed pipe or a full disk shows here, not while the interpreter shuts down
    except UserError as error:
        say(f"tileprof: {error!s}")
        return error.exit_code
    except MemoryError:
        say("tileprof: there is not enough memory for this here: take part of it, or a larger machine")
        return BAD_USAGE
    except KeyboardInterrupt:
        sys.excepthook = lambda *_: None  # the interpreter still ends by SIGINT, as shells expect, but says nothing
        raise
    except Exception as error:  # noqa: BLE001 - the one place that reports bugs
        if own_verb and isinstance(error, OSError) and _stdout_refuses():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
            if isinstance(error, BrokenPipeError):  # `tileprof report … | head`
                return 0
            say(f"tileprof: cannot write to stdout: {error.strerror or error}")
            return BAD_USAGE
        if isinstance(error, OSError) and error.filename is not None and error.errno in _OF_A_PATH:
            if isinstance(error, PermissionError):
                say(f"tileprof: no permission for {error.filename}")
            else:
                say(f"tileprof: {str(error.filename)[:400]}: {error.strerror}")
            return BAD_USAGE
        if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop from "):
            # Path.resolve() of Python 3.11 and 3.12; later ones leave the path as it is, and opening it fails above
            say(f"tileprof: {str(error).removeprefix('Symlink loop from ')[:400]} is a link that leads to itself")
            return BAD_USAGE
        if small:  # not checked before a user's program, which may need less
            say(f"tileprof: {small}")
            return BAD_USAGE
        traceback.print_exc()
        say("tileprof: this is a bug in tileprof; the traceback above says where")
        return OUR_FAILURE
    return code


def _stdout_refuses() -> bool:
    """Return whether a failed write was one to stdout: what failed may be lost from the buffer, so one more line is
    tried.
    """
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        return True
    return False


def _run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else "--help"
    if first in {"-h", "--help"}:
        print(_overview())
        return 0 if arguments else BAD_USAGE
    if first == "--version":
        print(f"tileprof {__version__}")
        return 0
    if first == "help":
        if len(arguments) == 1:
            print(_overview())
            return 0
        arguments = [arguments[1], "--help"]
    if first == "completion":
        from tileprof.cli import completion  # noqa: PLC0415 - needed for nothing else

        return completion.run(arguments[1:])
    name = arguments[0]
    if name not in VERBS:
        close = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean `tileprof {close[0]}`?" if close else f"the verbs are {', '.join(VERBS)}"
        raise UserError(f"there is no verb {name!r}; {hint}")
    verb = load_verb(name)
    parser = parser_of(verb, full={"-h", "--help"} & set(arguments) != set())
    parse = parser.parse_intermixed_args if verb.options_anywhere else parser.parse_args
    words, program = arguments[1:], None
    if verb.takes_program and "--" in words:
        words, program = words[: words.index("--")], tuple(words[words.index("--") + 1 :])
    options = parse(words)
    if verb.takes_program:
        options.program = program
    if not options.plain or name == "record" or program is not None:  # the user's program owns its streams
        return verb.run(options)
    from tileprof.cli.text.console import plain_streams  # noqa: PLC0415 - needed for nothing else

    with plain_streams():
        return verb.run(options)


def parser_of(verb: Verb, *, full: bool = False) -> argparse.ArgumentParser:
    """Return the parser of one verb; ``full`` adds what only its help shows, such as the names of devices."""
    epilog = verb.epilog() if full and verb.epilog else None
    parser = Parser(prog=f"tileprof {verb.name}", description=verb.help, epilog=epilog, allow_abbrev=False)
    add_options(verb, parser)
    return parser


def add_options(verb: Verb, parser: argparse.ArgumentParser) -> None:
    """Add the options of a verb, and those that every verb has."""
    verb.prepare(parser)
    parser.add_argument("--plain", action="store_true", help="ASCII only, no colour")


class Parser(argparse.ArgumentParser):
    """Suggests the option that a misspelt one may have meant."""

    def error(self, message: str) -> NoReturn:
        unknown = re.findall(r"(?<!\S)--?[\w-]+", message.partition("unrecognized arguments:")[2])
        options = [option for action in self._actions for option in action.option_strings]
        close = [match for word in unknown for match in difflib.get_close_matches(word, options, n=1)]
        hint = f"; did you mean {' and '.join(dict.fromkeys(close))}?" if close else ""
        super().error(harmless(message) + hint)


def load_verb(name: str) -> Verb:
    """Return a verb; importing its module may raise ImportError."""
    verb: Verb = import_module(f"tileprof.cli.verbs.{name}").VERB
    return verb


def _overview() -> str:
    """Help for the whole command; a verb that cannot be loaded says why, and harms no other."""
    lines = ["usage: tileprof VERB [options]; `tileprof VERB --help` explains one", ""]
    for name in VERBS:
        try:
            line = load_verb(name).help
        except ImportError as error:
            line = f"not available: {error}"
        lines.append(f"  {name:<10} {line}")
    lines += [
        "",
        "  help VERB  explain one verb; completion SHELL prints completion for bash, zsh or tcsh",
    ]
    return "\n".join(lines)
