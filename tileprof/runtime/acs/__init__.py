"""Kernels of an unmodified program out of order, on several streams (Durvasula et al., arXiv:2401.12377, "ACS").

`build` compiles the library that is preloaded into the program; `table` makes the footprint table that it reads from
what a recording and logs of launches say (`instances`, `varying`); `session` runs programs with it.
"""

from __future__ import annotations

from tileprof.runtime.acs.acs_build import build
from tileprof.runtime.acs.instances import instances
from tileprof.runtime.acs.launch_log import Logged, read_log, read_stack
from tileprof.runtime.acs.session import Mode, Settings, environment, results
from tileprof.runtime.acs.table import Instance, Table, tabulate
from tileprof.runtime.acs.varying import counterparts, repeats

__all__ = [
    "Instance",
    "Logged",
    "Mode",
    "Settings",
    "Table",
    "build",
    "counterparts",
    "environment",
    "instances",
    "read_log",
    "read_stack",
    "repeats",
    "results",
    "tabulate",
]
