"""Schedulers run on a recorded tile graph: a discrete-event engine at tile granularity."""

from tileprof.analysis.simulate.duration_models import MODELS, RECORDED, life_model
from tileprof.analysis.simulate.schedulers import SCHEDULERS, scheduler
from tileprof.analysis.simulate.simulator import Schedule, Simulator
from tileprof.analysis.simulate.sweeps.sweep import Source, Sweep, curve, fleet, sweep_of

__all__ = [
    "MODELS",
    "RECORDED",
    "SCHEDULERS",
    "Schedule",
    "Simulator",
    "Source",
    "Sweep",
    "curve",
    "fleet",
    "life_model",
    "scheduler",
    "sweep_of",
]
