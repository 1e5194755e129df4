"""The folder of a run: what an earlier run left there, and what goes when the model is finished."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from unibct.distributed.ranks import Ranks
from unibct.files import remove_temporaries, require_absent
from unibct.models.folder import CLASSIFIER_FILE, DESCRIPTION_FILE, WEIGHTS_FILE
from unibct.training.checkpoints import find_checkpoint, remove_checkpoints
from unibct.training.metrics import METRICS_FILE
from unibct.training.training_set_embeddings import NEW_EMBEDDINGS, OLD_EMBEDDINGS

_MODEL_FILES = (METRICS_FILE, WEIGHTS_FILE, CLASSIFIER_FILE, DESCRIPTION_FILE)
# What a run that was stopped in its first epoch may leave besides parts of a checkpoint.
_LEFTOVERS = (OLD_EMBEDDINGS, NEW_EMBEDDINGS, "logs")


@dataclass(frozen=True)
class EarlierRun:
    """What a run that is resumed finds in its folder.

    Attributes:
        finished: whether the model is there already.
        checkpoint: the checkpoint to continue from, if there is one.
    """

    finished: bool = False
    checkpoint: Path | None = None


def find_earlier_run(out: Path, *, resume: bool, ranks: Ranks) -> EarlierRun:
    """Look for an earlier run in ``out``, the same on every rank.

    A folder that holds anything else is refused, and so is an earlier run unless ``resume``.
    """
    if resume and ranks.first:
        remove_temporaries(out, _MODEL_FILES)
    if resume and ranks.broadcast_numbers((out / DESCRIPTION_FILE).is_file())[0]:
        return EarlierRun(finished=True)
    checkpoint = find_checkpoint(out, ranks) if resume else None
    if checkpoint is None:
        _require_only_leftovers(out)
    return EarlierRun(checkpoint=checkpoint)


def remove_working_files(out: Path, ranks: Ranks) -> None:
    """Remove what a finished run no longer needs: checkpoints and cached embeddings."""
    if ranks.first:
        remove_checkpoints(out)
        for name in (OLD_EMBEDDINGS, NEW_EMBEDDINGS):
            shutil.rmtree(out / name, ignore_errors=True)


def remove_failed_run(out: Path, ranks: Ranks) -> None:
    """Remove the folder of a run that failed before its first checkpoint."""
    if ranks.first and find_checkpoint(out) is None:
        shutil.rmtree(out, ignore_errors=True)


def _require_only_leftovers(out: Path) -> None:
    names = [path.name for path in out.iterdir()] if out.is_dir() else []
    foreign = [n for n in names if n not in _LEFTOVERS and not n.startswith(".checkpoint-")]
    if out.is_file() or foreign:
        require_absent(out)
