"""Kernels that take addresses from values: indexing, gathers, compactions, embeddings."""
