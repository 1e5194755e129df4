"""The certificate of an upgrade: a document that says whether a model may search another's rows.

`unibct evaluate … --certify FILE` writes it, and a gallery asks for it before it lets a new model
search. A gallery's rows are single images, so verdict, thresholds, score maps and calibration are
those of single images; what the evaluation found with templates stands beside them. Format 1, of
earlier versions, had the templates' verdict in first place and took classes for unseen that may
have been seen. A digest over the document shows changes. It is no signature: it protects against
accidents, not against forgery.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from unibct.errors import UserError
from unibct.evaluation.criterion import OLD_MODEL_TOO_WEAK
from unibct.evaluation.evaluation import UpgradeEvaluation
from unibct.evaluation.mixed_gallery import TwoKinds, choose_calibration
from unibct.evaluation.score_map import FEWEST_ACCEPTED, ScoreMap, fit_score_map
from unibct.evaluation.search_test import BLEND, CROSS, NEW_SELF, OLD_SELF, SearchTest
from unibct.evaluation.seen_classes import Basis
from unibct.evaluation.verification import REPORTED_FARS, carried_fars, rate_name, strict_thresholds
from unibct.files import read_json, write_json

FORMAT = 2
_READABLE = (1, FORMAT)
COMPATIBLE, NOT_COMPATIBLE = "compatible", "not compatible"
# What to say of the test classes, by what is known of them, see ``SeenClasses.basis``.
_CLASSES: dict[Basis, str] = {
    "unseen": "classes that no model was trained on",
    "unknown": "classes of which it is unknown whether a model was trained on them",
    "overridden": "some or all of them classes on which a model was trained or something chosen",
}
_NOT_CHECKED = "whether the old model is too weak was not checked"
_ALWAYS_THERE = {"digest", "old", "new"}  # what tells a certificate from other JSON files
_MAKE_AGAIN = "make it again with `unibct evaluate … --certify FILE`"


@dataclass(frozen=True)
class Certificate:
    """What a test found out about a pair of models."""

    content: dict[str, Any]  # the whole document as plain values, with its digest

    def __post_init__(self) -> None:
        """Refuse another document, one that lacks something, or does not have its digest."""
        if not self.content.keys() >= _ALWAYS_THERE:
            raise UserError("this is no certificate; `unibct evaluate … --certify FILE` writes one")
        if self.content.get("format") not in _READABLE:
            raise UserError(
                f"this is no certificate of a format that this version reads, 1 to {FORMAT}; "
                f"{_MAKE_AGAIN}"
            )
        if self.digest != content_digest(self.content):
            raise UserError(
                f"the certificate was changed after it was written (its digest differs); "
                f"{_MAKE_AGAIN}"
            )
        try:
            _ = self.old, self.new, self.verdict, self.basis, self.calibration, self.fars
            _ = self.blend_alpha, self.summary()
            _ = [self.score_map_of(direction) for direction in (CROSS, NEW_SELF)]
            _ = [self.calibration_of(direction) for direction in (CROSS, OLD_SELF, BLEND)]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the certificate is incomplete ({error}); {_MAKE_AGAIN}") from error

    @classmethod
    def of(cls, evaluation: UpgradeEvaluation, *, date: datetime | None = None) -> "Certificate":
        """Return the certificate of a finished evaluation, whatever its verdict is.

        Args:
            evaluation: of models, on images; its tests keep the embeddings of both sides.
            date: by default now. Nothing else in the document changes from one time to the next.
        """
        return cls.sealed(_content(evaluation, date or datetime.now(UTC)))

    @classmethod
    def sealed(cls, content: dict[str, Any]) -> "Certificate":
        """Return the certificate with this content; its digest is added."""
        return cls(content | {"digest": content_digest(content)})

    @classmethod
    def read(cls, path: str | Path) -> "Certificate":
        """Read a certificate; one that was changed is refused."""
        path = Path(path)
        content: Any = read_json(path)
        if not isinstance(content, dict):
            raise UserError(f"{path} is no certificate; {_MAKE_AGAIN}")
        try:
            return cls(cast(dict[str, Any], content))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    def write(self, path: str | Path) -> Path:
        """Write the document, whole or not at all."""
        path = Path(path)
        require_file(path)
        write_json(path, self.content)
        return path

    @property
    def old(self) -> str:
        """The fingerprint of the model that made the rows."""
        return str(self.content["old"]["fingerprint"])

    @property
    def new(self) -> str:
        """The fingerprint of the model that made the queries."""
        return str(self.content["new"]["fingerprint"])

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that change with the content."""
        return str(self.content.get("digest"))

    @property
    def verdict(self) -> str:
        """*compatible*, or another verdict of an evaluation: that on single images."""
        if self.content["format"] == 1 and self.content["verdict"] != OLD_MODEL_TOO_WEAK:
            return str(self.content["image_metrics"]["verdict"])
        return str(self.content["verdict"])

    @property
    def template_verdict(self) -> str:
        """The verdict on templates, one for each class."""
        return str(self.content["verdict" if self.content["format"] == 1 else "template_verdict"])

    @property
    def basis(self) -> Basis:
        """What is known of the test classes, see ``SeenClasses.basis``.

        Format 1 counted classes that are only numbered, and first weights, as unseen.
        """
        if self.content["format"] > 1:
            return cast(Basis, self.content["classes"]["basis"])
        return "overridden" if self.content["metrics"].get("seen_classes") else "unknown"

    @property
    def is_compatible(self) -> bool:
        """Whether new queries search old rows better, on classes not known to be seen."""
        return self.verdict == COMPATIBLE and self.basis != "overridden"

    @cached_property
    def calibration(self) -> ScoreMap:
        """Puts scores of new queries with old rows on the scale of new rows."""
        return ScoreMap.from_json(self.content["calibration"]["choice"])

    def calibration_of(self, direction: str) -> ScoreMap:
        """Return what puts scores of other queries with old rows on the scale of new rows.

        The direction is ``new→old``, ``old→old`` (the old query for old rows) or ``blend→old``.
        """
        if direction == CROSS:
            return self.calibration
        return ScoreMap.from_json(self.content["further_calibrations"][direction]["choice"])

    @property
    def blend_alpha(self) -> float:
        """The share of the new query in the blended queries that were tested."""
        return float(self.content["blend_alpha"])

    def score_map_of(self, direction: str) -> ScoreMap:
        """Return what puts scores on the scale of old queries with old rows.

        The direction is ``new→old``, ``new→new`` or ``blend→old``.
        """
        return ScoreMap.from_json(self.content["score_map"][direction])

    @cached_property
    def fars(self) -> tuple[float, ...]:
        """The false accept rates for which there are thresholds, the largest first."""
        rates = cast(dict[str, float], self.content["thresholds"][CROSS])
        return tuple(sorted((float(rate) for rate in rates), reverse=True))

    @property
    def rough_fars(self) -> tuple[float, ...]:
        """Those of ``fars`` that the test classes are too few to measure well."""
        measured = {float(far) for far in self.content.get("carried_fars", self.fars)}
        return tuple(far for far in self.fars if far not in measured)

    def threshold(self, direction: str, far: float) -> float:
        """Return the score above which a pair is accepted at a false accept rate.

        Args:
            direction: ``new→old``, ``new→new``, ``old→old`` or ``blend→old``.
            far: one of ``fars``.
        """
        thresholds = cast(dict[str, dict[str, float]], self.content["thresholds"])
        if direction not in thresholds:
            raise UserError(
                f"the certificate has no thresholds for {direction!r}; it has "
                + ", ".join(thresholds)
            )
        for rate, threshold in thresholds[direction].items():
            if abs(float(rate) - far) <= 1e-9 * far:
                return float(threshold)
        there = ", ".join(rate_name(rate) for rate in self.fars) or "none"
        raise UserError(
            f"the certificate has no threshold for the false accept rate {far:g}; it has {there}"
        )

    @property
    def tested_on(self) -> str:
        """What it was tested on, in words."""
        data, counted = self.content["data"], self.content.get("classes", {})
        seen, tested = counted.get("seen"), counted.get("tested")
        part = f"{tested:,} of them " if seen and tested and self.basis != "overridden" else ""
        return (
            f"{data['images']:,} images of {data['classes']:,} classes of {data['name']}, "
            f"{part}{_CLASSES[self.basis]}"
        )

    def summary(self) -> str:
        """Return one line for people."""
        may = "may search" if self.is_compatible else "may not (but by --force) search"
        templates = self.template_verdict
        note = "" if templates == self.verdict else f" (templates: {templates})"
        rates, rough = (", ".join(map(rate_name, fars)) for fars in (self.fars, self.rough_fars))
        rates += f" (rough, for lack of test classes: {rough})" if rough else ""
        return (
            f"{self.verdict}{note}: model {self.new[:12]} {may} rows of model {self.old[:12]}; "
            f"tested on {self.tested_on}; "
            f"thresholds for FAR {rates}; {self.calibration.kind} scores in mixed galleries"
            + ("" if self.content["metrics"].get("old_model") else f"; {_NOT_CHECKED}")
        )


def require_file(path: Path) -> None:
    """Refuse a folder in place of a certificate's file."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; a certificate is a file: name one in it")


def content_digest(content: dict[str, Any]) -> str:
    """Return the digest of a document, whatever its own entry ``digest`` says."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# What a finished evaluation puts into the document.


def _content(evaluation: UpgradeEvaluation, date: datetime) -> dict[str, Any]:
    if evaluation.evaluated is None:
        raise UserError(
            "arrays do not say which models made them: evaluate models, or give evaluated="
        )
    full, single = evaluation.as_json(), evaluation.single_images
    images, tests = single.searches, single.tests
    # The seed draws the halves of the classes that choose and check a calibration.
    choices = {
        direction: choose_calibration(
            TwoKinds(images[direction], images[NEW_SELF]), seed=evaluation.seed
        ).as_json()
        for direction in (CROSS, OLD_SELF, BLEND)
    }
    old_impostor = tests[OLD_SELF].impostor
    fars = [f"{far:g}" for far in carried_fars(evaluation.split.compared_classes)[::-1]]
    measured = ("tests", "criteria", "further_metrics", "old_clients", "old_model", "note")
    return {
        "format": FORMAT,
        "unibct": metadata.version("unibct"),
        "date": date.isoformat(timespec="seconds"),
        **evaluation.evaluated.as_json(),
        "verdict": evaluation.single_images_verdict,
        "template_verdict": evaluation.verdict,
        "classes": full["classes"],
        "metrics": {name: full[name] for name in (*measured, "seen_classes", "choices")},
        "gallery": "images",
        "pairs": _pairs(tests[CROSS], len(evaluation.split.query)),
        "image_metrics": full["single_images"],
        "thresholds": {direction: _thresholds(test) for direction, test in tests.items()},
        "carried_fars": fars,
        "score_map": {
            direction: fit_score_map(tests[direction].impostor, old_impostor).knots_as_json()
            for direction in (CROSS, NEW_SELF, BLEND)
        },
        "calibration": choices[CROSS],
        "further_calibrations": {direction: choices[direction] for direction in (OLD_SELF, BLEND)},
        "blend_alpha": evaluation.blended_queries.alpha,
        "flips": full["flips"],
        "backfill_curve": full["backfill_curve"],
    }


def _pairs(test: SearchTest, all_queries: int) -> dict[str, int]:
    """Say how many pairs of a query and a row were compared in each direction."""
    return {
        "queries": len(test.query_classes),
        "of_queries": all_queries,
        "rows": test.templates,
        "genuine": len(test.genuine),
        "impostor": len(test.impostor),
    }


def _thresholds(test: SearchTest) -> dict[str, float]:
    """Return false accept rate -> threshold, for the rates that the pairs resolve."""
    pairs = len(test.impostor)
    fars = [far for far in REPORTED_FARS[::-1] if far * pairs >= FEWEST_ACCEPTED]
    values = strict_thresholds(test.impostor, fars)
    return {f"{far:g}": values[far] for far in fars}
