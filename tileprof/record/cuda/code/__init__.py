"""Machine code of kernels: what its instructions compute, and which memory they touch."""
