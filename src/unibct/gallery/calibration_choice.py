"""Which calibration ranks a mixed gallery best: chosen on some classes, reported on others."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.evaluation.search_test import ScoredPairs, image_test
from unibct.gallery.calibration import CALIBRATIONS, Calibration, fit_calibration
from unibct.gallery.mixed_test import SearchQuality, TwoKinds, mixed_quality

REMADE_SHARE = 0.5  # of the rows in the galleries that decide
GALLERIES = 5  # of these random galleries
_MOST_PAIRS = 5_000_000  # queries × rows of a half of the classes


@dataclass(frozen=True)
class CalibrationChoice:
    """The calibration of a pair of models, and what decided about it.

    Attributes:
        calibration: of the chosen kind, fitted on all classes.
        chosen_on: kind -> how well it ranks the half of the classes that decided. Each kind was
            fitted on them.
        reported_on: kind -> the same calibrations on the other half of the classes.
        classes: how many classes each half has.
    """

    calibration: Calibration
    chosen_on: dict[str, SearchQuality]
    reported_on: dict[str, SearchQuality]
    classes: tuple[int, int]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return {
            "choice": self.calibration.as_json(),
            "chosen_by": "mean of top-1 and mAP",
            "remade_share": REMADE_SHARE,
            "galleries": GALLERIES,
            "chosen_on": {name: asdict(quality) for name, quality in self.chosen_on.items()},
            "reported_on": {name: asdict(quality) for name, quality in self.reported_on.items()},
            "classes": {"chosen_on": self.classes[0], "reported_on": self.classes[1]},
        }


def choose_calibration(kinds: TwoKinds, *, seed: int = 0) -> CalibrationChoice:
    """Choose among the kinds of calibration by half-backfilled galleries of single images.

    The classes are halved. On one half each kind is fitted and measured; the best is chosen, or
    the simplest of equally good ones. The other half shows what the choice is worth, and
    does not influence it. The returned calibration has the chosen kind, and is fitted on all
    classes.

    Args:
        kinds: the test's queries and rows.
        seed: of the halves and of the rows that the new model has made.
    """
    halves = _halves(kinds, seed)
    tests = [image_test(side) for side in (halves[0].cross, halves[0].new_self)]
    calibrations: dict[str, Calibration] = {}
    for kind in CALIBRATIONS:
        try:
            calibrations[kind] = fit_calibration(kind, tests[0].pairs, tests[1].pairs)
        except UserError:  # too few different scores for this kind
            continue
    measured = [
        mixed_quality(half, calibrations, _galleries(half.rows, [seed, 22, number]))
        for number, half in enumerate(halves)
    ]
    ranked = sorted(measured[0], key=lambda kind: -_worth(measured[0][kind]))
    whole = [image_test(side).pairs for side in (kinds.cross, kinds.new_self)]
    return CalibrationChoice(
        _first_that_fits(ranked, *whole),
        *measured,
        classes=(_classes(halves[0]), _classes(halves[1])),
    )


def _first_that_fits(
    ranked: Sequence[str], cross: ScoredPairs, new_self: ScoredPairs
) -> Calibration:
    """Fit the best kind that can be fitted on all classes; raw scores always can."""
    for kind in ranked:
        try:
            return fit_calibration(kind, cross, new_self)
        except UserError:
            continue
    return Calibration()


def _worth(quality: SearchQuality) -> float:
    return round((quality.top_1 + quality.mean_average_precision) / 2, 6)


def _classes(kinds: TwoKinds) -> int:
    return len(np.unique(kinds.cross.gallery_labels))


def _halves(kinds: TwoKinds, seed: int) -> list[TwoKinds]:
    """Halve the classes, and draw queries where there are too many."""
    rng = np.random.default_rng([seed, 21])
    used = np.unique(kinds.cross.query_labels)
    if len(used) < 4:
        raise UserError(
            f"{len(used)} classes with queries are too few to choose a calibration: half of them "
            "decide and the others check; give 4 or more"
        )
    classes = np.unique(kinds.cross.gallery_labels)
    others = np.setdiff1d(classes, used)
    order = np.concatenate([rng.permutation(used), rng.permutation(others)])
    in_first = np.zeros(int(classes.max()) + 1, dtype=bool)
    in_first[order[::2]] = True
    halves = [kinds.of_classes(chosen) for chosen in (in_first, ~in_first)]
    return [_fewer_queries(half, rng) for half in halves]


def _fewer_queries(kinds: TwoKinds, rng: np.random.Generator) -> TwoKinds:
    most = max(100, _MOST_PAIRS // kinds.rows)
    if kinds.queries <= most:
        return kinds
    chosen = np.sort(rng.choice(kinds.queries, most, replace=False))
    return kinds.part(chosen, np.arange(kinds.rows))


def _galleries(rows: int, seed: list[int]) -> list[NDArray[np.bool_]]:
    """Draw which rows the new model has made, for several galleries."""
    rng = np.random.default_rng(seed)
    count = round(REMADE_SHARE * rows)
    return [rng.permutation(rows) < count for _ in range(GALLERIES)]
