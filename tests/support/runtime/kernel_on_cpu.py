"""Runs the source of the persistent kernel on the CPU, in the machine of `emulated/`.

g++ builds it, and the same code as on a GPU computes its arguments.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import torch

from tests.support.runtime.planted import Patch
from tests.support.shared import once
from tests.support.shared_libraries import SHARED
from tileprof.runtime.copilot.copilot import Copilot
from tileprof.runtime.persistent import persistent_launch
from tileprof.runtime.persistent.dealing import Dealer, flag_words
from tileprof.runtime.persistent.driver import Arguments
from tileprof.runtime.persistent.persistent_build import KERNEL
from tileprof.runtime.persistent.plan import Plan
from tileprof.runtime.persistent.source import Options, header
from tileprof.runtime.stages.view import View
from tileprof.runtime.sync.tables import FLAG_BYTES

EMULATED: Final = Path(__file__).parents[1] / "emulated"
FLAGS: Final = ("-std=c++17", "-fPIC", "-fno-strict-aliasing", f"-I{EMULATED}")

# -Og compiles in half the time of -O1, and the program runs as long
_KERNEL_FLAGS: Final = (*FLAGS, "-w", "-Og", *SHARED)

_MULTIPLY: Final = re.compile(r"template <> struct Multiply<\d+> \{.*?\n\};", re.DOTALL)
_STORE: Final = re.compile(r"\*reinterpret_cast<u32\*>\(([^;]*)\)\s*=\s*([^;]*);")
_NAMED: Final = re.compile(r"\b([A-Z]+_FULL|[A-Z]+_FREE|STORED|POSTED|AWAITED|LOADED|BEGUN) = ")


class Schedule(ctypes.Structure):
    """The `Options` of machine.cpp."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        *(
            (name, ctypes.c_int)
            for name in ("order", "events", "event_odds", "drain_odds", "cluster", "block", "warp", "yield_odds")
        ),
    )

    @classmethod
    def of(cls, seed: int, blocks: int, split: int) -> Schedule:
        """Return options that differ for each seed: random orders and random moments of asynchronous operations, with
        no part, a role, a block or a cluster late. Seed 0 delays nothing.
        """
        if seed == 0:
            return cls(0, 1, 1, 1, 1, -1, -1, -1, 0)
        dice = random.Random(seed)
        late: list[tuple[int, int, int]] = [
            (-1, -1, -1),
            (-1, -1, dice.randrange(12)),
            (-1, dice.randrange(blocks), dice.randrange(12)),
            (-1, -1, dice.randrange(4)),
            (-1, dice.randrange(blocks), -1),
            (dice.randrange(blocks // split), -1, -1),
        ]
        return cls(
            seed,
            dice.randrange(3),
            dice.choice([0, 0, 1, 2, 2]),
            dice.choice([2, 4, 16, 64]),
            dice.choice([0, 0, 4, 64]),
            *late[seed % len(late)],
            dice.choice([0, 2, 8, 32]),
        )


class HostArguments(Arguments):
    """Encodes tensor maps as `machine.Map`."""

    def put_map(
        self,
        word: int,
        address: int,
        dtype: str,
        sizes: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        steps: Sequence[int],
        *,
        swizzle: int = 128,
    ) -> None:
        more = 4 - len(sizes)
        words = [address, *sizes, *[1] * more, *strides, *[0] * more]
        words += [sum(side << 16 * i for i, side in enumerate((*sides, *[1] * more))) for sides in (box, steps)]
        self.words[word : word + 11] = [*words, swizzle]


def compiled(
    plan: Plan, folder: Path, patch: Patch | None = None, dealer: Dealer = Dealer.LISTS, *, claims: bool = False
) -> Path:
    """Build the kernel of a plan as a library, with a machine of its own, in a new folder."""
    stages = without_products(header(plan, Options(dealer=dealer, claims=claims)))
    texts = KERNEL.texts()
    texts |= {"stages.h": stages, "ptx.cuh": (EMULATED / "ptx.cuh").read_text(encoding="utf-8")}
    texts["names.h"] = "".join(f"NAME({name})\n" for name in _NAMED.findall(texts["common.cuh"]))
    texts["ends.cuh"] = _STORE.sub(r"store_global_u32(\1, \2);", texts["ends.cuh"])
    return link_kernel(folder, texts, patch, "entry.cpp")


def link_kernel(folder: Path, texts: Mapping[str, str], patch: Patch | None, entry: str) -> Path:
    """Build a kernel's sources, perhaps patched, as a library with a machine of its own, in the new folder ``folder``.

    The parent of ``folder`` holds machine.o. If any worker of the run has compiled the same text before, its result is
    copied: each file that is loaded has memory of its own.
    """
    texts = {name: text if patch is None else patch(name, text) for name, text in texts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    key = hashlib.sha256(repr((entry, sorted(texts.items()))).encode()).hexdigest()

    def link(to: Path) -> None:
        machine = str(folder.parent / "machine.o")
        headers = once("cuda.h.gch", _precompile).parent  # this folder is searched first: a quarter less to compile
        flags = (f"-I{headers}", *_KERNEL_FLAGS, "-include", "cuda.h", f"-I{folder}")
        needed = ("-nodefaultlibs", "-Wl,--no-as-needed", str(once("libstdc++.so", _stand_in)))
        _run("g++", *flags, str(EMULATED / entry), machine, *needed, "-o", str(to))

    return Path(shutil.copy(once(f"{key}.so", link), folder / "kernel.so"))


def _precompile(to: Path) -> None:
    """Compile the header in front of every kernel, with the flags of kernels."""
    _run("g++", *_KERNEL_FLAGS, "-x", "c++-header", str(EMULATED / "cuda.h"), "-o", str(to))


def _stand_in(to: Path) -> None:
    """Make an empty library with the name of C++'s own: the linker takes a fifth of the time of a kernel to read that
    one, and what a kernel needs of it is found when it is loaded.
    """
    _run("g++", "-x", "c++", "-shared", "-nostdlib", "-Wl,-soname,libstdc++.so.6", "/dev/null", "-o", str(to))


def without_products(header: str) -> str:
    """Return a header without wgmma, which the machine implements itself."""
    return _MULTIPLY.sub("", header).replace("template <int> struct Multiply;\n", "")


def compile_machine(folder: Path) -> None:
    """Compile the objects that every kernel is linked with."""

    def link(to: Path) -> None:
        flags = ("-O2", "-ftree-vectorize", "-fvisibility=hidden", "-c")
        _run("g++", *FLAGS, *flags, str(EMULATED / "machine.cpp"), "-o", str(to))

    shutil.copy(once("machine.o", link), folder)


def compiler_missing() -> bool:
    return shutil.which("g++") is None


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]


@dataclass
class HostKernel:
    """A kernel with its tensors in memory. Runs follow each other on the same semaphores, as on a GPU."""

    plan: Plan
    library: Path
    dealer: Dealer = Dealer.LISTS
    pilot: Copilot | None = None

    def __post_init__(self) -> None:
        loaded_library = ctypes.CDLL(str(self.library))
        self._run = loaded_library.run_launches
        self._run.restype = ctypes.c_char_p
        self.tensors: dict[str, torch.Tensor] = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        """Semaphores and counts before the first run."""
        plan = self.plan
        if self.pilot is not None:
            self.pilot.zero_()
            self.beside(self.pilot)
        words = flag_words(plan, self.dealer)
        flags = torch.zeros(words + 32, dtype=torch.int32)
        self._flags = flags[-(flags.data_ptr() // 4) % 32 :][:words]
        self._shared = (
            torch.zeros(1, dtype=torch.int32),
            self._flags,
            torch.zeros(2, dtype=torch.int32),
            torch.zeros(8, dtype=torch.int32),
            *((self.pilot,) if self.pilot is not None else ()),
        )

    def beside(self, pilot: Copilot | None) -> None:
        """The stage whose steps fall anywhere between those of the machine."""
        step, inputs = pilot.stepping if pilot is not None else (None, 0)
        ctypes.CDLL(str(self.library)).run_beside(ctypes.cast(step, ctypes.c_void_p), ctypes.c_void_p(inputs))

    def begin_after(self, runs: int) -> None:
        """Set semaphores and counts as ``runs`` runs leave them."""
        self.begin_anew()
        posts = np.zeros(max(1, self.plan.semaphores), np.int64)
        posts[self.plan.waits[:, 2]] = self.plan.waits[:, 4]
        self._flags[: self.plan.semaphore_bytes // 4 : FLAG_BYTES // 4] = torch.from_numpy(
            (posts * runs).astype(np.uint32).view(np.int32)
        )
        self._shared[2][0] = runs

    def put(self, arguments: Mapping[str, torch.Tensor]) -> None:
        """Allocate inputs, and room for the results of all stages."""
        dtype = next(iter(arguments.values())).dtype
        self.tensors = {}
        for stage in self.plan.stages:
            for view in stage.operator.views().values():
                if view.tensor not in self.tensors:
                    flat = torch.zeros(max(view.elements + view.offset, 1) + 64, dtype=dtype)
                    at = -(flat.data_ptr() // 2) % 64
                    self.tensors[view.tensor] = flat[at : at + view.elements + view.offset]
        bound = [
            {role: self._as_view(view) for role, view in stage.operator.views().items()} for stage in self.plan.stages
        ]
        views = {v.tensor: v for stage in self.plan.stages for v in stage.operator.views().values()}
        for name, tensor in arguments.items():
            self._as_view(views[name]).copy_(tensor)
        launcher: Any = object.__new__(persistent_launch.Launcher)
        launcher.plan = self.plan
        self._bound, self._launcher = bound, launcher

    def _as_view(self, view: View) -> torch.Tensor:
        memory = self.tensors[view.tensor]
        return memory.as_strided(view.shape, view.strides, memory.storage_offset() + view.offset)

    def _arguments(self) -> HostArguments:
        plan = self._launcher.plan
        with (
            mock.patch.object(persistent_launch, "Arguments", HostArguments),
            mock.patch.object(torch.Tensor, "to", lambda self, _device: self),
        ):
            self._launcher.device = torch.device("cpu")
            self._launcher._tables = [_aligned(table) for table in persistent_launch.tables_of(plan, self.dealer)]
            return self._launcher._arguments(self._bound, self._shared)

    def run(self, seed: int) -> str | None:
        """Poison the results of all stages, and run.

        Return the fault that the machine detected, or the wait that timed out, or None.
        """
        self._poison()
        return self._launched([self._arguments()], seed)

    def _poison(self) -> None:
        for bound in self._bound:
            bound["out"].fill_(float("nan"))
        at = self.plan.semaphore_bytes // 4
        for stage in self.plan.stages:
            lines = 2 * stage.operator.tiles * FLAG_BYTES // 4
            self._flags[at + lines : at + stage.partial_bytes // 4] = -1
            at += stage.partial_bytes // 4

    def _launched(self, launches: Sequence[HostArguments], seed: int) -> str | None:
        """Launch after launch, each behind the one before as by programmatic dependent launch."""
        blocks, split = self.plan.clusters * self.plan.split, self.plan.split
        schedule = Schedule.of(seed, len(launches) * blocks, split)
        pointers = (ctypes.c_void_p * len(launches))(*(arguments.pointers[0] for arguments in launches))
        message = self._run(
            pointers, len(launches), blocks, split, ctypes.byref(schedule), ctypes.c_void_p(self._flags.data_ptr()),
            ctypes.c_uint64(self.plan.semaphore_bytes),
        )  # fmt: skip
        if message is None and int(self._shared[3][0]):
            return f"a wait gave up: {self._shared[3].tolist()}"
        return None if message is None else message.decode()

    @property
    def results(self) -> list[torch.Tensor]:
        """Return the result of every stage; a later stage may have overwritten it."""
        return [bound["out"] for bound in self._bound]


class HostLaunches(HostKernel):
    """Plans of one kernel, launched one behind the other by programmatic dependent launch, round after round. Rounds
    have inputs and last results of their own, and share all other memory.
    """

    def __init__(self, plans: Sequence[Plan], library: Path) -> None:
        self.plans = tuple(plans)
        super().__init__(max(plans, key=lambda plan: flag_words(plan, Dealer.LISTS)), library)

    def begin_anew(self) -> None:
        super().begin_anew()
        self._states = [torch.zeros(2, dtype=torch.int32) for _ in self.plans]

    def put_rounds(self, rounds: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Inputs of each round."""
        self._rounds = []
        for inputs in rounds:
            self.put(inputs)
            self._rounds.append(self._bound)
        own = {*rounds[0], self.plan.stages[-1].operator.out.tensor}
        for bound in self._rounds[1:]:
            for stage, here, first in zip(self.plan.stages, bound, self._rounds[0], strict=True):
                here |= {role: first[role] for role, view in stage.operator.views().items() if view.tensor not in own}

    def run(self, seed: int) -> str | None:
        launches, tables = [], []
        seed_word, flags, _, record = self._shared[:4]
        for bound in self._rounds:
            self._bound = bound
            self._poison()
            for plan, state in zip(self.plans, self._states, strict=True):
                self._launcher.plan = plan
                self._shared = (seed_word, flags, state, record)
                launches.append(self._arguments())
                tables.append(self._launcher._tables)  # which the arguments only point to
        return self._launched(launches, seed)

    @property
    def results(self) -> list[torch.Tensor]:
        """Return the last result of each round."""
        return [bound[-1]["out"] for bound in self._rounds]


def _aligned(table: np.ndarray) -> torch.Tensor:
    """Return a copy that begins at a multiple of 64 bytes."""
    flat = torch.zeros(table.size + 16, dtype=torch.int32)
    at = -(flat.data_ptr() // 4) % 16
    flat[at : at + table.size] = torch.from_numpy(table.reshape(-1).astype(np.int32))
    return flat[at : at + table.size]
