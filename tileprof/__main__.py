"""The start of the command; also ``python -m tileprof``, where no script of it is on the PATH."""

import sys


def main() -> int:
    """Run the command line. An interrupt while it is imported ends it by SIGINT, without a traceback."""
    try:
        from tileprof.cli.entry import main as run  # noqa: PLC0415 - under the handler
    except KeyboardInterrupt:
        sys.excepthook = lambda *_: None
        raise
    return run()


if __name__ == "__main__":
    sys.exit(main())
