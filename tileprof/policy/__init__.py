"""Policies: the format, their synthesis from recorded dependencies, verification, and export to other tools."""
