"""The one error that is meant for the person who uses unibct."""


class UserError(ValueError):
    """Bad input: the message says what is wrong, where, and what to do, in one line.

    The command line prints it without a traceback and exits with 2. It is a ``ValueError``,
    so that callers of the Python API need no import to catch it.
    """
