"""The finders of regions, in order: nodes that a finder has taken are left alone by those after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import fx

from tileprof.runtime.compile.regions.region import Finder, Region


def whole_decoders(graph: fx.Graph) -> Iterator[Region]:
    """See `tileprof.runtime.decode.decoder_regions`, which imports this package."""
    from tileprof.runtime.decode.decoder_regions import decoders  # noqa: PLC0415

    yield from decoders(graph)


def whole_prefills(graph: fx.Graph) -> Iterator[Region]:
    """See `tileprof.runtime.prefill.prefill_regions`, which imports this package."""
    from tileprof.runtime.prefill.prefill_regions import prefills  # noqa: PLC0415

    yield from prefills(graph)


def convolutional_networks(graph: fx.Graph) -> Iterator[Region]:
    """See `tileprof.runtime.convnet.network_matcher`, which imports this package."""
    from tileprof.runtime.convnet.network_matcher import find  # noqa: PLC0415

    yield from find(graph)


def transformer_blocks(graph: fx.Graph) -> Iterator[Region]:
    """See `tileprof.runtime.encoder.block_regions`, which imports this package."""
    from tileprof.runtime.encoder.block_regions import find  # noqa: PLC0415

    yield from find(graph)


FINDERS: Final[tuple[Finder, ...]] = (whole_decoders, whole_prefills, convolutional_networks, transformer_blocks)
"""One line per family of models. Chains of products are looked for last, by `products`.

A family is registered once its tests under tests/gpu have passed: a fault on the device would end the user's process,
whatever the race compares.
"""
