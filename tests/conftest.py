"""What holds for the whole suite."""

import os

# Triton decides at import whether kernels are interpreted, and whichever test imports torch first may import it.
os.environ["TRITON_INTERPRET"] = "1"
