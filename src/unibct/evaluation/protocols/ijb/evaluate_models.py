"""Two models on IJB-B or IJB-C: embed the faces, pool the templates, run the tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from unibct.distributed.device import pick_device
from unibct.embeddings.layout import DESCRIPTION_FILE
from unibct.errors import UserError
from unibct.evaluation.protocols.ijb.faces import image_embeddings
from unibct.evaluation.protocols.ijb.meta import Meta, read_meta
from unibct.evaluation.protocols.ijb.stored_faces import (
    NPY_CONTENT,
    read_face_array,
    read_face_folder,
)
from unibct.evaluation.protocols.ijb.template_tests import IjbEvaluation, evaluate_templates
from unibct.evaluation.protocols.request import EvaluationRequest
from unibct.evaluation.templates import Pooled, pool_templates
from unibct.models.folder import load_model
from unibct.models.model import Model

Source: TypeAlias = Model | NDArray[Any]

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
    sources = {
        path: _opened(path, meta, benchmark, request)
        for path in dict.fromkeys((request.gallery, request.query))
    }
    old_dim, new_dim = (_dim(sources[path]) for path in (request.gallery, request.query))
    if old_dim != new_dim:
        raise UserError(
            f"{request.query} has dimension {new_dim} but {request.gallery} has dimension "
            f"{old_dim}: one cannot search the other"
        )
    pooled = {path: _pooled(path, source, meta, request) for path, source in sources.items()}
    evaluation = evaluate_templates(
        meta,
        pooled[request.gallery],
        pooled[request.query],
        far=request.far,
        rule=request.threshold_rule,
        seed=request.seed,
    )
    files = [str(path) for path in sources if path.suffix == _ARRAY_SUFFIX]
    if not files:
        return evaluation
    return replace(
        evaluation, note=f"{evaluation.note}; {', '.join(files)}: taken as {NPY_CONTENT}"
    )


def _pooled(path: Path, source: Source, meta: Meta, request: EvaluationRequest) -> Pooled:
    """Return the pooled templates of a model or of given embeddings."""
    rules = request.pooling
    embeddings = source
    if isinstance(source, Model):
        embeddings = image_embeddings(
            source,
            Path(request.data),
            meta,
            request.cache,
            flip_test=rules.flip_test,
            progress=request.progress,
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
        raise UserError(f"{path}: {error}") from error


def _dim(source: Source) -> int:
    return source.dim if isinstance(source, Model) else source.shape[1]


def _opened(path: Path, meta: Meta, benchmark: str, request: EvaluationRequest) -> Source:
    """Return the model in a folder, or the given embeddings of all image rows."""
    is_array = path.suffix == _ARRAY_SUFFIX
    if not is_array and not (path / DESCRIPTION_FILE).is_file():
        return load_model(path, device=pick_device(request.device))
    rules = request.pooling
    if not rules.flip_test:
        raise UserError(
            f"--no-flip-test has no effect on {path}, which holds the sum of both views; "
            "give the model's folder"
        )
    if is_array:
        return read_face_array(path, meta, lengths_count=not rules.normalize_images)
    return read_face_folder(path, meta, benchmark)
