"""Whole convolutional networks in one launch: found in an ATen graph, cut into tiles, planned, packed, run."""
