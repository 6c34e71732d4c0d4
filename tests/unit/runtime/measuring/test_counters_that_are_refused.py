"""The script that reads hardware counters says which call was refused, and by which library."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "gpu" / "measuring" / "arithmetic"))

import hardware_counters

FAKE = r"""
extern "C" int cuptiProfilerInitialize(void*) { return 35; }
extern "C" int cuptiGetResultString(int, const char** text) { return *text = "not allowed", 0; }
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_call_that_the_driver_refuses_is_named(tmp_path, monkeypatch):
    """The headers are CUPTI's; the library refuses the first call."""
    source, library = tmp_path / "cupti.cpp", tmp_path / "libcupti.so"
    source.write_text(FAKE)
    if not hardware_counters.headers():
        pytest.skip("needs CUPTI's headers")
    hardware_counters.compile_library([], source, library)
    monkeypatch.setattr(hardware_counters, "cupti_of_torch", lambda: str(library))

    with pytest.raises(hardware_counters.CountersError, match=r"cuptiProfilerInitialize.* result 35 \(not allowed\)"):
        hardware_counters.HardwareCounters(hardware_counters.METRICS.values())


def test_a_missing_library_is_named():
    with pytest.raises(hardware_counters.CountersError, match="libcupti-of-nobody"):
        hardware_counters.load("/libcupti-of-nobody.so")
