"""Tile-level synchronisation on a device: semaphores, the tables that say who awaits which, and the two device
functions that use them.
"""
