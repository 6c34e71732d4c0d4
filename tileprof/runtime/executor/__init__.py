"""Policies executed on a CPU, tile by tile, in whatever order they allow: races and deadlocks show where no GPU is.

Touches (what each tile reads and writes) become a `Memory` of cells; a policy becomes a `Program` of posts and waits;
`execute` runs the one over the other in one order, and `search` tries the orders that show errors.
"""

from tileprof.runtime.executor.executable import Program
from tileprof.runtime.executor.execute import Deadlock, Execution, Missing, execute
from tileprof.runtime.executor.memory import Memory, Race
from tileprof.runtime.executor.orders import Order, delaying, latest_first, orders, randomly, reversed_, stream
from tileprof.runtime.executor.search import Findings, search
from tileprof.runtime.executor.touches import Touches, recorded_touches, recycled

__all__ = [
    "Deadlock",
    "Execution",
    "Findings",
    "Memory",
    "Missing",
    "Order",
    "Program",
    "Race",
    "Touches",
    "delaying",
    "execute",
    "latest_first",
    "orders",
    "randomly",
    "recorded_touches",
    "recycled",
    "reversed_",
    "search",
    "stream",
]
