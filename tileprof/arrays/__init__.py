"""The arithmetic on columns that every room shares: ragged rows, intervals, strided boxes, grids. Needs numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
