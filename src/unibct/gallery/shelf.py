"""The models of a gallery: kept in its folder, so that queries can be made as long as it lives."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct.distributed.device import pick_device
from unibct.embedders.python_callable import PythonEmbedder
from unibct.embedders.reference import parse_reference
from unibct.embedders.table import EMBEDDERS, Opening
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.files import sync
from unibct.gallery.state import RowMaker
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.folder import load_model, save_model
from unibct.models.folder_files import DESCRIPTION_FILE
from unibct.models.model import Model
from unibct.models.old_space import OldSpaceModel, old_space_dim, to_old_space

MODELS_FOLDER = "models"
IN_FOLDER, BY_REFERENCE, ONLY_STORED, BY_MAP = "folder", "reference", "stored", "map"


def describe_model(reference: str, opening: Opening) -> tuple[RowMaker, Embedder]:
    """Open a model, and return what the state of a gallery says about it.

    Args:
        reference: a model folder, ``onnx:FILE``, ``python:MODULE:ATTRIBUTE`` or
            ``embeddings:PATH``.
        opening: how it is opened.
    """
    embedder = opening.open(reference)
    if isinstance(embedder, OldSpaceModel):
        embedder = embedder.model
    source, kept_reference = IN_FOLDER, ""
    if isinstance(embedder, StoredEmbeddings):
        source = ONLY_STORED
    elif not isinstance(embedder, Model):
        source, kept_reference = BY_REFERENCE, _absolute(reference)
    fingerprint = embedder.fingerprint
    name = str(reference)
    maker = RowMaker(fingerprint, name, embedder.dim, source, kept_reference, fingerprint)
    return maker, embedder


def keep_model(folder: Path, embedder: Embedder) -> None:
    """Copy a model folder into a gallery's folder; other models are opened where they are.

    Of a ``python:`` embedder, what tells it from others is kept.
    """
    if isinstance(embedder, PythonEmbedder) and embedder.probe is not None:
        embedder.probe.keep(folder, embedder.fingerprint)
    place = folder / MODELS_FOLDER / embedder.fingerprint
    if isinstance(embedder, Model) and not (place / DESCRIPTION_FILE).is_file():
        save_model(embedder, place)
        sync(place.parent)


@dataclass(frozen=True)
class QueryModel:
    """A model that makes queries, and rows.

    Attributes:
        maker: what the state says about it.
        embedder: the model.
    """

    maker: RowMaker
    embedder: ImageEmbedder

    def view(self, vectors: NDArray[np.float32], row_dim: int) -> NDArray[np.float32]:
        """Return this model's vectors as queries for rows of a dimension.

        If a model was trained with another dimension than its old model, its projection is used.
        """
        return query_view(self.embedder, vectors, row_dim, self.maker.name)


def query_view(
    embedder: Any, vectors: NDArray[np.float32], row_dim: int, name: str
) -> NDArray[np.float32]:
    """Return a model's vectors in the space of rows of a dimension, see ``QueryModel.view``."""
    if vectors.shape[1] == row_dim:
        return vectors
    if isinstance(embedder, Model) and old_space_dim(embedder) == row_dim:
        return cast("NDArray[np.float32]", to_old_space(embedder, vectors))
    raise UserError(
        f"{name} makes vectors of dimension {vectors.shape[1]} and has no projection into "
        f"dimension {row_dim}, which the rows have"
    )


def open_maker(folder: Path, maker: RowMaker, opening: Opening) -> ImageEmbedder:
    """Open a model of the gallery, and check that it is still the same."""
    if maker.source == ONLY_STORED:
        raise UserError(
            f"only embeddings of {maker.name} are known to this gallery, not the model: "
            "give embeddings instead of images"
        )
    if maker.source == BY_MAP:
        raise UserError(f"{maker.name} is a map: it makes rows from rows, not from images")
    if maker.source == IN_FOLDER:
        embedder: Any = load_model(
            folder / MODELS_FOLDER / maker.fingerprint, device=pick_device(str(opening.device))
        )
    else:
        embedder = opening.open(maker.reference)
    if embedder.fingerprint != maker.fingerprint:
        raise UserError(
            f"{maker.name} has changed: its fingerprint is {embedder.fingerprint}, and this "
            f"gallery knows it as {maker.fingerprint}" + _hint(maker)
        )
    return embedder


def _hint(maker: RowMaker) -> str:
    """Say what to do about a callable that only seems to have changed."""
    if not maker.reference.startswith("python:"):
        return ""
    return f"; if it is the same, let it say so: fingerprint = {maker.fingerprint!r}"


def _absolute(reference: str) -> str:
    """Return a reference whose path does not depend on the current folder."""
    parsed = parse_reference(reference, EMBEDDERS)
    if not parsed.path.exists():
        return reference
    start = reference.index(parsed.place)
    end = start + len(parsed.place)
    return f"{reference[:start]}{parsed.path.resolve()}{reference[end:]}"
