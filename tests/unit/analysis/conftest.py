"""Makes the builders of this folder, and the studies that notebooks show, importable by its tests."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "notebooks")]
