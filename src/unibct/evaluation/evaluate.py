"""The one call that tests a new model against an old one, on any data."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.evaluation.certificate import Certificate, require_file
from unibct.evaluation.evaluation import Evaluation, UpgradeEvaluation
from unibct.evaluation.options import OPTION_NAMES, EvaluationOptions, chosen_options
from unibct.evaluation.protocols import AUTO, EMBEDDINGS_OPTIONS, PROTOCOLS, recognised_protocol
from unibct.evaluation.upgrade import evaluate_embeddings

IMAGES = "images"  # the protocol that a certificate needs: a gallery's rows are single images


class UncertifiedError(UserError):
    """Raised if an evaluation is finished, but no certificate can be made of it or written."""

    def __init__(self, message: str, evaluation: Evaluation) -> None:
        super().__init__(message)
        self.evaluation = evaluation  # the finished one


def evaluate(
    data: Any = None,
    *,
    old: Any,
    new: Any,
    protocol: str = AUTO,
    certify: str | Path | None = None,
    device: str = "auto",
    options: EvaluationOptions | None = None,
    **changes: Any,
) -> Evaluation:
    """Test whether a new model can search an old model's gallery.

    Args:
        data: an image set or its name, a ``.bin`` pair set, or a folder with IJB meta files. For
            two arrays or ``Embeddings`` the labels, (images,) integers 0…C-1; by default those of
            the embeddings.
        old: the old model: whatever ``open_embedder`` opens, a model, or its (images, dim)
            vectors as an array or ``Embeddings``.
        new: the new model, likewise.
        protocol: a name from ``PROTOCOLS``; by default it is recognised from the data.
        certify: a file for the certificate of the upgrade; on images with classes only.
        device: ``auto``, ``cpu``, ``cuda``, …
        options: see ``EvaluationOptions``.
        changes: options by their names, such as ``far=0.01``. For vectors also what
            ``evaluate_embeddings`` takes.

    Raises:
        UncertifiedError: no certificate is written; the error has the finished evaluation.
    """
    if not isinstance(data, (str, Path, ImageSet)):
        if certify is not None:
            raise UserError("arrays do not say which models made them: evaluate models to certify")
        changed = [*changes, *([] if options is None else options.changed())]
        names = [one for one in OPTION_NAMES if one in changed]
        _require_taken(names, EMBEDDINGS_OPTIONS, "two models' vectors")
        return evaluate_embeddings(data, old=old, new=new, options=options, **changes)
    chosen = chosen_options(options, changes)
    name = IMAGES if isinstance(data, ImageSet) else recognised_protocol(str(data), protocol)
    _require_taken(chosen.changed(), PROTOCOLS[name].takes, f"the protocol {name}")
    if certify is not None:
        if name != IMAGES:
            raise UserError(
                f"certify has no effect on the protocol {name}: a gallery's rows are single "
                f"images; certify on images with classes, the protocol {IMAGES}"
            )
        require_file(Path(certify))
    entry = PROTOCOLS[name]
    given = data if isinstance(data, ImageSet) else str(data)
    run = entry.load(entry.home)
    evaluation = run(given, old=old, new=new, options=chosen, device=device)
    if certify is not None:
        assert isinstance(evaluation, UpgradeEvaluation)
        try:
            Certificate.of(evaluation).write(certify)
        except (UserError, OSError) as error:
            message = f"{certify}: no certificate is written: {error}"
            raise UncertifiedError(message, evaluation) from error
    return evaluation


def _require_taken(changed: Iterable[str], taken: Collection[str], what: str) -> None:
    """Refuse options that a protocol would ignore."""
    for option in changed:
        if option not in taken:
            others = [name for name, entry in PROTOCOLS.items() if option in entry.takes]
            raise UserError(
                f"{option} has no effect on {what}; it is for {', '.join(others)} only. "
                "Leave it out"
            )
