"""Launches the plain kernels of known_kernels.py: ``python source_program.py ADDRESSES.json``, with no
recorder in it.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.gpu.source.known_kernels import CASES, GPU_CASES, SOURCE, on_the_gpu
from tileprof.record.source.gpu import Gpu
from tileprof.record.source.machine import Place, Program, scalar

gpu = Gpu()
text = SOURCE.read_text()
addresses, alive = [], []
for case in CASES + GPU_CASES:
    kernel = gpu.compile(Program(text, SOURCE.name, case.kernel), record=False)
    arguments = [on_the_gpu(a) if isinstance(a, np.ndarray) else a for a in case.arguments]
    pointers = [a.data_ptr() if hasattr(a, "data_ptr") else None for a in arguments]
    values = [
        scalar(a if p is None else np.uint64(p), size, case.kernel)
        for a, p, size in zip(arguments, pointers, kernel.sizes, strict=True)
    ]
    grid, block = ((*d, 1, 1)[:3] for d in (case.grid, case.block))
    kernel.run(Place(grid, block), values, [])
    alive.append((kernel, arguments))  # nothing is unloaded, so no address is used twice
    addresses.append([p for p in pointers if p is not None])
Path(sys.argv[1]).write_text(json.dumps(addresses))
