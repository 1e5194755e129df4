"""`lce` (Meng et al., ICCV 2021): new embeddings within a cone, class weights at its axis."""

from torch import Tensor

from unibct.distributed.class_shards import ClassPart
from unibct.errors import UserError
from unibct.losses.class_weight_gap import class_weight_gap
from unibct.losses.cone import angles, outside_cone
from unibct.losses.unit_rows import unit_rows
from unibct.methods.base import Batch, Method, OldKnowledge, Settings

_ROWS = 65_536  # old embeddings that are read at a time


class Lce(Method):
    """Keeps each new embedding as near to its class's old mean as the farthest old one is.

    The class weights of the new classifier are pulled to these means. Each rank holds the means
    and largest angles of its own classes only.
    """

    def __init__(self, old: OldKnowledge, settings: Settings) -> None:
        self._centres = old.prototypes("centroid", settings)
        self._largest = _largest_angles(old, self._centres)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean angle outside the cones plus the mean gap of the class weights."""
        if batch.class_weights is None:
            raise UserError("lce needs class_weights, those of your classifier: give them too")
        centres = batch.in_use(self._centres)
        outside = outside_cone(
            batch.embeddings,
            batch.labels,
            batch.part or ClassPart(len(centres)),
            centres=centres,
            largest=batch.in_use(self._largest),
        )
        # A classifier of the user's own may have more classes than the training set.
        class_weights = batch.class_weights[: len(centres)]
        return outside + class_weight_gap(class_weights, centres, ranks=batch.ranks)


def _largest_angles(old: OldKnowledge, centres: Tensor) -> Tensor:
    """Return the largest angle between an old embedding and its class's centre: (own classes,)."""
    own_classes = old.own_classes
    rows = ((old.labels >= own_classes.start) & (old.labels < own_classes.stop)).nonzero()[:, 0]
    largest = centres.new_zeros(len(own_classes))
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        classes = old.labels[some] - own_classes.start
        vectors = unit_rows(old.rows(some)).to(centres.dtype)
        largest.scatter_reduce_(0, classes, angles(vectors, centres[classes]), "amax")
    return largest
