"""Who looks for regions, in order: nodes that a finder has taken are left alone by those after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import fx

from tileprof.runtime.compile.region import Finder, Region


def _decoders(graph: fx.Graph) -> Iterator[Region]:
    from tileprof.runtime.decode.find import decoders  # noqa: PLC0415 - it imports this package

    return decoders(graph)


FINDERS: Final[tuple[Finder, ...]] = (_decoders,)
"""One line per family of models. Chains of products are looked for last, by `tileprof.runtime.compile.products`."""
