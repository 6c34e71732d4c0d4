"""Convolutions: how they are called, captured, and turned into the trees of the model recorder."""
