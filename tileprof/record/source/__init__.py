"""The source recorder: kernels whose source is at hand, compiled against loads and stores that record themselves.

    from tileprof.record.source import Recording

    with Recording("out") as recording:                       # or machine="host": no GPU needed
        scale = recording.compile(Path("scale.cu"), "scale")
        recording.launch(scale, grid, block, x, y, n)

``native/tileprof.cuh`` is what the kernels include; ``native/README.md`` says how, also with CuPy and PyTorch
extensions. It serves GPUs that the CUDA recorder does not (sm_70), and stands witness for it: both must see the same
bytes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tileprof.record.source.machine import INCLUDE

if TYPE_CHECKING:
    from tileprof.record.filter_settings import FilterSettings
    from tileprof.record.source.recording import Filtered, Kernel, Recording, Settings

__all__ = ["INCLUDE", "FilterSettings", "Filtered", "Kernel", "Recording", "Settings"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = "filter_settings" if name == "FilterSettings" else "source.recording"
        return getattr(import_module(f"tileprof.record.{home}"), name)
    raise AttributeError(name)
