"""Every impostor score of a small test."""

import numpy as np

from unibct.arrays import Floats
from unibct.evaluation.impostors import Impostors


def all_scores(impostors: Impostors) -> Floats:
    """Return the scores query by query."""
    return np.concatenate([b.others[b.others > -np.inf] for b in impostors.table.blocks()])
