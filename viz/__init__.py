"""Pages that show a tile graph: the launch graph, the tile matrix of a pair, and the lanes of SMs over time."""

from tileprof.viz.page import page

__all__ = ["page"]
