# ruff: noqa: INP001, PLC0415, SLF001 - runs inside other programs: a script that imports little, and late
"""A program that profiles itself with PyTorch's profiler: CUPTI, which that uses, and Compute Sanitizer do not share a
process.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

TEXT = (
    "the program profiles itself (torch.profiler with CUDA activities). CUPTI serves one tool in a process, and none "
    "beside Compute Sanitizer: the program's own profile lacks CUDA times while it is recorded, and durations of the "
    "time pass may be missing. Switch the profiler off for the recording"
)


def start() -> None:
    """Say so when it does; nothing is changed."""
    from tileprof_after import after_import  # type: ignore[import-not-found]

    after_import("torch.autograd.profiler", follow)


def follow(module: Any) -> None:
    """Every profiler of PyTorch's is prepared here, ``emit_nvtx``, which needs no CUPTI, not."""
    prepare = module._prepare_profiler
    announced: list[bool] = []

    def prepare_and_say(config: Any, activities: Any, *rest: Any, **options: Any) -> Any:
        if not announced and any(activity.name == "CUDA" for activity in activities):
            announced.append(True)
            library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
            library.tileprof_event(json.dumps({"e": "complaint", "text": TEXT})[1:-1].encode())
        return prepare(config, activities, *rest, **options)

    module._prepare_profiler = prepare_and_say
