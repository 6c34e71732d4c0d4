"""Durations that another profiler measured, put into a trace whose accesses are modelled."""

from __future__ import annotations

from tileprof.record.times.attach import Attached, attach_times
from tileprof.record.times.sources import KernelTimes, read_times

__all__ = ["Attached", "KernelTimes", "attach_times", "read_times"]
