"""`bct` (Shen et al., CVPR 2020): ArcFace on the old classifier's class weights."""

import torch

from unibct.errors import UserError
from unibct.methods.base import OldKnowledge, Settings
from unibct.methods.frozen_class_vectors import FrozenClassVectors
from unibct.methods.known_classes import require_known_classes


class Bct(FrozenClassVectors):
    """The old classifier's class weights. They exist only for classes that the old model knows."""

    def __init__(self, old: OldKnowledge, settings: Settings) -> None:
        super().__init__(settings)
        if old.old_class_weights is None:
            raise UserError(
                "bct needs the old classifier, but the old model's folder has no "
                "classifier.safetensors; use unibct"
            )
        require_known_classes(old.old_class_names, old.class_names)
        old_row = {name: row for row, name in enumerate(old.old_class_names)}
        rows = torch.tensor([old_row[old.class_names[i]] for i in old.own_classes])
        self._class_vectors = old.old_class_weights[rows].to(old.labels.device)
