"""Programs of the fake driver (`fake/`), and tables of what its kernels are known to touch."""

from __future__ import annotations

import os
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.shared import once
from tileprof.runtime import acs
from tileprof.runtime.acs.launch_log import Logged
from tileprof.runtime.acs.table import Instance, Range, Table, tabulate

SOURCES = Path(__file__).parent / "fake"
PATIENCE_S = 200


@dataclass(frozen=True)
class Machine:
    """A compiled fake driver and program; ``library`` is the library under test."""

    folder: Path
    library: Path

    def run(
        self, *words: str, settings: acs.Settings | None = None, seed: int = 1, delay_us: int = 30, **more: str
    ) -> str:
        """The program's checksum."""
        return self.outcome(*words, settings=settings, seed=seed, delay_us=delay_us, **more).stdout.strip()

    def outcome(
        self,
        *words: str,
        settings: acs.Settings | None = None,
        seed: int = 1,
        delay_us: int = 30,
        code: int = 0,
        **more: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run the program to its end.

        A run of more than `PATIENCE_S`, or another exit code than ``code``, fails the test. ``more`` are variables.
        """
        variables = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder),
            "FAKE_SEED": str(seed),
            "FAKE_DELAY": str(delay_us),
            **more,
        }
        if settings is not None:
            settings.folder.mkdir(parents=True, exist_ok=True)
            variables |= acs.environment(self.library, settings)
        command = [str(self.folder / "program"), *words]
        outcome = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert outcome.returncode == code, (outcome.returncode, outcome.stderr)
        return outcome

    def logged(self, *words: str, folder: Path) -> list[Logged]:
        """Return the launches that a program makes."""
        self.run(*words, settings=acs.Settings("log", folder), delay_us=0)
        (path,) = folder.glob("launches-*")
        return acs.read_log(path)

    def table(self, *words: str, folder: Path) -> tuple[Table, Path]:
        """Write the table of a program; return the table and its file."""
        table = tabulate(filter(None, map(instance, self.logged(*words, folder=folder))), " ".join(words))
        path = folder / "table"
        table.write(path)
        return table, path


def compiled() -> Machine:
    """Compile the fake driver, its program and the library, once per test run."""
    library = once("acs-library", lambda link: link.symlink_to(acs.build()))
    return Machine(once("fake-driver", _compile), library.resolve())


def _compile(folder: Path) -> None:
    folder.mkdir()
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
    driver = ["-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]
    for command in (
        ["g++", *flags, *driver, str(SOURCES / "libcuda.cpp"), "-ldl", "-o", str(folder / "libcuda.so.1")],
        ["g++", *flags, "-pthread", str(SOURCES / "program.cpp"), "-ldl", "-o", str(folder / "program")],
    ):
        subprocess.run(command, check=True)


def instance(call: Logged) -> Instance | None:
    """Return what the kernels of fake/libcuda.cpp touch; None for the kernel that no table may hold."""
    if call.symbol == "gather":
        return None
    words = struct.unpack_from("<I", call.parameters, {"combine": 24, "scale": 8, "copy": 16}[call.symbol])[0]
    whole = 4 * words
    slots, reads, writes = {
        "combine": ((0, 8, 16), (0, 1, 2), (0,)),
        "scale": ((0,), (0,), (0,)),
        "copy": ((0, 8), (1,), (0,)),
    }[call.symbol]

    def as_ranges(of: tuple[int, ...]) -> tuple[Range, ...]:
        return tuple((slot, 0, whole) for slot in of)

    return Instance(call.symbol, call.shape, call.parameters, slots, as_ranges(reads), as_ranges(writes))
