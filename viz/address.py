"""Addresses of a page: what its address bar says, and how to link to a launch, a pair, a view or a scheduler.

A page keeps its selection in the fragment of its address, so that a reload restores it and a copied address shows a
colleague the same thing. The fragment is a list of ``name=value``, ``&`` between them, in any order; what this trace
does not have selects nothing, and names that a page does not know are ignored. ::

    #launch=3                         a launch, by its number in the trace
    #pair=3,5                         a pair: producer, consumer (they must depend on each other)
    #tile=5,17                        a tile: launch, tile
    #chain=3,5,6                      with a pair: the launches of the tile graph, ascending
    #view=matrix|tiles|tensor|gain|sizes
                                      the upper right view: pairs and their tiles (as without), tile graph, tensor,
                                      gain, what if
    #beside=cusync                    the scheduler whose timeline is beside the recorded one; in a served page also
    with options,
                                      cusync:window=4
    #if=cusync:poll_ns=1400@132,0     the what-if setting: scheduler, options, SMs, resident blocks per SM (0: as
    recorded); a file
                                      has what its sliders reach, a served page anything
    #time=1200                        the moment kept in the timeline, ns
    #open=0.1                         groups of repeated layers that are open, by their place in the fold
    #search=gemm%20op:addmm           words to search for; kernel:, op: and module: look in one of the three names
"""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from urllib.parse import quote

from tileprof.errors import UserError

VIEWS = {"pairs": "matrix", "tiles": "tiles", "tensor": "tensor", "gain": "gain", "what-if": "sizes"}
"""Views by name, and what the address bar calls them."""


def link(
    page_path: str | PathLike[str],
    *,
    launch: int | None = None,
    pair: tuple[int, int] | None = None,
    view: str | None = None,
    scheduler: str | None = None,
) -> str:
    """Return the address of a page with something selected: ``file:`` for a path, or a served page's own.

    ``launch`` and ``pair`` (producer, consumer) are launches of the trace; ``view`` one of `VIEWS`; ``scheduler`` is
    shown beside the recorded timeline. Raises `UserError` for an unknown view, or for a launch outside the pair.
    """
    if view is not None and view not in VIEWS:
        raise UserError(f"there is no view {view!r}; the views are {', '.join(VIEWS)}")
    if launch is not None and pair is not None and launch not in pair:
        raise UserError(f"launch {launch} is not one of the pair {pair[0]}, {pair[1]}: select one or the other")
    parts = {
        "launch": None if launch is None else str(launch),
        "pair": None if pair is None else f"{pair[0]},{pair[1]}",
        "view": None if view is None else VIEWS[view],
        "beside": scheduler,
    }
    fragment = "&".join(f"{name}={quote(value, safe=':,=@')}" for name, value in parts.items() if value)
    text = fspath(page_path)
    base = text if text.startswith(("http://", "https://")) else Path(text).resolve().as_uri()
    return f"{base}#{fragment}" if fragment else base
