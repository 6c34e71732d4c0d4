"""``python -m tileprof``: the command line, where no script of it is on the PATH."""

import sys

from tileprof.cli import main

if __name__ == "__main__":
    sys.exit(main())
