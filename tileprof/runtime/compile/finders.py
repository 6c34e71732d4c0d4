"""Who looks for regions, in order: nodes that a finder has taken are left alone by those after it."""

from __future__ import annotations

from typing import Final

from tileprof.runtime.compile.region import Finder

FINDERS: Final[tuple[Finder, ...]] = ()
"""One line per family of models. Chains of products are looked for last, by `tileprof.runtime.compile.products`."""
