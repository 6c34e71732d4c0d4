"""Schedulers run on a recorded tile graph: a discrete-event engine at tile granularity."""

from tileprof.analysis.simulate.schedulers import SCHEDULERS, scheduler
from tileprof.analysis.simulate.simulator import Schedule, Simulator
from tileprof.analysis.simulate.sweep import Source, Sweep, curve, sweep_of

__all__ = ["SCHEDULERS", "Schedule", "Simulator", "Source", "Sweep", "curve", "scheduler", "sweep_of"]
