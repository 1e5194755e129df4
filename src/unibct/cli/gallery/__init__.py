"""The commands of `unibct gallery`, a file for each group: they parse, call a function and print.

What the commands do does not live here but in ``gallery``, the page of `serve` in ``gallery/page``.
"""

# Importing a module registers its commands. The help lists them in this order.
# isort: off
from unibct.cli.gallery import rows, search, upgrade, state, page
# isort: on

__all__ = ["page", "rows", "search", "state", "upgrade"]
