"""Compiles sources into a library that a test loads into its own process."""

from __future__ import annotations

from collections.abc import Sequence

SHARED = ("-shared", "-fPIC", "-fno-gnu-unique")
"""Flags of g++.

Without the last one, `inline` variables are unique per process: two libraries that use one name for different things
would share it, even if they are loaded separately, and the second would crash while it is loaded.
"""


def less_optimised(flags: Sequence[str], optimisation: str = "-Og") -> tuple[str, ...]:
    """Return flags of a build for users with fewer optimisations, for code that a test runs for a moment only."""
    assert {"-O2", "-O3"} & {*flags}
    return tuple(optimisation if flag in {"-O2", "-O3"} else flag for flag in flags)
