"""The start and the end of the command line: arguments, errors and exit codes."""

import io
import re
import sys
import time
import warnings
from typing import Any

import typer
from typer.main import get_command

from unibct.cli.options import app
from unibct.data.image_set import PassedOverWarning
from unibct.errors import UserError
from unibct.progress import is_first_process

UsageError: Any = typer.BadParameter.__bases__[0]  # of click, which typer keeps within itself
_OTHERS_WAIT = 3.0  # seconds, see _fail
# Arguments of Python that the library's messages name, and whose flags are called otherwise.
_FLAGS = {"skip_bad": "--skip-bad-images", "a list of images": "--images"}
_INTERRUPTED = 130  # exit code after Ctrl-C


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Bad input gives one line on standard error and exit code 2."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without → must not stop a job
            stream.reconfigure(errors="replace")
    warnings.showwarning = _show_warning
    if "--version" in words:
        from importlib.metadata import version

        print(f"unibct {version('unibct')}")
        return
    try:
        status = app(args=words or ["--help"], prog_name="unibct", standalone_mode=False)
    except UserError as error:
        if debug:
            raise
        _fail(_with_flags(str(error), words), 2)
    except OSError as error:
        if debug:
            raise
        place = f"{error.filename}: " if error.filename else "reading or writing failed: "
        _fail(f"{place}{error.strerror or error}", 2)
    except UsageError as error:
        if debug:
            raise
        message = error.format_message()
        if message.startswith("Usage:"):  # a group of commands without a command: its help
            return main([*words, "--help"])
        _fail(f"{message} (see {_where_help_is(error, words)})".replace("\n", " "), 2)
    else:
        if status == _INTERRUPTED:
            _fail("stopped; run the same command again to continue (train: with --resume)", status)
        sys.exit(status if isinstance(status, int) else 0)


def _command_of(words: list[str]) -> tuple[Any, str]:
    """Return the command that the words of the command line name, and how it is called."""
    command: Any = get_command(app)
    path = "unibct"
    for word in words:
        if word not in getattr(command, "commands", {}):
            break
        command, path = command.commands[word], f"{path} {word}"
    return command, path


def _with_flags(message: str, words: list[str]) -> str:
    """Write the arguments that a message of the library names as flags of the command.

    It names them as ``force=True`` or ``(force)``, and some in ``_FLAGS`` as they are.
    """
    for flag in [name for one in _command_of(words)[0].params for name in one.opts]:
        argument = flag.lstrip("-").replace("-", "_")
        message = re.sub(rf"\b{argument}=True\b|(?<=\(){argument}(?=\))", flag, message)
    for argument, flag in _FLAGS.items():
        message = re.sub(rf"(?<![\w./-]){argument}(?![\w./-])", flag, message)  # not in a path
    return message


def _where_help_is(error: Exception, words: list[str]) -> str:
    """Return the command whose help explains a wrong option; a setting is written otherwise."""
    command, path = _command_of(words)
    help_command = f"{path} --help"
    option: str = getattr(error, "option_name", "")
    known = [name for parameter in command.params for name in parameter.opts]
    if "--set" in known and option not in known:
        from unibct.training.recipe import Recipe

        setting = option.lstrip("-").replace("-", "_")
        if setting in Recipe.model_fields:
            return f"{help_command}; it is a setting: --set {setting}=VALUE"
    return help_command


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object
) -> None:
    """Print a warning of ours in one line, and any other as Python does."""
    if issubclass(category, PassedOverWarning):
        print(f"note: {message}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def _fail(message: str, code: int) -> None:
    """Print an error and exit."""
    if not is_first_process():
        # Usually the first process fails with the same message, and torchrun then ends this one.
        time.sleep(_OTHERS_WAIT)
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
