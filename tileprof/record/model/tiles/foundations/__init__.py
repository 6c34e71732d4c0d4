"""The foundation of every tile model: rectangles to bytes, kernels in the making, overrides of the user."""
