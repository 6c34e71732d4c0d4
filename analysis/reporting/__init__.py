"""The facts of a trace as values: what limits it, its repeated layers, the gain of each pair, and advice."""
