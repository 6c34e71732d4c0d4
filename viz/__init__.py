"""Pages that show a tile graph: launches, the tiles of a pair, the lanes of SMs over time, and what schedulers would
gain.
"""

from tileprof.viz.address import link
from tileprof.viz.comparisons import Study, study
from tileprof.viz.page import page
from tileprof.viz.tables.policy_overlay import Overlay, PairOverlay
from tileprof.viz.variants import Variant, variants

__all__ = ["Overlay", "PairOverlay", "Study", "Variant", "link", "page", "study", "variants"]
