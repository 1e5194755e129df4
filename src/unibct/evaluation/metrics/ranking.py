"""How well a whole ranking is ordered: average precision over an image-level gallery."""

import numpy as np

from unibct.arrays import Floats, Ints

_SCORES_AT_ONCE = 4_000_000


def average_precisions(
    query: Floats, query_labels: Ints, gallery: Floats, gallery_labels: Ints
) -> Floats:
    """Return each query's average precision over the ranking of all gallery images.

    The average precision is the mean, over the query's mates, of the share of mates among the
    images down to that mate. An image of another class that scores exactly as high as a mate
    counts as better, so the order of the gallery does not matter.

    Args:
        query: (queries, dim) normalised.
        query_labels: (queries,).
        gallery: (images, dim) normalised; no query is among them.
        gallery_labels: (images,), with at least one mate for each query.

    Returns:
        (queries,) in (0, 1].
    """
    precisions = np.empty(len(query))
    block = max(1, _SCORES_AT_ONCE // len(gallery))
    for start in range(0, len(query), block):
        scores = query[start : start + block] @ gallery.T
        mates = query_labels[start : start + block, None] == gallery_labels
        others = np.sort(np.where(mates, -np.inf, scores), axis=1)
        for row in range(len(scores)):
            mate_scores = np.sort(scores[row, mates[row]])[::-1]
            others_before = len(gallery) - np.searchsorted(others[row], mate_scores, side="left")
            mates_so_far = np.arange(1, len(mate_scores) + 1)
            precisions[start + row] = np.mean(mates_so_far / (mates_so_far + others_before))
    return precisions
