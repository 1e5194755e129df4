"""Blended queries: the old and the new embedding of a query, for a search of old rows."""

from typing import Any

from unibct.arrays import checked_embeddings, normalized, require_same_dim, same_kind
from unibct.errors import UserError

ALPHA = 0.75  # the share of the new query, unless another one is asked for


def blended(old_queries: Any, new_queries: Any, alpha: float = ALPHA) -> Any:
    """Return normalise((1 − α)·old + α·new), to be searched among old rows.

    Two encoders run for each query. The errors of the two are partly independent, so that the
    blend often searches old rows better than either of them.

    Args:
        old_queries: (queries, dim) the old model's, NumPy or torch, of any length.
        new_queries: (queries, dim) the new model's of the same images, in the old space.
        alpha: α, the share of the new query, from 0 (old) to 1 (new).

    Returns:
        (queries, dim) of length 1, of the kind of ``new_queries``.
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha lies in [0, 1], not {alpha}")
    old = normalized(checked_embeddings(old_queries, "old_queries"))
    new = normalized(checked_embeddings(new_queries, "new_queries"))
    require_same_dim(old, "old_queries", new, "new_queries")
    if len(old) != len(new):
        raise UserError(f"{len(old)} old queries and {len(new)} new queries do not match")
    mixed = (1 - alpha) * old + alpha * new
    return same_kind(normalized(mixed.astype(new.dtype, copy=False)), new_queries)
