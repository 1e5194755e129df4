"""`model:` a model folder that unibct wrote; the kind may be left out."""

from pathlib import Path

from unibct.embedders.reference import Reference
from unibct.embedders.table import Opening
from unibct.models.folder import DESCRIPTION_FILE, load_model
from unibct.models.model import Model


def recognises(path: Path) -> bool:
    """Return whether a path is a model folder."""
    return (path / DESCRIPTION_FILE).is_file()


def open_reference(reference: Reference, opening: Opening) -> Model:
    """Load the model."""
    return load_model(
        reference.path, device=opening.device, with_classifier=opening.with_classifier
    )
