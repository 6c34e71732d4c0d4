"""Stage operators as Triton kernels with posts and waits; what is not used is compiled away."""
