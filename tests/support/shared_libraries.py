"""Compiles sources into a library that a test loads into its own process."""

SHARED = ("-shared", "-fPIC", "-fno-gnu-unique")
"""Flags of g++.

Without the last one, `inline` variables are unique per process: two libraries that use one name for different things
would share it, even if they are loaded separately, and the second would crash while it is loaded.
"""
