"""Runs a header that ``tileprof export --format cusync`` wrote, on the bundled runtime
(`tileprof.runtime.include_path`).

The program beside the header, ``example.cu``, runs the waits without the arithmetic: every tile waits, checks that what
it waited for has happened, and posts. A header is executed only where it is, apart from comments, what its
``policy.json`` exports to.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tileprof import building
from tileprof.errors import UserError
from tileprof.policy.emit.cusync import EXAMPLE, HEADER, cusync_files
from tileprof.policy.format import Policy, load_policy
from tileprof.runtime.include_path import INCLUDE

POLICY: Final = "policy.json"
PROGRAM: Final = "example"
WHAT: Final = "the exported header"
TIMEOUT_S: Final = 120
"""Limit for three rounds without arithmetic; a wait that gives up does so after two seconds."""

_LINE: Final = re.compile(r"^(\d+) rounds of (\d+) tiles, (\d+) went on too early$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The counts of the program: ``rounds`` of ``tiles`` tiles, of which ``early`` went on before what they await was
    done.
    """

    policy: Policy
    rounds: int
    tiles: int
    early: int


def check_exported(header: Path) -> Policy:
    """Return the policy that a header was exported from; raises `UserError` where the folder does not hold what an
    export writes.
    """
    folder = header.parent
    try:
        texts = {name: (folder / name).read_text(encoding="utf-8") for name in (header.name, EXAMPLE)}
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{folder} does not hold what `tileprof export --format cusync` writes: {HEADER}, {EXAMPLE}, {POLICY} "
            f"({reason})"
        ) from None
    policy = load_policy(folder / POLICY)
    candidates = [cusync_files(policy, several=several)[0] for several in (False, True)]
    if not any(
        _code(texts[header.name]) == _code(export[HEADER]) and _code(texts[EXAMPLE]) == _code(export[EXAMPLE])
        for export in candidates
    ):
        raise UserError(
            f"{header} or {EXAMPLE} beside it is not what {POLICY} exports to: it was changed by hand, or by another "
            "version. "
            f"Nothing was run. Export it again, or compile it yourself: nvcc -std=c++17 -I {INCLUDE} {folder / EXAMPLE}"
        )
    return policy


def run_exported(header: Path, architecture: str) -> Rounds:
    """Compile the example of an exported header for ``architecture`` (such as ``sm_90``), run it, and return its
    counts.

    The build is kept in the cache. Raises `UserError` where the folder holds something else, where nvcc is missing or
    refuses, and where the program ends without a count.
    """
    policy = check_exported(header)
    folder = header.parent
    compiler = building.nvcc("An exported header is compiled")
    sources = [header, folder / EXAMPLE, *sorted(INCLUDE.rglob("*.*h"))]
    parts = [architecture, *(path.read_text(encoding="utf-8") for path in sources)]
    parts.append(building.run([str(compiler), "--version"], WHAT))
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]

    def make(work: Path) -> None:
        words = [f"-arch={architecture}", "-std=c++17", "-O3", "-I", str(INCLUDE), "-I", str(folder)]
        building.run([str(compiler), *words, str(folder / EXAMPLE), "-o", str(work / PROGRAM)], WHAT)

    program = building.cached(building.cache_folder("exported") / key, (PROGRAM,), make, WHAT) / PROGRAM
    return _rounds(policy, program)


def _rounds(policy: Policy, program: Path) -> Rounds:
    try:
        process = subprocess.run([program], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"{program} did not end within {TIMEOUT_S} s") from None
    match = _LINE.search(process.stdout)
    if match is None:
        words = (process.stderr or process.stdout).strip() or f"exit code {process.returncode} without a word"
        raise UserError(f"{program} did not run its rounds: {words}")
    return Rounds(policy, *(int(number) for number in match.groups()))


def _code(text: str) -> list[str]:
    """Return lines without comments and blank ones; the exporter writes comments as lines of their own, and no others
    in strings.
    """
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("//")]
