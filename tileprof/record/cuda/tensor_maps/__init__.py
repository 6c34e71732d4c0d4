"""Loads and stores through tensor maps, whose bytes no callback reports: decoded from coordinates, or inferred."""
