"""What every tile model stands on: rectangles to bytes, kernels in the making, overrides of the user."""
