"""Sources compiled into a library that a test loads into its own process."""

SHARED = ("-shared", "-fPIC", "-fno-gnu-unique")
"""Flags of g++. Without the last one, `inline` variables are unique per process: two libraries that give one name to
different things share it, even if they are loaded apart, and the second crashes as it is loaded.
"""
