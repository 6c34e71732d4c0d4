"""Inductor's program against the one with our kernels: runners, the race, and its verdicts on disk."""
