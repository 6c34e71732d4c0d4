"""tileprof: see, bound and use the dependencies between thread blocks of different GPU kernels.

``load`` reads a trace; ``record`` writes one from Python, ``capture`` limits what a recorded program records. Importing
tileprof imports neither torch nor CUDA nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tileprof import record
    from tileprof.api import LoadedTrace, Summary, load
    from tileprof.record.capture import capture
    from tileprof.trace import Trace

__version__ = "0.1.0"
__all__ = ["LoadedTrace", "Summary", "Trace", "capture", "load", "record"]

_HOMES = {
    "LoadedTrace": "tileprof.api",
    "Summary": "tileprof.api",
    "Trace": "tileprof.trace",
    "capture": "tileprof.record.capture",
    "load": "tileprof.api",
}


def __getattr__(name: str) -> Any:
    if name == "record":
        return import_module("tileprof.record")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tileprof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext tileprof`` gives the cell magic ``%%tileprof``."""
    from tileprof.notebook import register  # noqa: PLC0415 - for notebooks only

    register(shell)
