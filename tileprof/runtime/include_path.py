"""The folder of the CUDA headers of the bundled runtime: ``nvcc -I $(python -m tileprof.runtime.include_path) …``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

INCLUDE: Final = Path(__file__).with_name("include")
"""Holds ``tileprof/sync.cuh``, and ``cusync/cusync.h``, through which exported headers use it."""

if __name__ == "__main__":
    sys.stdout.write(f"{INCLUDE}\n")
