"""A co-pilot: a thread of the CPU that hands the tiles of a persistent kernel out while it runs."""
