"""Kernels that slide a window over an image: convolutions, pooling, resampling."""
