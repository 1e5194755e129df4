"""What unibct itself wrote: `model:` a model folder, and `embeddings:` stored embeddings."""

from pathlib import Path

from unibct.distributed.device import pick_device
from unibct.embedders import Opener, Reference
from unibct.embeddings.forms import read_embeddings, recognised_form
from unibct.embeddings.store import Embeddings
from unibct.embeddings.stored import StoredEmbeddings, named_fingerprint, usable_embeddings
from unibct.errors import UserError
from unibct.models.model import Model
from unibct.models.model_folder import MODEL_DESCRIPTION, load_model
from unibct.models.old_space import OldSpaceModel


def is_model_folder(path: Path) -> bool:
    """Return whether a path is a model folder."""
    return (path / MODEL_DESCRIPTION).is_file()


def open_model_folder(reference: Reference, opener: Opener) -> Model | OldSpaceModel:
    """Load the model; with ``?space=old`` its embeddings are projected into the old space."""
    model = load_model(
        reference.path,
        device=pick_device(str(opener.device)),
        with_classifier=opener.with_classifier,
    )
    space = reference.options.get("space", "own")
    if space not in ("own", "old"):
        raise UserError(f"{reference.text}: unknown space {space!r}; choose old or own")
    return model if space == "own" else OldSpaceModel(model)


def is_stored(path: Path) -> bool:
    """Return whether a path holds embeddings in a form that unibct reads."""
    return recognised_form(path) is not None


def open_stored_embeddings(reference: Reference, _: Opener) -> StoredEmbeddings:
    """Read the embeddings, in place of the model that made them, and check every row."""
    stored = read_embeddings(reference.path)
    if "model" in reference.options:
        named = named_fingerprint(reference.options["model"], stored.vectors.shape[1])
        stored = stored.changed(fingerprint=named)
    return StoredEmbeddings(reference.text, usable_embeddings(stored, reference.place))


def open_stored(reference: str | Path) -> Embeddings:
    """Return stored embeddings, checked, with rows of length 1; anything else is refused."""
    opened = Opener("cpu").open(reference)
    if not isinstance(opened, StoredEmbeddings):
        raise UserError(f"{reference} is a model; embed the images first: unibct embed")
    return opened.embeddings
