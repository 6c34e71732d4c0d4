"""tileprof: see, bound and use the dependencies between thread blocks of different GPU kernels.

``load`` reads a trace; ``capture`` limits what a recorded program records. Importing tileprof imports neither
torch nor CUDA nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tileprof.record.capture import capture
    from tileprof.trace import Trace, load

__version__ = "0.1.0"
__all__ = ["Trace", "capture", "load"]

_HOMES = {"Trace": "tileprof.trace", "capture": "tileprof.record.capture", "load": "tileprof.trace"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tileprof' has no attribute {name!r}")
