"""Tiny models have a score scale in tests.

They put all images into a cone, with cosines of 0.999, where `score_scale` refuses to give one.
Tests are about how a scale is measured, kept, used and shown. The refusal has tests of its own.
"""

import numpy as np

from unibct.embeddings import score_scale

LARGEST_SHIFT = score_scale._LARGEST_SHIFT
score_scale._LARGEST_SHIFT = np.inf
