"""Dependencies between tiles, and what they are worth: everything that is computed from a trace alone.

The folders analysis and viz are installed, and always imported, as tileprof.analysis and tileprof.viz.
"""

from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.analysis.dependencies.graph import TileGraph, build_graph

__all__ = ["EdgeBlock", "TileGraph", "build_graph"]
