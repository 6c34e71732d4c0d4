"""Turns facts into a decision: a verdict on the program, times of schedules, ranked actions, and a division of the
time.
"""

from tileprof.analysis.guidance.guide import guide
from tileprof.analysis.guidance.values import Action, Guidance, ScheduleTime, Share, Verdict
from tileprof.analysis.guidance.whole_schedules import simulated_times

__all__ = ["Action", "Guidance", "ScheduleTime", "Share", "Verdict", "guide", "simulated_times"]
