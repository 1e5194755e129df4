"""The class weights that a run starts from."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unibct.distributed.ranks import ALONE, Ranks
from unibct.models.model import Model

_CHUNK = 1 << 16  # rows that are drawn at a time


def initial_class_weights(classes: int, dim: int, seed: int, own_classes: range) -> Tensor:
    """Draw (own classes, dim) rows of a (classes, dim) matrix that depends only on the seed.

    The matrix is drawn in chunks, so that no rank holds all of it.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.empty(len(own_classes), dim)
    for begin in range(0, classes, _CHUNK):
        chunk = torch.randn(min(_CHUNK, classes - begin), dim, generator=generator) * 0.01
        low = max(begin, own_classes.start)
        high = min(begin + len(chunk), own_classes.stop)
        if low < high:
            own_rows = slice(low - own_classes.start, high - own_classes.start)
            weights[own_rows] = chunk[low - begin : high - begin]
    return weights


def copy_known_classes(
    class_weights: Tensor,
    class_identities: Sequence[str],
    own_classes: range,
    old: Model,
    ranks: Ranks = ALONE,
) -> None:
    """Overwrite the rows of classes that the old model knows with its class weights.

    Args:
        class_weights: (own classes, dim) changed in place.
        class_identities: those of all new classes, see ``ImageSet.class_identities``.
        own_classes: the classes whose rows these are.
        old: the old model; without class weights nothing is copied.
        ranks: the ranks that share the classes.
    """
    old_class_weights = class_weights_on_every_rank(old, class_weights.device, ranks)
    if old_class_weights is None:
        return
    old_rows = {identity: row for row, identity in enumerate(old.class_identities)}
    known = [i for i in own_classes if class_identities[i] in old_rows]
    own_rows = [i - own_classes.start for i in known]
    with torch.no_grad():
        old_weights = old_class_weights[[old_rows[class_identities[i]] for i in known]]
        class_weights[own_rows] = old_weights.to(class_weights)


def class_weights_on_every_rank(old: Model, device: torch.device, ranks: Ranks) -> Tensor | None:
    """Return the old class weights. Those of a model just trained are on the first rank only."""
    if not ranks.any(old.class_weights is None, device):
        return old.class_weights
    known = ranks.broadcast_numbers(0 if old.class_weights is None else 1)[0]
    if not known:
        return None
    whole = torch.empty(len(old.class_identities), old.dim, device=device)
    if old.class_weights is not None:
        whole.copy_(old.class_weights)
    return ranks.broadcast_from_first(whole)
