"""Recording Triton kernels through Triton's interpreter."""
