"""Make a certificate from a finished evaluation; ``certificate.py`` is the document itself."""

from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from unibct.errors import UserError
from unibct.evaluation.directions import BLEND, CROSS, NEW_SELF, OLD_SELF
from unibct.evaluation.metrics.verification import strict_thresholds
from unibct.evaluation.protocols.request import EvaluationRequest
from unibct.evaluation.protocols.table import AUTO, evaluate_data, recognised_protocol
from unibct.evaluation.resolution import REPORTED_FARS, carried_fars
from unibct.evaluation.score_map import FEWEST_ACCEPTED, fit_score_map
from unibct.evaluation.search_test import SearchTest
from unibct.evaluation.subjects import Subjects
from unibct.evaluation.upgrade import Evaluation, UpgradeEvaluation
from unibct.gallery.calibration_choice import choose_calibration
from unibct.gallery.certificate import FORMAT, Certificate, require_file, sealed
from unibct.gallery.mixed_test import TwoKinds

PROTOCOL = "images"


class UncertifiedError(UserError):
    """Raised if an evaluation is finished, but no certificate can be made of it or written.

    Attributes:
        evaluation: the finished evaluation.
    """

    def __init__(self, message: str, evaluation: UpgradeEvaluation) -> None:
        super().__init__(message)
        self.evaluation = evaluation


def evaluate_and_certify(
    request: EvaluationRequest, path: str | Path | None, *, protocol: str = AUTO
) -> tuple[Evaluation, Certificate | None]:
    """Evaluate a new model against an old one, and write the certificate of the upgrade.

    Args:
        request: the data, the two models, and the options.
        path: where to write the certificate; None to evaluate only.
        protocol: a name from ``PROTOCOLS``, or ``auto``. A certificate needs ``images``: a
            gallery's rows are single images.

    Raises:
        UncertifiedError: no certificate is written; the error has the finished evaluation.
    """
    if path is None:
        return evaluate_data(request, protocol), None
    name = recognised_protocol(request.data, protocol)
    if name != PROTOCOL:
        raise UserError(
            f"--certify has no effect on --protocol {name}: a gallery's rows are single images; "
            f"certify on images with classes, --protocol {PROTOCOL}"
        )
    require_file(Path(path))
    evaluation = evaluate_data(request, protocol)
    assert isinstance(evaluation, UpgradeEvaluation)
    try:
        certificate = certify(evaluation, seed=request.seed)
        certificate.write(path)
    except (UserError, OSError) as error:
        raise UncertifiedError(f"{path}: no certificate is written: {error}", evaluation) from error
    return evaluation, certificate


def certify(
    evaluation: UpgradeEvaluation,
    *,
    subjects: Subjects | None = None,
    seed: int = 0,
    date: datetime | None = None,
) -> Certificate:
    """Return the certificate of a finished evaluation, whatever its verdict is.

    Args:
        evaluation: of image sets; its tests keep the embeddings of queries and gallery.
        subjects: the models and the data; by default what the evaluation says about them.
        seed: draws the halves of the classes that choose and check the calibration.
        date: by default now. Nothing else in the document changes from one time to the next.
    """
    subjects = subjects or evaluation.subjects
    if subjects is None:
        raise UserError(
            "arrays do not say which models made them: evaluate models or their embeddings "
            "(unibct.evaluate_data), or give subjects="
        )
    single = evaluation.single_images
    images, tests = single.searches, single.tests
    choices = {
        direction: choose_calibration(TwoKinds(images[direction], images[NEW_SELF]), seed=seed)
        for direction in (CROSS, OLD_SELF, BLEND)
    }
    old_impostor = tests[OLD_SELF].impostor
    fars = [f"{far:g}" for far in carried_fars(evaluation.split.compared_classes)[::-1]]
    return sealed(
        {
            "format": FORMAT,
            "unibct": metadata.version("unibct"),
            "date": (date or datetime.now(UTC)).isoformat(timespec="seconds"),
            **subjects.as_json(),
            "verdict": evaluation.single_images_verdict,
            "template_verdict": evaluation.verdict,
            "classes": evaluation.seen.as_json(),
            "metrics": _metrics(evaluation),
            "gallery": "images",
            "pairs": _pairs(tests, evaluation),
            "image_metrics": single.as_json() | {"verdict": evaluation.single_images_verdict},
            "thresholds": _thresholds(tests),
            "carried_fars": fars,
            "score_map": {
                direction: fit_score_map(tests[direction].impostor, old_impostor).as_json()
                for direction in (CROSS, NEW_SELF, BLEND)
            },
            "calibration": choices.pop(CROSS).as_json(),
            "further_calibrations": {name: choice.as_json() for name, choice in choices.items()},
            "blend_alpha": evaluation.blended_queries.alpha,
            "flips": evaluation.flips.as_json(),
            "backfill_curve": {
                order: curve.as_json() for order, curve in evaluation.backfill_curves.items()
            },
        }
    )


def _metrics(evaluation: UpgradeEvaluation) -> dict[str, Any]:
    """Return what the evaluation measured, with intervals."""
    full = evaluation.as_json()
    names = ("tests", "criteria", "further_metrics", "old_clients", "old_model", "note")
    names += ("seen_classes", "choices")
    return {name: full[name] for name in names}


def _pairs(tests: dict[str, SearchTest], evaluation: UpgradeEvaluation) -> dict[str, int]:
    """Say how many pairs of a query and a row were compared in each direction."""
    test = tests[CROSS]
    return {
        "queries": len(test.query_classes),
        "of_queries": len(evaluation.split.query),
        "rows": test.templates,
        "genuine": len(test.genuine),
        "impostor": len(test.impostor),
    }


def _thresholds(tests: dict[str, SearchTest]) -> dict[str, dict[str, float]]:
    """Return direction -> false accept rate -> threshold, for the rates that the pairs resolve."""
    thresholds: dict[str, dict[str, float]] = {}
    for direction, test in tests.items():
        pairs = len(test.impostor)
        fars = [far for far in REPORTED_FARS[::-1] if far * pairs >= FEWEST_ACCEPTED]
        values = strict_thresholds(test.impostor, fars)
        thresholds[direction] = {f"{far:g}": values[far] for far in fars}
    return thresholds
