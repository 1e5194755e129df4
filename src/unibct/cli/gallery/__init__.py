"""The commands of `unibct gallery`: a file per group of them.

As everywhere in the command line, a command parses, calls one function and prints.
"""

# Importing a module registers its commands. The help lists them in this order.
# isort: off
from unibct.cli.gallery import rows, search, upgrade, state, page
# isort: on

__all__ = ["page", "rows", "search", "state", "upgrade"]
