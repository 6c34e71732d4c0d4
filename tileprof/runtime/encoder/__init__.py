"""Layers of a transformer over rows of tokens as one persistent launch: products with norms and epilogues folded in,
attention, residual sums.
"""
