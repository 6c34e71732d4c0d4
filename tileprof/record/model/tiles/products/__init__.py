"""Matrix products: operators, tile shapes, kernels, split-k."""
