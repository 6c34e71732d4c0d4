"""Facts that were measured on GPUs (`tileprof.harvest`), as tables that tile models look problems up in.

How a tile model uses a table::

    table = tables.table("products", device)          # None where this GPU was not measured
    row = table.row((op, dtype, m, n, k)) if table else None
    if row is not None:                               # this very problem was measured
        kernels = ...                                 # built from table.columns["..."][row]
        return with_source(kernels, ShapeSource.TABLE)
    row = table.nearest(...)                          # a problem like it: ShapeSource.NEIGHBOUR
    ...                                               # else today's rule; kernels say RULE by themselves

A kernel whose duration is known sets ``launch_ns`` and ``time_source``; all others get the roofline's.

A table is a file ``<gpu>/<family>-<library>-<version>.npz`` beside this module (``h200/products-cublas-13.1.npz``),
made by a script under ``tests/gpu/harvest`` from a harvest's slices (`write`). It holds for the GPU it was measured
on and no other: also a GPU with the same chip (H100 and H200) has other memory, so other times. README.md beside this
module says how each was made.
"""

from tileprof.record.model.tables.file import Table, read, write
from tileprof.record.model.tables.places import table
from tileprof.record.model.tables.provenance import with_source

__all__ = ["Table", "read", "table", "with_source", "write"]
