"""Bloom filters of what tiles touch: simulated ones, and those that thread blocks filled while they ran."""
