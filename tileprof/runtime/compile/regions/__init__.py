"""Parts of an ATen graph that a kernel of this package computes: found, cut out, and run in a program."""
