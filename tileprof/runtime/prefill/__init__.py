"""Prefill of LLaMA-like decoders: up to 64 rows of tokens through all layers in one launch."""
