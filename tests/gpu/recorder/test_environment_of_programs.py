"""What the programs that the GPU tests start find in their environment; this needs no GPU."""

import subprocess
import sys


def test_programs_compile_the_kernels_that_the_suite_interprets():
    read = "import os; print(os.environ.get('TRITON_INTERPRET', '0'))"
    assert subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True).stdout == "0\n"
