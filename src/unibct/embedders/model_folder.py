"""`model:` a model folder that unibct wrote; the kind may be left out."""

from pathlib import Path

from unibct.distributed.device import pick_device
from unibct.embedders import Opening, Reference
from unibct.errors import UserError
from unibct.models.model import Model
from unibct.models.model_folder import MODEL_DESCRIPTION, load_model
from unibct.models.old_space import OldSpaceModel


def recognises(path: Path) -> bool:
    """Return whether a path is a model folder."""
    return (path / MODEL_DESCRIPTION).is_file()


def open_reference(reference: Reference, opening: Opening) -> Model | OldSpaceModel:
    """Load the model; with ``?space=old`` its embeddings are projected into the old space."""
    model = load_model(
        reference.path,
        device=pick_device(str(opening.device)),
        with_classifier=opening.with_classifier,
    )
    space = reference.options.get("space", "own")
    if space not in ("own", "old"):
        raise UserError(f"{reference.text}: unknown space {space!r}; choose old or own")
    return model if space == "own" else OldSpaceModel(model)
