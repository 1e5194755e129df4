"""A warning about entries of a data set that a reader passes over, such as images of other types.

They are no error, but whoever wonders where their images are should not have to count.
"""

import multiprocessing
import warnings
from collections.abc import Sequence

from unibct.progress import is_first_process


class PassedOverWarning(UserWarning):
    """Some entries of a data set are not read."""


def warn_of_passed_over(set_name: str, entries: Sequence[str], reason: str) -> None:
    """Warn once, in the first process, that entries are not read; nothing if there are none."""
    if not entries or not is_first_process() or multiprocessing.parent_process() is not None:
        return
    count = f"{len(entries)} entries are" if len(entries) > 1 else "1 entry is"
    text = f"{set_name}: {count} passed over, first {min(entries)}: {reason}"
    warnings.warn(text, PassedOverWarning, stacklevel=2)
