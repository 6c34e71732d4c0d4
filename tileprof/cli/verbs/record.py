"""``tileprof record``: run a program unchanged and write its trace."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tileprof.cli.arguments import cuda_options
from tileprof.cli.text.epilogs import devices
from tileprof.cli.text.messages import say
from tileprof.cli.verb import Verb
from tileprof.errors import UserError
from tileprof.record import RECORDERS, Options, automatic, default_output, recorder
from tileprof.record.closing_line import ended_json
from tileprof.shell_words import shell_word
from tileprof.trace import folder

_MODEL_ONLY: Final = ("fake", "device", "module", "initialisation", "tile")
"""Options that the model recorder alone understands."""

_OF_A_RUN: Final = ("recorder", "skip", "count", "nvtx")
"""Options of both recorders."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the options; everything from the first word that is not an option of tileprof belongs to the program."""
    parser.usage = (
        "tileprof record [options] [--] python infer.py … | python -m module … | infer.py …\n"
        "       tileprof record --accel-sim LIST [-o TRACE] [--device NAME]"
    )
    add = parser.add_argument
    add("-o", "--output", type=Path, metavar="TRACE", help="trace to write (default: ./<script>.tileprof)")
    add("--force", action="store_true", help="overwrite an existing trace")
    add("--json", action="store_true", help="end with one JSON object on stderr that names the trace")
    add("--device", default="H200", metavar="NAME", help="GPU to model: a name or a .json/.toml file (default: H200)")
    add(
        "--recorder",
        default="auto",
        choices=("auto", *RECORDERS),
        help="model: launches that a GPU would run, no GPU needed; cuda: launches that a GPU runs; auto "
        "(default): cuda where it works",
    )
    add("--fake", action="store_true", help="run with fake tensors: no memory for them, no arithmetic")
    add("--skip", type=int, default=0, metavar="N", help="leave out the first N launches")
    add("--count", type=int, metavar="N", help="keep N launches, leave out the rest")
    add("--module", metavar="REGEX", help="keep launches of modules whose path matches")
    add("--nvtx", metavar="REGEX", help="keep launches inside NVTX ranges whose name (name@domain in a domain) matches")
    add("--initialisation", action="store_true", help="keep launches that construct, initialise or convert modules")
    add(
        "--tile",
        action="append",
        default=[],
        metavar="SHAPE",
        help="use these tiles, such as gemm=128x256x64 or gemm@*x6144x12288=256x256x32,split=2; may be repeated",
    )
    add(
        "--accel-sim",
        type=Path,
        metavar="LIST",
        help="run nothing: read the logs listed in a kernelslist.g of Accel-Sim's tracer or of a simulator",
    )
    cuda_options.add_options(parser)
    add("program", nargs=argparse.REMAINDER, help="the program and its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Record; the exit code is the program's own."""
    program = tuple(arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program)
    if arguments.accel_sim is not None:
        return _read_logs(arguments)
    if arguments.program[:1] != ["--"]:
        _hint_at_own_options(program)
    options = Options(
        program=program,
        output=arguments.output or (default_output(program) if program else Path()),
        force=arguments.force,
        device=arguments.device,
        fake=arguments.fake,
        skip=arguments.skip,
        count=arguments.count,
        module=arguments.module,
        nvtx=arguments.nvtx,
        initialisation=arguments.initialisation,
        json=arguments.json,
        tile=tuple(arguments.tile),
    )
    folder.refuse_existing(folder.places(options.output)[0], force=options.force)
    name = _chosen_recorder(arguments) if arguments.recorder == "auto" else arguments.recorder
    _refuse_foreign(arguments, name)
    if name == "cuda":
        from tileprof.record import cuda  # noqa: PLC0415 - only here

        return cuda.record(options, cuda_options.settings(arguments))
    from tileprof.record.model.tiles.foundations import overrides  # noqa: PLC0415 - not needed for --help

    for tile in options.tile:  # the recorder parses them again, but only after PyTorch is imported
        overrides.parse(tile)
    return recorder(name).record(options)


def _read_logs(arguments: argparse.Namespace) -> int:
    """Write the trace of logs; no program runs, so that no option that limits or changes one has a meaning."""
    foreign = _changed_options(arguments, [*{*_MODEL_ONLY, *cuda_options.NAMES, *_OF_A_RUN} - {"device"}])
    if foreign or arguments.program:
        what = f"--{min(foreign).replace('_', '-')}" if foreign else shlex.join(arguments.program)
        raise UserError(f"--accel-sim reads logs and runs no program: leave out {what}")
    from tileprof.record.accel_sim import import_logs  # noqa: PLC0415 - heavy, and not needed for --help

    path = arguments.accel_sim.resolve()
    output = arguments.output or Path((path if path.is_dir() else path.parent).name or "logs")
    folder.refuse_existing(folder.places(output)[0], force=arguments.force)
    imported = import_logs(arguments.accel_sim, output, device=arguments.device, force=arguments.force)
    if arguments.json:
        sys.stderr.write(f"{ended_json(imported.path)}\n")
        return 0
    say(
        f"tileprof: wrote {imported.path}: {imported.launches:,} launches of {imported.tiles:,} tiles, "
        f"{imported.modelled_ns / 1e6:,.3f} ms modelled on {arguments.device}"
    )
    if imported.conservative:
        say(f"tileprof: conservative: {imported.conservative:,} launches; column note of the launches says why")
    say(f"tileprof: next: tileprof report {shell_word(imported.path)}")
    return 0


def _hint_at_own_options(program: Sequence[str]) -> None:
    """Print a note if a word after the program's name is also an option of tileprof; it goes to the program."""
    parser = argparse.ArgumentParser()
    prepare(parser)
    own = {option for action in parser._actions for option in action.option_strings if option.startswith("--")}  # noqa: SLF001 - argparse tells its options nowhere else
    for word in program[1:]:
        if word.partition("=")[0] in own - {"--help"}:
            say(
                f"tileprof: note: {word} goes to the program; if it is meant for tileprof, write it before {program[0]}"
            )


def _chosen_recorder(arguments: argparse.Namespace) -> str:
    """Return the model where its own options ask for it; otherwise the machine decides, which is said."""
    if _changed_options(arguments, _MODEL_ONLY):
        return "model"
    choice = automatic()
    if choice.why:
        sys.stderr.write(f"tileprof: --recorder {choice.name}, as {choice.why}\n")
    return choice.name


def _changed_options(arguments: argparse.Namespace, options: Sequence[str]) -> list[str]:
    """Return those of the options that are not as they are by default."""
    parser = argparse.ArgumentParser()
    prepare(parser)
    return [option for option in options if getattr(arguments, option) != parser.get_default(option)]


def _refuse_foreign(arguments: argparse.Namespace, name: str) -> None:
    """Options of the other recorder would do nothing: say so before the program runs."""
    other = "model" if name == "cuda" else "cuda"
    for option in _changed_options(arguments, cuda_options.NAMES if name == "model" else _MODEL_ONLY):
        flag = "--" + option.replace("_", "-")
        raise UserError(
            f"{flag} is for --recorder {other}, and this is the {name} recorder; leave it out, or change --recorder"
        )


VERB = Verb("record", "run a program unchanged and write its trace", prepare, run, epilog=devices)
