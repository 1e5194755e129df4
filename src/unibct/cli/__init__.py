"""The command line: each command parses its arguments, calls one function and prints.

There is no logic here: everything that a command does can be done from Python as well.
"""

# Importing a module registers its commands. The help lists them in this order.
# isort: off
from unibct.cli import (
    examples,
    data,
    advice,
    models,
    maps,
    evaluation,
    export,
    gallery,
    benchmark,
)
# isort: on

from unibct.cli.entry import main

__all__ = [
    "advice",
    "benchmark",
    "data",
    "evaluation",
    "examples",
    "export",
    "gallery",
    "main",
    "maps",
    "models",
]
