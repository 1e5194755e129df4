"""The command line: each command parses, calls one function and prints.

No logic lives here: what a command does can be done from Python as well.
"""

from unibct.cli import benchmark, data, evaluation, examples, models  # they register commands
from unibct.cli.entry import main

__all__ = ["benchmark", "data", "evaluation", "examples", "main", "models"]
