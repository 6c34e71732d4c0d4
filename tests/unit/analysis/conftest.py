"""Makes the studies that notebooks show importable by the tests of this folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "notebooks"))
