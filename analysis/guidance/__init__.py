"""Turns facts into a decision: a verdict on the program, the ladder of schedules, ranked actions, and a division of the
time.
"""

from tileprof.analysis.guidance.guide import guide
from tileprof.analysis.guidance.ladder import simulated_times
from tileprof.analysis.guidance.values import Action, Guidance, Rung, Share, Verdict

__all__ = ["Action", "Guidance", "Rung", "Share", "Verdict", "guide", "simulated_times"]
