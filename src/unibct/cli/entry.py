"""Where the command line begins and ends: arguments, errors, exit codes."""

import io
import sys
import time

from unibct.cli.options import app
from unibct.errors import UserError
from unibct.progress import is_first_process

_OTHERS_WAIT = 3.0  # seconds
_INTERRUPTED = 130  # what a command returns on Ctrl-C


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input is one line on standard error and exit code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without → must not stop a job
    if given == ["--version"]:
        from importlib.metadata import version

        print(f"unibct {version('unibct')}")
        return
    try:
        status = app(args=given or ["--help"], prog_name="unibct", standalone_mode=False)
    except UserError as error:
        if debug:
            raise
        _fail(str(error), 2)
    except OSError as error:
        if debug:
            raise
        place = f"{error.filename}: " if error.filename else "reading or writing failed: "
        _fail(f"{place}{error.strerror or error}", 2)
    except Exception as error:
        show = getattr(error, "format_message", None)  # a wrong option or argument
        if debug or show is None:
            raise
        _fail(f"{show()} (unibct --help explains)".replace("\n", " "), 2)
    else:
        if status == _INTERRUPTED:
            _fail("stopped; the same command goes on from here (train: with --resume)", status)
        sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, code: int) -> None:
    if not is_first_process():
        time.sleep(_OTHERS_WAIT)  # the first process mostly says the same, and ends us all
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
