"""The options of an evaluation: name, type, default and help, each written here and nowhere else.

`unibct evaluate` makes its flags of these fields, and ``unibct.evaluate`` takes them by name. Which
protocol uses which option is said in ``PROTOCOLS``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from unibct.errors import UserError
from unibct.evaluation.templates import GalleryMode, require_mode
from unibct.evaluation.verification import ThresholdRule, require_rule


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """How two models are tested. What a protocol would ignore, it refuses."""

    images: Path | None = field(
        default=None,
        metadata={"help": "use only the images in this file, one id per line", "metavar": "LIST"},
    )
    far: float | None = field(
        default=None,
        metadata={
            "help": "false accept rate of the headline TAR  [default: the smallest measurable]"
        },
    )
    seed: int = field(
        default=0,
        metadata={"help": "chooses the gallery images and the bootstrap samples", "min": 0},
    )
    # The verdict always uses the strict rule.
    threshold_rule: ThresholdRule = field(
        default="strict",
        metadata={
            "help": "threshold of a TAR: FAR never above the rate, or the field's nearest ROC "
            "corner"
        },
    )
    flip_test: bool = field(
        default=True, metadata={"help": "IJB: add the embedding of the mirrored image"}
    )
    detector_scores: bool = field(
        default=True, metadata={"help": "IJB: weight images by the score of the face detector"}
    )
    media_mean: bool = field(
        default=True, metadata={"help": "IJB: average the images of each media before summing"}
    )
    normalize_images: bool = field(
        default=False, metadata={"help": "IJB: normalise each image's embedding before pooling"}
    )
    cache: Path = field(
        default=Path("runs/cache"),
        metadata={"help": "IJB: folder that keeps embeddings for the next time"},
    )
    # Without these two lists a quarter of each class's images is in the gallery.
    queries: Path | None = field(
        default=None,
        metadata={"help": "ids of the queries; with --gallery-images", "metavar": "LIST"},
    )
    gallery_images: Path | None = field(
        default=None,
        metadata={"help": "ids of the gallery's images; with --queries", "metavar": "LIST"},
    )
    gallery_mode: GalleryMode = field(
        default="templates",
        metadata={"help": "what the gallery holds: one template per class, or images"},
    )
    backfill_curve: bool | None = field(
        default=None,
        metadata={
            "help": "measure partly backfilled galleries  [default: if it takes a minute at most]"
        },
    )
    old_thresholds: bool = field(
        default=False, metadata={"help": "use the score map that is kept with NEW"}
    )
    save_score_map: bool = field(
        default=False, metadata={"help": "fit a score map on this data and keep it with NEW"}
    )
    alpha: float | None = field(
        default=None,
        metadata={
            "help": "share of the new query in blended queries, which search the old gallery  "
            "[default: 0.5, or as --alpha-from says]",
            "min": 0,
            "max": 1,
        },
    )
    alpha_from: str | None = field(
        default=None,
        metadata={"help": "images of other classes, on which alpha is chosen", "metavar": "DATA"},
    )
    seen_classes: bool = field(
        default=False,
        metadata={
            "help": "go on even if most test classes were trained on; a gallery then wants --force"
        },
    )
    skip_bad_images: bool = field(
        default=False,
        metadata={"help": "leave unreadable images out and list them, instead of stopping"},
    )

    def __post_init__(self) -> None:
        """Refuse values that no evaluation could use, before anything is opened."""
        if self.far is not None and not 0 < self.far <= 1:
            raise UserError(f"far must lie in (0, 1], not {self.far}")
        if self.seed < 0:
            raise UserError(f"seed must not be negative, not {self.seed}")
        require_rule(self.threshold_rule)
        require_mode(self.gallery_mode)
        if self.alpha is not None and self.alpha_from is not None:
            raise UserError("alpha and alpha_from exclude each other: give one of them")
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise UserError(f"alpha lies in [0, 1], not {self.alpha}")
        if (self.queries is None) != (self.gallery_images is None):
            raise UserError("queries and gallery_images go together: give both lists")
        if self.old_thresholds and self.save_score_map:
            raise UserError(
                "old_thresholds tests the score map that is kept with the new model, and "
                "save_score_map fits it on the tested classes: use one of them, each on other "
                "classes"
            )

    def changed(self) -> list[str]:
        """Return the names of the options whose value is not the default."""
        return [one.name for one in fields(self) if getattr(self, one.name) != one.default]


OPTION_NAMES = tuple(one.name for one in fields(EvaluationOptions))


def chosen_options(
    options: EvaluationOptions | None, changes: Mapping[str, Any]
) -> EvaluationOptions:
    """Return options with changes by name; a name that is no option is refused."""
    for name in changes:
        if name not in OPTION_NAMES:
            raise UserError(f"unknown option {name!r}; choose one of {', '.join(OPTION_NAMES)}")
    return replace(options or EvaluationOptions(), **changes)
