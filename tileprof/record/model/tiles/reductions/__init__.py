"""Kernels that reduce or scan along dimensions: sums, scans, softmax, norms."""
