"""Make a certificate from a finished evaluation; ``certificate.py`` is the document itself."""

from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from unibct.errors import UserError
from unibct.evaluation.blending import blended_search
from unibct.evaluation.criterion import compare_tests, joint_verdict
from unibct.evaluation.directions import BLEND, CROSS, NEW_SELF, OLD_SELF
from unibct.evaluation.metrics.table import measured_metrics
from unibct.evaluation.metrics.verification import strict_thresholds
from unibct.evaluation.protocols.request import EvaluationRequest
from unibct.evaluation.protocols.table import AUTO, evaluate_data, recognised_protocol
from unibct.evaluation.resolution import REPORTED_FARS, carried_fars
from unibct.evaluation.score_map import fit_score_map
from unibct.evaluation.search_test import ImageSearch, SearchTest, image_test
from unibct.evaluation.subjects import Subjects
from unibct.evaluation.upgrade import Evaluation, UpgradeEvaluation
from unibct.gallery.calibration_choice import choose_calibration
from unibct.gallery.certificate import FORMAT, Certificate, require_file, sealed
from unibct.gallery.mixed_test import TwoKinds

PROTOCOL = "images"
_DIRECTIONS = (OLD_SELF, CROSS, NEW_SELF)
MOST_PAIRS = 50_000_000
_FEWEST_ACCEPTED = 30  # impostor pairs above a threshold, Doddington's rule


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
    most_pairs: int = MOST_PAIRS,
) -> Certificate:
    """Return the certificate of a finished evaluation, whatever its verdict is.

    Args:
        evaluation: of image sets; its tests keep the embeddings of queries and gallery.
        subjects: the models and the data; by default what the evaluation says about them.
        seed: draws queries of large tests, and the halves of the classes that choose and check
            the calibration.
        date: by default now. Nothing else in the document changes from one time to the next.
        most_pairs: queries × rows of a direction above which queries are drawn, but never fewer
            than 1,000.
    """
    subjects = subjects or evaluation.subjects
    if subjects is None:
        raise UserError(
            "arrays do not say which models made them: evaluate models or their embeddings "
            "(unibct.evaluate_data), or give subjects="
        )
    images = _drawn_queries(evaluation, seed, most_pairs)
    tests = {direction: image_test(search) for direction, search in images.items()}
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
            "verdict": evaluation.verdict,
            "metrics": _metrics(evaluation),
            "gallery": "images",
            "pairs": _pairs(tests, evaluation),
            "image_metrics": _image_metrics(tests, evaluation.far, seed),
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


def _drawn_queries(
    evaluation: UpgradeEvaluation, seed: int, most_pairs: int
) -> dict[str, ImageSearch]:
    """Return the search among single images of each direction, with the same queries.

    Where there are too many pairs, queries are drawn; all rows stay, so that no mate is lost.
    """
    searches: dict[str, ImageSearch] = {}
    for direction in _DIRECTIONS:
        images = evaluation.tests[direction].images
        assert images is not None, "every test of an image set keeps its images"
        searches[direction] = images
    queries, rows = len(evaluation.split.query), len(evaluation.split.gallery)
    most = max(1000, most_pairs // rows)
    if queries > most:
        drawn = np.sort(np.random.default_rng([seed, 23]).choice(queries, most, replace=False))
        everything: Any = np.arange(rows)
        searches = {name: images.part(drawn, everything) for name, images in searches.items()}
    alpha = evaluation.blended_queries.alpha
    return searches | {BLEND: blended_search(searches[OLD_SELF], searches[CROSS], alpha)}


def _metrics(evaluation: UpgradeEvaluation) -> dict[str, Any]:
    """Return what the evaluation measured, with intervals."""
    full = evaluation.as_json()
    names = ("tests", "criteria", "further_metrics", "old_clients", "old_model", "note")
    names += ("seen_classes", "choices")
    return {name: full[name] for name in names}


def _image_metrics(tests: dict[str, SearchTest], far: float, seed: int) -> dict[str, Any]:
    """Return the same of single images, which may have another verdict than templates."""
    compared = compare_tests(tests[OLD_SELF], tests[CROSS], far=far, seed=seed)
    deciding = [criterion for criterion in compared if criterion.decides]
    return {
        "verdict": joint_verdict([criterion.verdict for criterion in deciding]),
        "tests": {name: measured_metrics(test, [far]) for name, test in tests.items()},
        "criteria": [criterion.as_json() for criterion in deciding],
        "further_metrics": [c.as_json() for c in compared if not c.decides],
    }


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
        fars = [far for far in REPORTED_FARS[::-1] if far * pairs >= _FEWEST_ACCEPTED]
        values = strict_thresholds(test.impostor, fars)
        thresholds[direction] = {f"{far:g}": values[far] for far in fars}
    return thresholds
