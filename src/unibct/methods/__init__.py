"""The compatibility methods: ``table`` lists them, ``base`` says what one is, each has a file.

The formulas live in ``losses`` and ``prototypes``; the training loop names no method.
"""

from unibct.methods.base import Batch, Method, OldKnowledge, Settings
from unibct.methods.table import (
    ABLATIONS,
    DEFAULT_METHOD,
    METHODS,
    NO_METHOD,
    MethodEntry,
    find_method,
)

__all__ = [
    "ABLATIONS",
    "DEFAULT_METHOD",
    "METHODS",
    "NO_METHOD",
    "Batch",
    "Method",
    "MethodEntry",
    "OldKnowledge",
    "Settings",
    "find_method",
]
