# ruff: noqa: INP001, PLC0415, PTH100, PTH120 - runs inside other programs: a script that imports little, and late
"""Runs when a recorded Python program starts, because its folder is first on PYTHONPATH; changes nothing it can see.

Starts what the pass asks for, each a module beside this one that needs nothing but Python, and then the
sitecustomize that this one hides.
"""

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start() -> None:
    if os.environ.get("TILEPROF_TIME"):
        import tileprof_time  # type: ignore[import-not-found]

        tileprof_time.start()
    if os.environ.get("CUDA_INJECTION64_PATH") and os.environ.get("TILEPROF_PASS"):
        import tileprof_profiler  # type: ignore[import-not-found]
        import tileprof_regions  # type: ignore[import-not-found]

        tileprof_regions.start()
        tileprof_profiler.start()
    if os.environ.get("TILEPROF_HOOKS"):
        import tileprof_torch  # type: ignore[import-not-found]

        tileprof_torch.start()


def _hidden() -> None:
    path = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_start()
_hidden()
