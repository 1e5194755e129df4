"""The error that users of unibct are meant to see, and others' errors in one line."""


class UserError(ValueError):
    """Bad input. The message says in one line what is wrong, where, and what to do.

    The command line prints the message without a traceback and exits with code 2. The class
    derives from ``ValueError``, so callers of the Python API can catch it without an import.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, or the error's name if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
