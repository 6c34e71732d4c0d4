"""Schedulers run on a recorded tile graph: a discrete-event engine at tile granularity."""

from tileprof.analysis.simulate.schedulers import SCHEDULERS, scheduler
from tileprof.analysis.simulate.simulator import Schedule, Simulator

__all__ = ["SCHEDULERS", "Schedule", "Simulator", "scheduler"]
