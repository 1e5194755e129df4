"""Two models on IJB-B or IJB-C: embed the faces, pool the templates, run the tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.embedders import open_image_embedder
from unibct.embeddings.forms import PREFIX
from unibct.embeddings.store import STORE_DESCRIPTION, Description, read_description
from unibct.errors import UserError
from unibct.evaluation.blending import MIDPOINT
from unibct.evaluation.protocols import EvaluationRequest
from unibct.evaluation.protocols.ijb_faces import (
    NPY_CONTENT,
    image_embeddings,
    read_face_array,
    read_face_folder,
)
from unibct.evaluation.protocols.ijb_files import Meta, read_meta
from unibct.evaluation.protocols.ijb_tests import IjbEvaluation, evaluate_templates
from unibct.evaluation.subjects import known_fingerprints
from unibct.evaluation.templates import Pooled, pool_templates
from unibct.models.embedder import ImageEmbedder
from unibct.models.old_space import known_score_scale

Source: TypeAlias = ImageEmbedder | NDArray[Any]

_ARRAY_SUFFIX = ".npy"


def evaluate_on_ijbc(request: EvaluationRequest) -> IjbEvaluation:
    """Evaluate a new model against an old one on IJB-C."""
    return _evaluate(request, "ijbc")


def evaluate_on_ijbb(request: EvaluationRequest) -> IjbEvaluation:
    """Evaluate a new model against an old one on IJB-B."""
    return _evaluate(request, "ijbb")


def _evaluate(request: EvaluationRequest, benchmark: str) -> IjbEvaluation:
    """Embed the images, pool the templates and run the tests.

    The request's ``data`` is the folder with ``meta/`` and ``loose_crop/``. Its ``query`` and
    ``gallery`` are model folders, folders that ``unibct embed`` wrote for this protocol, or
    ``.npy`` files that hold the same.
    """
    meta = read_meta(Path(request.data), benchmark)
    # Embedding takes hours, so both are opened and compared before it begins.
    old_place, new_place = (_place(side) for side in (request.gallery, request.query))
    sources = {
        place: _opened(place, meta, benchmark, request)
        for place in dict.fromkeys((old_place, new_place))
    }
    old_dim, new_dim = (_dim(sources[place]) for place in (old_place, new_place))
    if old_dim != new_dim:
        raise UserError(
            f"{request.query} has dimension {new_dim} but {request.gallery} has dimension "
            f"{old_dim}: one cannot search the other"
        )
    pooled = {place: _pooled(place, source, meta, request) for place, source in sources.items()}
    evaluation = evaluate_templates(
        meta,
        pooled[old_place],
        pooled[new_place],
        far=request.far,
        rule=request.threshold_rule,
        seed=request.seed,
        alpha=MIDPOINT if request.alpha is None else request.alpha,
        score_scale=_score_scale(sources[new_place], sources[old_place]),
    )
    new, old = (_known_model(place, sources[place]) for place in (new_place, old_place))
    evaluation = replace(evaluation, fingerprints=known_fingerprints(query=new, gallery=old))
    files = [place for place in sources if place.endswith(_ARRAY_SUFFIX)]
    if not files:
        return evaluation
    return replace(
        evaluation, note=f"{evaluation.note}; {', '.join(files)}: taken as {NPY_CONTENT}"
    )


def _place(reference: str | Path) -> str:
    """Return a side's reference; the path alone if it holds embeddings."""
    return str(reference).removeprefix(PREFIX)


def _pooled(place: str, source: Source, meta: Meta, request: EvaluationRequest) -> Pooled:
    """Return the pooled templates of a model or of given embeddings."""
    rules = request.pooling
    embeddings: Any = source
    if not isinstance(source, np.ndarray):
        embeddings = image_embeddings(
            source, Path(request.data), meta, request.cache, flip_test=rules.flip_test
        )
    try:
        return pool_templates(
            embeddings,
            meta.templates,
            meta.media,
            scores=meta.scores if rules.detector_scores else None,
            media_mean=rules.media_mean,
            normalize_images=rules.normalize_images,
        )
    except UserError as error:
        raise UserError(f"{place}: {error}") from error


def _score_scale(new: Source, old: Source) -> float | None:
    """Return the new model's score scale for the old one, if both are models."""
    if isinstance(old, np.ndarray):
        return None
    return known_score_scale(new, old.fingerprint)


def _known_model(place: str, source: Source) -> ImageEmbedder | Description | None:
    """Return what tells the model of a side: the model, or the description of its embeddings."""
    if not isinstance(source, np.ndarray):
        return source
    return None if place.endswith(_ARRAY_SUFFIX) else read_description(Path(place))


def _dim(source: Source) -> int:
    return source.shape[1] if isinstance(source, np.ndarray) else source.dim


def _opened(place: str, meta: Meta, benchmark: str, request: EvaluationRequest) -> Source:
    """Return the model, or the given embeddings of all image rows."""
    path = Path(place)
    is_array = path.suffix == _ARRAY_SUFFIX
    if not is_array and not (path / STORE_DESCRIPTION).is_file():
        return open_image_embedder(
            place,
            device=request.device,
            why=f"--protocol {benchmark} takes a folder that `unibct embed --protocol` wrote",
        )
    rules = request.pooling
    if not rules.flip_test:
        raise UserError(
            f"--no-flip-test has no effect on {path}, which holds the sum of both views; "
            "give the model's folder"
        )
    if is_array:
        return read_face_array(path, meta, lengths_count=not rules.normalize_images)
    return read_face_folder(path, meta, benchmark)
