"""Logs of Accel-Sim's tracer (NVBit), or of a simulator that writes their format, as a trace."""

from __future__ import annotations

from tileprof.record.accel_sim.trace import Imported, import_logs

__all__ = ["Imported", "import_logs"]
