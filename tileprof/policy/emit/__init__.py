"""Policies and graphs in the formats of other tools. Every emitter returns texts; `folder` writes them, whole or not at
all.
"""
