"""The one exception that means "the user can mend this"; every other exception is a bug of tileprof."""


class UserError(Exception):
    """An error that its user can mend. The message says what happened to which file, launch or tile, the value seen and
    the value expected, and what to type next.

    The command line prints the message without a traceback and exits with ``exit_code``.
    """

    exit_code = 2


class TraceError(UserError):
    """A path that is not a trace, a trace of another version, or one that breaks a rule of the format."""
