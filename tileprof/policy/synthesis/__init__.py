"""Policies from tile graphs, from cuSync and from dependencies written by hand, and what a model expects of them."""
