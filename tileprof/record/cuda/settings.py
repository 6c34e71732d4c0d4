"""The settings of the CUDA recorder: validated options, and the environment that carries them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tileprof.errors import UserError
from tileprof.nesting import compile_pattern
from tileprof.record.filter_settings import FilterSettings

PASSES: Final = ("accesses", "filters", "blocks", "time")
"""Names of passes in the order they run. The first one owns the program's stdin, stdout and exit code."""

PATCH: Final = ("need", "load", "range")
"""Times at which code is patched: before the first launch whose accesses do not follow from a kernel's machine code and
parameters, as modules are loaded, or while a captured region lasts."""

_MOST_HASHES: Final = 255
_MOST_BYTES: Final = 1 << 20

SPINNING: Final = (
    r"\bnccl\w*Kernel_",  # NCCL
    r"\bnvshmem|_on_stream_kernel",  # NVSHMEM
    r"\bc10d::\w*(symmetric_memory|intra_node_comm)::|\b(multimem|one_shot|two_shot)_\w*kernel",  # PyTorch
    r"\bcross_device_reduce_",  # vLLM, SGLang
    r"\ballreduce_fusion_kernel_|\b(one|two)Shot\w*Kernel|lamport",  # TensorRT-LLM, FlashInfer
    r"\bdeep_ep::|\bmscclpp::|userbuffers",  # DeepEP, MSCCL++, Transformer Engine
)
"""Kernels, by demangled name, that spin until another GPU, process or a later launch lets them go. They are left as
they are, are never waited for, and count as touching all memory."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a recording with CUDA, beyond those of every recorder.

    ``granule`` is the resolution of recorded addresses in bytes, a power of two; ``arena_bytes`` the device memory for
    records; ``replay`` allows launches to be repeated to learn who stores through tensor maps; ``hooks`` name operators
    and modules inside of PyTorch; without them, ``tensors`` still tells tensors apart, by the history of PyTorch's
    caching allocator; ``kernel`` and
    ``exclude`` are regular expressions over demangled kernel names, and so is ``include``, for kernels that are to be
    recorded although they are among `SPINNING`; ``wait_s`` is how long, in seconds, a launch is waited for before it is
    taken for one that spins, and a tenth of how long nothing may move before the program is ended; ``capture_only``
    records nothing before ``tileprof.capture()`` or ``cudaProfilerStart``; ``nvtx`` records only inside NVTX ranges
    whose name (``name@domain`` in a domain) this regular expression matches, and with ``capture_only`` in both;
    ``patch`` "need" leaves code alone whose launches need no patches, since all that they touch is computed from
    machine code and parameters; where that cannot be (`leaves_unpatched`) it is "load", which patches all code; "range"
    leaves code alone and does not even count launches outside of those, so that the program runs there at its own
    speed, but CUDA graphs made before a region stay
    unseen and are recorded conservatively; ``verify`` compares all device memory
    before and after every launch with what was recorded, slowly; ``raw`` keeps the raw records in this folder; with
    ``filters`` blocks also insert what they touch into Bloom filters, for which ``filter_bytes`` of device memory are
    taken; the pass ``filters`` does nothing but that.
    """

    passes: tuple[str, ...] = ("accesses", "blocks", "time")
    granule: int = 32
    arena_bytes: int = 2 << 30
    replay: bool = True
    hooks: bool = True
    tensors: bool = False
    verify: bool = False
    kernel: str | None = None
    exclude: str | None = None
    include: str | None = None
    wait_s: float = 60.0
    capture_only: bool = False
    nvtx: str | None = None
    patch: str = "need"
    raw: Path | None = None
    filters: FilterSettings | None = None
    filter_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        unknown = [p for p in self.passes if p not in PASSES or (p == "filters" and self.filters is None)]
        if unknown or not self.passes:
            raise UserError(
                "--passes takes some of accesses, blocks, time and, with --filters, filters; it was given "
                f"{', '.join(self.passes) or 'none'}"
            )
        if not 1 <= self.granule <= 4096 or self.granule & (self.granule - 1):
            raise UserError(f"--granule takes a power of two from 1 to 4096, not {self.granule}")
        if self.patch not in PATCH:
            raise UserError(f"--patch takes {', '.join(PATCH[:-1])} or {PATCH[-1]}, not {self.patch}")
        if self.patch == "range" and not self.capture_only and self.nvtx is None:
            raise UserError("--patch range applies to captured regions: give --capture or --nvtx as well")
        if self.filters is not None:
            self._check_filters(self.filters)
        if self.arena_bytes < 1 << 16:
            raise UserError(f"--arena takes at least 65536 bytes, not {self.arena_bytes}")
        if not 0 < self.wait_s < float("inf"):
            raise UserError(f"--wait takes a number of seconds above 0, not {self.wait_s:g}")
        patterns = {"--kernel": self.kernel, "--exclude": self.exclude, "--include": self.include, "--nvtx": self.nvtx}
        for option, pattern in patterns.items():
            try:
                compile_pattern(pattern or "")
            except re.error as error:
                raise UserError(f"{option} {pattern!r} is not a regular expression: {error}") from None

    def _check_filters(self, filters: FilterSettings) -> None:
        if "accesses" not in self.passes:
            raise UserError("--filters needs the accesses pass, whose records say which answers are right")
        if filters.granule < self.granule or filters.granule & (filters.granule - 1):
            raise UserError(
                f"--filters takes a granule that is a power of two and no less than --granule, {self.granule}, not "
                f"{filters.granule}"
            )
        if filters.hashes > _MOST_HASHES or max(filters.granule, filters.bits // 8) > _MOST_BYTES:
            raise UserError(f"--filters takes at most {_MOST_HASHES} hashes and filters and granules of 1 MiB")

    @property
    def leaves_unpatched(self) -> bool:
        """Whether launches may stay without patches: the blocks pass tells when their blocks ran, and no filters are
        filled.
        """
        return self.patch == "need" and {"accesses", "blocks"} <= set(self.passes) and self.filters is None

    @property
    def runs(self) -> list[str]:
        """The passes, in the order in which they run."""
        return [p for p in PASSES if p in self.passes]

    def environment(self, pass_: str, *, skip: int, count: int | None) -> dict[str, str]:
        """Return the variables that tell the injection library what to do in one pass."""
        out = {
            "TILEPROF_PASS": pass_, "TILEPROF_GRANULE": str(self.granule), "TILEPROF_ARENA": str(self.arena_bytes),
            "TILEPROF_REPLAY": str(int(self.replay)), "TILEPROF_CAPTURE": str(int(not self.capture_only)),
            "TILEPROF_WAIT": str(self.wait_s), "TILEPROF_SPINNING": "|".join(SPINNING),
            "TILEPROF_SKIP": str(skip), "TILEPROF_VERIFY": str(int(self.verify)),
            "TILEPROF_PATCH": "range" if self.patch == "range" else "load",
        }  # fmt: skip
        out |= {"TILEPROF_COUNT": str(count)} if count is not None else {}
        if self.filters is not None and pass_ in {"accesses", "filters"}:
            sizes = self.filters.bits, self.filters.hashes, self.filters.granule
            out["TILEPROF_FILTERS"] = ",".join(map(str, sizes))
            out["TILEPROF_FILTER_BYTES"] = str(self.filter_bytes)
        out |= {"TILEPROF_KERNEL": self.kernel} if self.kernel else {}
        out |= {"TILEPROF_INCLUDE": self.include} if self.include else {}
        out |= {"TILEPROF_NVTX": self.nvtx or ".*"} if self.nvtx is not None else {}
        return out | ({"TILEPROF_EXCLUDE": self.exclude} if self.exclude else {})
