"""Kernels without a reduction: element-wise operators, copies, random numbers, losses, optimisers."""
