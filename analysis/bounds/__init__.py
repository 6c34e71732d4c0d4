"""Times that no schedule can beat, beside what a simple one achieves; see `Bounder` and `ASSUMPTIONS`."""

from tileprof.analysis.bounds.assumptions import ANY, ASSUMPTIONS
from tileprof.analysis.bounds.bounder import MOST_LISTED_TILES, Bounder, Bounds, share_saved
from tileprof.analysis.bounds.durations import MEASURED, MODELLED, ROOFLINE, SPREAD, Durations
from tileprof.analysis.bounds.machine import RESOURCES, Machine, machine_of

__all__ = [
    "ANY",
    "ASSUMPTIONS",
    "MEASURED",
    "MODELLED",
    "MOST_LISTED_TILES",
    "RESOURCES",
    "ROOFLINE",
    "SPREAD",
    "Bounder",
    "Bounds",
    "Durations",
    "Machine",
    "machine_of",
    "share_saved",
]
