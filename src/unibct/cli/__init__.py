"""The command line: each command parses, calls one function and prints.

No logic lives here: what a command does can be done from Python as well.
"""

from unibct.cli import (  # they register their commands
    benchmark,
    data,
    evaluation,
    examples,
    models,
)
from unibct.cli.entry import main
from unibct.cli.options import ADAPTER_NAMES, METHOD_NAMES, SCENARIO_NAMES

__all__ = [
    "ADAPTER_NAMES",
    "METHOD_NAMES",
    "SCENARIO_NAMES",
    "benchmark",
    "data",
    "evaluation",
    "examples",
    "main",
    "models",
]
