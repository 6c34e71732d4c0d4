"""``python -m tileprof.cli``: the command line under an interpreter and interpreter options of one's choice."""

import sys

from tileprof.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
