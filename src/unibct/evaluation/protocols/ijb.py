"""Two models on IJB-B or IJB-C: embed the faces, pool the templates, run the tests."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from unibct.embedders import open_image_embedder
from unibct.embeddings.forms import PREFIX
from unibct.embeddings.store import STORE_DESCRIPTION, Description, read_description
from unibct.errors import UserError
from unibct.evaluation.blending import MIDPOINT
from unibct.evaluation.evaluation import known_fingerprints
from unibct.evaluation.options import EvaluationOptions
from unibct.evaluation.protocols import is_same
from unibct.evaluation.protocols.ijb_faces import (
    NPY_CONTENT,
    image_embeddings,
    read_face_array,
    read_face_folder,
)
from unibct.evaluation.protocols.ijb_files import Meta, read_meta
from unibct.evaluation.protocols.ijb_tests import IjbEvaluation, evaluate_templates
from unibct.evaluation.templates import Pooled, pool_templates
from unibct.models.embedder import ImageEmbedder
from unibct.models.old_space import known_score_scale

_ARRAY_SUFFIX = ".npy"


class _Side(NamedTuple):
    """A model, or the embeddings of all image rows that stand for it."""

    name: str  # what the user called it
    model: ImageEmbedder | None
    rows: NDArray[Any] | None  # (image rows, dim), if there is no model
    made_by: ImageEmbedder | Description | None  # knows the model's fingerprint

    @property
    def dim(self) -> int:
        """The dimension of its embeddings."""
        if self.model is not None:
            return self.model.dim
        assert self.rows is not None
        return self.rows.shape[1]


def evaluate_on_ijb(
    benchmark: str,
    data: str,
    *,
    old: str | Path | ImageEmbedder,
    new: str | Path | ImageEmbedder,
    options: EvaluationOptions,
    device: str = "auto",
) -> IjbEvaluation:
    """Embed the images, pool the templates and run the tests.

    ``data`` is the folder with ``meta/`` and ``loose_crop/``. The models are model folders, folders
    that ``unibct embed`` wrote for this protocol, or ``.npy`` files that hold the same.
    """
    root = Path(data)
    meta = read_meta(root, benchmark)
    # Embedding takes hours, so both are opened and compared before it begins.
    old_side = _opened(old, meta, benchmark, options, device)
    new_side = old_side if is_same(old, new) else _opened(new, meta, benchmark, options, device)
    if old_side.dim != new_side.dim:
        raise UserError(
            f"{new_side.name} has dimension {new_side.dim} but {old_side.name} has dimension "
            f"{old_side.dim}: one cannot search the other"
        )
    old_templates = _pooled(old_side, root, meta, options)
    same = new_side is old_side
    new_templates = old_templates if same else _pooled(new_side, root, meta, options)
    files = [side.name for side in (old_side, new_side) if side.made_by is None]
    scale = None
    if old_side.model is not None:
        scale = known_score_scale(new_side.model, old_side.model.fingerprint)
    return evaluate_templates(
        meta,
        old=old_templates,
        new=new_templates,
        far=options.far,
        rule=options.threshold_rule,
        seed=options.seed,
        alpha=MIDPOINT if options.alpha is None else options.alpha,
        score_scale=scale,
        fingerprints=known_fingerprints(old=old_side.made_by, new=new_side.made_by),
        note=f"{', '.join(dict.fromkeys(files))}: taken as {NPY_CONTENT}" if files else None,
    )


evaluate_on_ijbc = partial(evaluate_on_ijb, "ijbc")
evaluate_on_ijbb = partial(evaluate_on_ijb, "ijbb")


def _opened(
    given: str | Path | ImageEmbedder,
    meta: Meta,
    benchmark: str,
    options: EvaluationOptions,
    device: str,
) -> _Side:
    """Open a model, or the given embeddings of all image rows."""
    name = str(given).removeprefix(PREFIX) if isinstance(given, (str, Path)) else given.name
    path = Path(name)
    is_array = path.suffix == _ARRAY_SUFFIX
    is_model = not isinstance(given, (str, Path)) or not (
        is_array or (path / STORE_DESCRIPTION).is_file()
    )
    if is_model:
        why = f"the protocol {benchmark} takes a folder that `unibct embed --protocol` wrote"
        model = open_image_embedder(
            name if isinstance(given, (str, Path)) else given, device=device, why=why
        )
        return _Side(name, model, None, model)
    if not options.flip_test:
        raise UserError(
            f"flip_test has no effect on {path}, which holds the sum of both views; give the "
            "model's folder"
        )
    if is_array:
        rows = read_face_array(path, meta, lengths_count=not options.normalize_images)
        return _Side(name, None, rows, None)
    return _Side(name, None, read_face_folder(path, meta, benchmark), read_description(path))


def _pooled(side: _Side, root: Path, meta: Meta, options: EvaluationOptions) -> Pooled:
    """Return the pooled templates of a model or of given embeddings."""
    embeddings: Any = side.rows
    if side.model is not None:
        embeddings = image_embeddings(
            side.model, root, meta, options.cache, flip_test=options.flip_test
        )
    try:
        return pool_templates(
            embeddings,
            meta.templates,
            meta.media,
            scores=meta.scores if options.detector_scores else None,
            media_mean=options.media_mean,
            normalize_images=options.normalize_images,
        )
    except UserError as error:
        raise UserError(f"{side.name}: {error}") from error
