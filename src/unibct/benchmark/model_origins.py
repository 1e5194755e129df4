"""Whether a job's model was made from the models that it is tested with.

The same command does not give the same weights on every machine. So an old model that was trained
again, or that comes from another benchmark, may not be the one that a stored model was made for.
"""

from dataclasses import replace
from pathlib import Path

from unibct.benchmark.jobs import Job
from unibct.benchmark.workspace import MODEL, RESULT_FILE, Workspace, is_finished
from unibct.errors import UserError
from unibct.files import read_json
from unibct.models.folder import load_model
from unibct.models.folder_files import DESCRIPTION_FILE


def model_elsewhere(workspace: Workspace, job: Job) -> Path | None:
    """Return where another benchmark has finished this job with its model, if it has.

    A model that was made from other models than those of this benchmark is not taken. Where this
    benchmark has none yet, those of the other one count.
    """
    elsewhere = workspace.models_from
    if elsewhere is None or not is_finished(elsewhere, job):
        return None
    folder = elsewhere / job.folder
    if not (folder / MODEL / DESCRIPTION_FILE).is_file():
        return None
    other = _other_model(job, folder / MODEL, (workspace.out, elsewhere), maps=True)
    return folder if other is None else None


def require_model_origins(out: Path, job: Job, *, maps: bool = True) -> None:
    """Raise an error if a job's model was made from other models than it is tested with.

    Args:
        out: the benchmark's folder.
        job: a finished job, or one with its model.
        maps: check too whether a map was fitted to today's free model, which loads its weights.
    """
    other = _other_model(job, out / job.folder / MODEL, (out,), maps=maps)
    if other is not None:
        raise UserError(
            f"{out / job.folder} was made for another model than the one that {other} has now; "
            f"remove {out / job.folder} and run the benchmark again"
        )


def _other_model(job: Job, model: Path, roots: tuple[Path, ...], *, maps: bool) -> str | None:
    """Return the job whose model is not the one from which a stored model was made, if any.

    Args:
        job: whose model it is.
        model: the model's folder; nothing is known of a model that is no longer there.
        roots: the benchmark's folder, then where else the models may be that the job needs.
        maps: check the free model of a map too.
    """
    making = job.training or job.map_fitting
    if making is None or making.old is None or not (model / DESCRIPTION_FILE).is_file():
        return None
    made_for = read_json(model / DESCRIPTION_FILE).get("old_model")
    if made_for is not None and made_for != _fingerprint(roots, making.old, made_for):
        return making.old
    if maps and job.map_fitting is not None:
        mapped = _mapped_fingerprint(model)
        if mapped != _fingerprint(roots, job.map_fitting.new, mapped):
            return job.map_fitting.new
    return None


def _fingerprint(roots: tuple[Path, ...], folder: str, unknown: str | None) -> str | None:
    """Return the fingerprint of a job's model, or ``unknown`` if no result tells it."""
    for root in roots:
        if (root / folder / RESULT_FILE).is_file():
            return read_json(root / folder / RESULT_FILE).get("fingerprint", unknown)
    return unknown


def _mapped_fingerprint(folder: Path) -> str | None:
    """Return the fingerprint that a model with a map has without it; None without a map."""
    model = load_model(folder, with_classifier=False)
    if model.vector_map is None:
        return None
    return replace(model, vector_map=None, dim=model.vector_map.new_dim).fingerprint
