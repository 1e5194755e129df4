"""A map of new→old scores onto the old scale by one factor, the new model's score scale.

The map through many quantiles, which is fitted on a test, is in ``score_map.py``.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import Floats, Ints
from unibct.data.training_classes import SCORE_MAP_FITTED, Choice, TrainingClasses
from unibct.errors import UserError
from unibct.evaluation.impostors import Impostors, ScoreRanks, listed_impostors, quantiles
from unibct.evaluation.score_table import Groups
from unibct.files import read_json, write_json


@dataclass(frozen=True)
class ScaleMap:
    """Multiplies scores; strictly monotone, so it changes no ranking.

    Attributes:
        factor: above zero, see ``embeddings/score_scale.py``.
    """

    factor: float

    def __post_init__(self) -> None:
        """Refuse a factor that would change rankings."""
        if not 0 < self.factor < np.inf:
            raise UserError(f"a score scale is a finite number above zero, not {self.factor}")

    def __call__(self, scores: Any) -> NDArray[np.float64]:
        """Map scores of new queries in the old gallery onto the old scale."""
        return np.asarray(scores, dtype=np.float64) * self.factor

    def highest_up_to(self, limit: float, dtype: Any) -> float:
        """Return the highest score of a floating point type that is not mapped above ``limit``."""
        if not np.isfinite(limit):
            return float(limit)
        score = np.asarray(limit / self.factor, dtype=dtype)
        lowest, highest = (np.asarray(end, dtype=dtype) for end in (-np.inf, np.inf))
        while self(score) > limit:
            score = np.nextafter(score, lowest)
        while self(above := np.nextafter(score, highest)) <= limit:
            score = above
        return float(score)


# A strictly monotone map of new→old scores onto the old score scale.
#
# A deployed system compares scores with a threshold that was set for old→old scores. New queries
# score lower in the old gallery, so that threshold would refuse most of them. The map carries the
# quantiles of cross-test impostor scores to the quantiles of old impostor scores. A threshold on
# the old scale then lets as many impostors pass as before. Because the map is strictly monotone, it
# changes no ranking. Beyond the rarest impostors the map is a guess: see ``ScoreMap.supports``.

_KNOTS = 64
_FEWEST_SCORES = 100
_RAREST_COUNT = 10  # impostor scores above the last knot: fewer tell too little about a quantile
_END_KNOTS = 16  # give the slope beyond the last one; of fewer, chance decides
_LEAST_SLOPE, _STEEPEST_SLOPE = 0.01, 100.0
FEWEST_ACCEPTED = 30  # impostor pairs above a threshold, Doddington's rule


@dataclass(frozen=True)
class ScoreMap:
    """A piecewise linear map through knots.

    Above them it goes on with the mean slope between the last ones, below them with the slope 1.

    Attributes:
        cross: (knots,) strictly rising scores of new queries in the old gallery.
        old: (knots,) strictly rising scores of old queries in the old gallery.
        fitted_on: the images that it was fitted on; None if they are not known.
        impostors: the number of impostor scores on the side that had fewer; None if it is not
            known, as in files of earlier versions.
    """

    cross: NDArray[np.float64]
    old: NDArray[np.float64]
    fitted_on: Choice | None = None
    impostors: int | None = None

    def __post_init__(self) -> None:
        """Refuse knots that are not strictly monotone."""
        for name, knots in (("cross", self.cross), ("old", self.old)):
            rises = knots.ndim == 1 and len(knots) > 1 and (np.diff(knots) > 0).all()
            if not (rises and np.isfinite(knots).all()):
                raise UserError(f"a score map needs at least two rising {name} scores")
        if len(self.cross) != len(self.old):
            raise UserError("a score map needs as many cross scores as old scores")

    def __call__(self, scores: Any) -> NDArray[np.float64]:
        """Map scores of new queries in the old gallery onto the old scale."""
        values = np.asarray(scores, dtype=np.float64)
        below = np.minimum(values - self.cross[0], 0)
        above = np.maximum(values - self.cross[-1], 0)
        return np.interp(values, self.cross, self.old) + below + self._end_slope * above

    @cached_property
    def _end_slope(self) -> float:
        """The slope above the last knot."""
        first = max(0, len(self.cross) - 1 - _END_KNOTS)
        rise, run = (float(knots[-1]) - float(knots[first]) for knots in (self.old, self.cross))
        return min(max(rise / run, _LEAST_SLOPE), _STEEPEST_SLOPE)

    def supports(self, far: float) -> bool:
        """Return whether enough impostors were seen to map a threshold for a false accept rate."""
        return self.impostors is None or far * self.impostors + 1e-9 >= FEWEST_ACCEPTED

    @property
    def note(self) -> str:
        """For which false accept rates the map holds, in words."""
        if self.impostors is None:
            return (
                "how many impostor pairs the score map was fitted on is not recorded, so it is "
                "unknown for which false accept rates it holds; fit it again"
            )
        return (
            f"the score map was fitted on {self.impostors:,} impostor pairs: thresholds for false "
            f"accept rates below {FEWEST_ACCEPTED / self.impostors:.2g} are beyond it"
        )

    def highest_up_to(self, limit: float, dtype: Any) -> float:
        """Return the highest score of a floating point type that is not mapped above ``limit``."""
        if not np.isfinite(limit):
            return float(limit)
        below, above = min(limit - self.old[0], 0), max(limit - self.old[-1], 0)
        inverse = np.interp(limit, self.old, self.cross) + below + above / self._end_slope
        low = high = np.asarray(inverse, dtype=dtype)
        step = np.asarray(1e-6, dtype=dtype)
        while self(low) > limit:
            low, step = low - step, 2 * step
        while self(high) <= limit:
            high, step = high + step, 2 * step
        while low < (middle := low + (high - low) / 2) < high:
            low, high = (middle, high) if self(middle) <= limit else (low, middle)
        return float(low)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file; images and impostors only if they are known."""
        content: dict[str, Any] = {"cross": self.cross.tolist(), "old": self.old.tolist()}
        if self.fitted_on is not None:
            content["fitted_on"] = self.fitted_on.as_json()
        if self.impostors is not None:
            content["impostors"] = self.impostors
        return content

    @staticmethod
    def from_json(value: dict[str, Any]) -> "ScoreMap":
        """Return the map that ``as_json`` described; earlier versions kept only the knots."""
        try:
            cross, old = (np.array(value[side], float) for side in ("cross", "old"))
            impostors = value.get("impostors")
            if impostors is not None and int(impostors) < 1:
                raise ValueError(f"impostors is {impostors}")
            fitted_on = _fitted_on(value.get("fitted_on"))
            return ScoreMap(cross, old, fitted_on, None if impostors is None else int(impostors))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"this is no score map: {error}") from error


def _fitted_on(content: Any) -> Choice | None:
    """Return what a map was fitted on; of an earlier version's, only the classes are known."""
    if content is None or "digests" not in content:
        return None if content is None else Choice.of_json(content)
    classes = TrainingClasses.of_json(content)
    return Choice(SCORE_MAP_FITTED, classes=classes.digests, class_source=classes.source)


def fit_score_map(cross_impostor: Floats | Impostors, old_impostor: Floats | Impostors) -> ScoreMap:
    """Fit the map on impostor scores of the cross test and of the old self test.

    Args:
        cross_impostor: scores of new queries with old templates of other classes.
        old_impostor: scores of old queries with the same templates.
    """
    tables = [
        (scores if isinstance(scores, Impostors) else listed_impostors(scores)).table
        for scores in (cross_impostor, old_impostor)
    ]
    return fit_score_maps(*(ScoreRanks(table) for table in tables))[0]


def fit_score_maps(cross_impostor: ScoreRanks, old_impostor: ScoreRanks) -> list[ScoreMap]:
    """Fit a map for each part of the classes, see ``fit_score_map``."""
    rates: list[Floats] = []
    sizes: Ints = np.minimum(cross_impostor.sizes, old_impostor.sizes)
    for fewest in (int(size) for size in sizes):
        if fewest < _FEWEST_SCORES:
            raise UserError(
                f"{fewest} impostor scores are too few for a score map; "
                f"give at least {_FEWEST_SCORES}"
            )
        # Rates are spaced evenly on a logarithmic scale: thresholds are set at small ones.
        rarest = float(_RAREST_COUNT / fewest)
        rates.append(1 - np.append(1.0, np.geomspace(0.75, rarest, _KNOTS)))
    knots = (quantiles(ranks, rates) for ranks in (cross_impostor, old_impostor))
    return [_through(*sides) for sides in zip(*knots, sizes.tolist(), strict=True)]


def _through(cross: NDArray[np.float64], old: NDArray[np.float64], impostors: int) -> ScoreMap:
    """Return the map through those knots that rise on both sides."""
    rises = np.ones(len(cross), dtype=bool)
    last = 0
    for knot in range(1, len(cross)):
        rises[knot] = cross[knot] > cross[last] and old[knot] > old[last]
        last = knot if rises[knot] else last
    return ScoreMap(cross[rises], old[rises], impostors=impostors)


# Maps of scores onto the old scale, one for the queries of each class.


class MonotoneMap(Protocol):
    """A strictly monotone function of scores."""

    def __call__(self, scores: Any) -> NDArray[np.float64]:
        """Map scores."""
        ...

    def highest_up_to(self, limit: float, dtype: Any) -> float:
        """Return the highest score of a floating point type that is not mapped above ``limit``."""
        ...


@dataclass(frozen=True)
class ClassMaps:
    """A score map for the queries of each class.

    Attributes:
        maps: the different ones.
        of_class: (classes,) which of them a class has.
    """

    maps: list[MonotoneMap]
    of_class: Ints

    def mapped(self, scores: Floats, classes: Groups) -> Floats:
        """Return scores of queries of some classes on the old scale."""
        values = np.empty(len(scores))
        for number, score_map in enumerate(self.maps):
            chosen = self.of_class[classes] == number
            values[chosen] = score_map(scores[chosen])
        return values

    def limits(self, threshold: float, dtype: Any) -> Floats:
        """Return (classes,): the highest score of each that is not mapped above a threshold."""
        limits = [score_map.highest_up_to(threshold, dtype) for score_map in self.maps]
        return np.array(limits)[self.of_class]


def same_map(score_map: MonotoneMap, classes: int) -> ClassMaps:
    """Return one map for the queries of all classes."""
    return ClassMaps([score_map], np.zeros(classes, dtype=np.int64))


# Score maps kept beside the new model, one for each old model whose gallery it searches.

FILE = "score_maps.json"
_REMEDY = "remove it and fit the maps again (unibct evaluate … --save-score-map)"


def save_score_map(folder: str | Path, old_fingerprint: str, score_map: ScoreMap) -> Path:
    """Keep a map in the new model's folder; maps for other old models stay."""
    path = Path(folder) / FILE
    maps = _read(path)
    write_json(path, maps | {old_fingerprint: score_map.as_json()})
    return path


def has_score_map(folder: str | Path, old_fingerprint: str) -> bool:
    """Return whether a map for this old model is kept in the new model's folder."""
    return old_fingerprint in _read(Path(folder) / FILE)


def require_readable_maps(folder: str | Path) -> None:
    """Raise an error if the file that a map would be added to is damaged."""
    _read(Path(folder) / FILE)


def load_score_map(folder: str | Path, old_fingerprint: str) -> ScoreMap:
    """Return the map onto the score scale of an old model."""
    path = Path(folder) / FILE
    maps = _read(path)
    if old_fingerprint not in maps:
        raise UserError(
            f"{folder} has no score map for the old model {old_fingerprint}; fit one on classes "
            "that you do not test on: unibct evaluate … --save-score-map"
        )
    try:
        return ScoreMap.from_json(maps[old_fingerprint])
    except UserError as error:
        raise UserError(f"{path}: {error}; {_REMEDY}") from error


def _read(path: Path) -> dict[str, Any]:
    """Return the maps in a file by the old model's fingerprint; none if there is no file."""
    if not path.is_file():
        return {}
    try:
        maps: Any = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {_REMEDY}") from error
    if not isinstance(maps, dict):
        raise UserError(f"{path} holds no score maps; {_REMEDY}")
    return cast(dict[str, Any], maps)
