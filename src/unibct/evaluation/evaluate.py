"""Self test, cross test and the compatibility criterion, with its uncertainty.

The protocol: a seeded quarter of each class's images (at least one) is pooled into the gallery's
template of that class, the rest are queries. Every query meets every template: that is the 1:1
test (TAR at FAR) and the 1:N test (top-1, top-5). In the self test both sides come from one
model; in the cross test the queries come from the new one and the templates from the old one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import (
    checked_embeddings,
    checked_labels,
    normalized,
    require_contiguous_labels,
    require_same_dim,
)
from unibct.data.scenarios import sample_images
from unibct.errors import UserError
from unibct.evaluation.metrics import Floats, mate_ranks, tar_at_far

Ints: TypeAlias = NDArray[np.int64]
Verdict: TypeAlias = Literal["compatible", "not compatible", "within noise"]

GALLERY_SHARE = 0.25
HEADLINE_FAR = 1e-4
REPORTED_FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
KS = (1, 5)
BOOTSTRAP_REPEATS = 2000
CONFIDENCE = 0.95
_BLOCK = 1024  # sorted impostors whose counts per class are added up, at least
_REPEATS_AT_ONCE = 100
_CLASS_PAIRS_NEEDED = 30  # Doddington's rule of 30 errors, see carried_fars


@dataclass(frozen=True)
class Protocol:
    """Which images are pooled into templates, and which are queries."""

    labels: Ints
    gallery: Ints
    query: Ints

    @property
    def query_labels(self) -> Ints:
        """(queries,) the class of each query: also the column of its mate."""
        return self.labels[self.query]


@dataclass(frozen=True)
class SearchTest:
    """One query model against one gallery model: all scores, and the metrics they give."""

    scores: Floats  # (queries, templates)
    query_labels: Ints
    ranks: Ints = field(init=False)
    genuine: Floats = field(init=False)
    impostor: Floats = field(init=False)

    def __post_init__(self) -> None:
        """Take the scores apart once."""
        columns: Ints = np.arange(int(self.scores.shape[1]))
        mates = self.query_labels[:, None] == columns[None, :]
        object.__setattr__(self, "ranks", mate_ranks(self.scores, self.query_labels, columns))
        object.__setattr__(self, "genuine", self.scores[mates])
        object.__setattr__(self, "impostor", self.scores[~mates])

    def tar(self, far: float) -> float:
        """TAR at FAR, by the strict rule."""
        return tar_at_far(self.genuine, self.impostor, [far])[far]

    def top(self, k: int) -> float:
        """The share of queries whose mate is among the k best templates."""
        return float(np.mean(self.ranks < k))


@dataclass(frozen=True)
class Criterion:
    """M(cross) − M(old self) for one metric, with its bootstrap interval."""

    metric: str
    old_self: float
    cross: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """By how much the cross test exceeds the old self test."""
        return self.cross - self.old_self

    @property
    def verdict(self) -> Verdict:
        """*Within noise* as long as the interval holds zero."""
        return verdict_of(self.low, self.high)

    def as_json(self) -> dict[str, Any]:
        """Plain values for machines."""
        return {
            "metric": self.metric,
            "old_self": self.old_self,
            "cross": self.cross,
            "difference": self.difference,
            "interval": [self.low, self.high],
            "confidence": CONFIDENCE,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Evaluation:
    """What `unibct evaluate` reports: the tests, and the criterion per metric."""

    tests: dict[str, SearchTest]
    criteria: tuple[Criterion, ...]
    far: float
    wanted_far: float
    protocol: Protocol

    @property
    def note(self) -> str | None:
        """What to know of the headline's false accept rate, if anything."""
        return far_note(self.far, self.wanted_far, len(np.unique(self.protocol.labels)))

    @property
    def verdict(self) -> Verdict:
        """Compatible only if each metric is; not compatible as soon as one is not."""
        return joint_verdict([criterion.verdict for criterion in self.criteria])

    def metrics(self, test: str) -> dict[str, float]:
        """The headline metrics of one test, in the criteria's order."""
        return headline_metrics(self.tests[test], self.far)

    def as_json(self) -> dict[str, Any]:
        """Plain values for machines."""
        carried = carried_fars(len(np.unique(self.protocol.labels)))
        return {
            "verdict": self.verdict,
            "far": self.far,
            "note": self.note,
            "criteria": [criterion.as_json() for criterion in self.criteria],
            "tests": {
                name: self.metrics(name)
                | {"tar_at_far": {f"{far:g}": test.tar(far) for far in carried}}
                for name, test in self.tests.items()
            },
            "queries": len(self.protocol.query),
            "templates": len(np.unique(self.protocol.labels)),
            "images_in_templates": len(self.protocol.gallery),
        }


def far_note(far: float, wanted: float, classes: int) -> str | None:
    """What to know of a headline's false accept rate, if it is not the one that was asked for."""
    if not _is_carried(far, classes):
        return (
            f"{classes} classes are too few to measure {tar_name(far)} well: "
            "25 are needed for TAR@1e-1, 78 for TAR@1e-2, 246 for TAR@1e-3"
        )
    if far == wanted:
        return None
    return (
        f"{tar_name(far)} instead of {tar_name(wanted)}: "
        f"{classes} classes cannot measure a smaller false accept rate"
    )


def verdict_of(low: float, high: float) -> Verdict:
    """What the interval of a difference cross − old self says."""
    if low > 0:
        return "compatible"
    return "not compatible" if high < 0 else "within noise"


def joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Compatible only if each one is; not compatible as soon as one is not."""
    if "not compatible" in verdicts:
        return "not compatible"
    return "within noise" if "within noise" in verdicts else "compatible"


def tar_name(far: float) -> str:
    """How a table calls the TAR at ``far``."""
    power = f"{far:.0e}".replace("e-0", "e-")
    return f"TAR@{power if float(power) == far and far < 1 else f'{far:g}'}"


def reported_ks(templates: int) -> list[int]:
    """The k of top-k that can tell models apart: among k templates all are found."""
    return [k for k in KS if k < templates]


def carried_fars(classes: int) -> list[float]:
    """The reported false accept rates that so many classes can measure.

    Thirty independent errors measure a rate to about ±30 % (Doddington's rule). All impostor
    pairs of two look-alike classes score high together, so it is class pairs that are counted.
    """
    return [far for far in REPORTED_FARS if _is_carried(far, classes)]


def headline_far(classes: int, wanted: float = HEADLINE_FAR) -> float:
    """``wanted`` if the classes carry it, else the smallest larger one that they carry best."""
    if not 0 < wanted <= 1:
        raise UserError(f"a false accept rate lies in (0, 1], not {wanted}")
    if _is_carried(wanted, classes):
        return wanted
    larger = (far for far in carried_fars(classes) if far > wanted)
    return next(larger, max(wanted, REPORTED_FARS[-1]))


def _is_carried(far: float, classes: int) -> bool:
    return far * classes * (classes - 1) / 2 + 1e-9 >= _CLASS_PAIRS_NEEDED


def make_protocol(labels: Any, *, seed: int = 0, share: float = GALLERY_SHARE) -> Protocol:
    """Choose each class's template images: max(1, floor(share · size)), the rest are queries."""
    if seed < 0:
        raise UserError(f"seed must not be negative, not {seed}")
    labels = checked_labels(labels)
    classes = require_contiguous_labels(labels)
    if classes < 2:
        raise UserError("a search test needs at least two classes")
    sizes = np.bincount(labels)
    if (sizes >= 2).sum() < 2:
        raise UserError(
            "fewer than two classes have two images or more: a class needs one image for its "
            "template and another one as a query"
        )
    quota = np.maximum((sizes * share + 1e-9).astype(np.int64), 1)
    pooled = sample_images(labels, quota, np.random.default_rng(seed))
    return Protocol(labels, gallery=np.flatnonzero(pooled), query=np.flatnonzero(~pooled))


def pool_templates(embeddings: Floats, labels: Ints) -> Floats:
    """(classes, dim): the normalised mean of each class's normalised embeddings."""
    sums = np.zeros((int(labels.max()) + 1, embeddings.shape[1]), dtype=np.float64)
    np.add.at(sums, labels, normalized(embeddings))
    return normalized(sums).astype(np.float32)


def search_test(query: Any, gallery: Any, protocol: Protocol) -> SearchTest:
    """Search one model's queries among another's templates.

    Args:
        query: (images, dim) embeddings of all images by the query model.
        gallery: (images, dim) embeddings of all images by the gallery model.
        protocol: which rows are queries and which are pooled.
    """
    query = checked_embeddings(query, "query")
    gallery = checked_embeddings(gallery, "gallery")
    require_same_dim(query, "query", gallery, "gallery")
    for rows, side in ((query, "query"), (gallery, "gallery")):
        if len(rows) != len(protocol.labels):
            raise UserError(
                f"the {side} model has {len(rows)} embeddings for {len(protocol.labels)} images"
            )
    templates = pool_templates(gallery[protocol.gallery], protocol.labels[protocol.gallery])
    scores = normalized(query[protocol.query]).astype(np.float32) @ templates.T
    return SearchTest(scores, protocol.query_labels)


def evaluate_upgrade(
    old: Any,
    new: Any,
    labels: Any,
    *,
    free: Any = None,
    far: float = HEADLINE_FAR,
    seed: int = 0,
    repeats: int = BOOTSTRAP_REPEATS,
) -> Evaluation:
    """Old self, cross and new self test of the same images, and the verdict.

    Args:
        old: (images, dim) the old model's embeddings.
        new: (images, dim) the new model's.
        labels: (images,) integers 0…C-1.
        free: (images, dim′) of a new model trained without compatibility: its self test is the
            upper bound, and its queries against the old gallery show what compatibility is for.
        far: false accept rate of the headline TAR; a larger one is taken where the number of
            classes does not carry it.
        seed: chooses the template images and the bootstrap samples.
        repeats: bootstrap samples.
    """
    if free is not None:
        free = checked_embeddings(free, "free")
    old = checked_embeddings(old, "old")
    protocol = make_protocol(labels, seed=seed)
    tests = {
        "old→old": search_test(old, old, protocol),
        "new→old": search_test(new, old, protocol),
        "new→new": search_test(new, new, protocol),
    }
    if free is not None:
        tests["free→free"] = search_test(free, free, protocol)
        if free.shape[1] == old.shape[1]:
            tests["free→old"] = search_test(free, old, protocol)
    wanted, far = far, headline_far(tests["old→old"].scores.shape[1], far)
    criteria = compatibility(
        tests["old→old"], tests["new→old"], far=far, seed=seed, repeats=repeats
    )
    return Evaluation(tests, criteria, far, wanted, protocol)


def compatibility(
    old_self: SearchTest,
    cross: SearchTest,
    *,
    far: float = HEADLINE_FAR,
    seed: int = 0,
    repeats: int = BOOTSTRAP_REPEATS,
) -> tuple[Criterion, ...]:
    """The criterion per metric, each difference with a paired bootstrap over classes.

    The classes of the queries are drawn with replacement, the same for both tests; the gallery
    stays as it is. (To draw the templates too would count the variance between pairs of classes
    three times over; a test checks the interval's calibration.)
    """
    draws = class_draws(cross, seed=seed, repeats=repeats)
    before, after = (headline_metrics(test, far) for test in (old_self, cross))
    sampled = [sampled_metrics(test, draws, far) for test in (old_self, cross)]
    return tuple(
        sampled_criterion(
            metric, before[metric], after[metric], sampled[1][metric] - sampled[0][metric]
        )
        for metric in after
    )


def headline_metrics(test: SearchTest, far: float) -> dict[str, float]:
    """The headline metrics of one test: TAR at ``far``, top-1, top-5."""
    tops = {f"top-{k}": test.top(k) for k in reported_ks(test.scores.shape[1])}
    return {tar_name(far): test.tar(far)} | tops


def class_draws(test: SearchTest, *, seed: int = 0, repeats: int = BOOTSTRAP_REPEATS) -> Ints:
    """(repeats, classes) how often each class of the queries is drawn, with replacement.

    The same seed gives the same draws for every test of the same protocol: differences are paired.
    """
    present = np.unique(test.query_labels)  # a class of one image has a template but no query
    weights = np.zeros((repeats, test.scores.shape[1]), dtype=np.int64)
    weights[:, present] = np.random.default_rng([seed, 1]).multinomial(
        len(present), np.full(len(present), 1 / len(present)), size=repeats
    )
    return weights


def sampled_metrics(test: SearchTest, draws: Ints, far: float) -> dict[str, Floats]:
    """(repeats,) values of each headline metric when the queries' classes count as drawn."""
    tops = {f"top-{k}": _bootstrap_top(test, draws, k) for k in reported_ks(draws.shape[1])}
    return {tar_name(far): _bootstrap_tar(test, draws, far)} | tops


def sampled_criterion(metric: str, old_self: float, cross: float, differences: Floats) -> Criterion:
    """The criterion with the interval of sampled differences cross − old self."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(differences, [tail, 1 - tail])
    return Criterion(metric, old_self, cross, float(low), float(high))


def _bootstrap_top(test: SearchTest, weights: Ints, k: int) -> Floats:
    """(repeats,) top-k where class c's queries count ``weights[:, c]`` times."""
    classes = weights.shape[1]
    hits = np.bincount(test.query_labels, weights=test.ranks < k, minlength=classes)
    queries = np.bincount(test.query_labels, minlength=classes)
    return (weights @ hits) / (weights @ queries)


def _bootstrap_tar(test: SearchTest, weights: Ints, far: float) -> Floats:
    """(repeats,) TAR at FAR where class c's queries count ``weights[:, c]`` times.

    The threshold of each repeat is found in two steps, so that a repeat costs no pass over all
    impostors: the block of sorted impostors in which the accepted mass passes the limit, from
    cumulated counts per class, and then the place within that block.
    """
    classes = int(weights.shape[1])
    queries = np.bincount(test.query_labels, minlength=classes)
    others = test.query_labels[:, None] != np.arange(classes)
    impostor_class = np.broadcast_to(test.query_labels[:, None], others.shape)[others]
    order = np.argsort(-test.impostor, kind="stable")
    scores, impostor_class = test.impostor[order], impostor_class[order]
    size = max(_BLOCK, 8 * classes)  # so that the table of counts stays smaller than the scores
    blocks = -(-len(scores) // size)
    cell = np.arange(len(scores)) // size * classes + impostor_class
    counts = np.bincount(cell, minlength=blocks * classes).reshape(blocks, classes)
    counts_to_end = np.cumsum(counts, axis=0).astype(np.float64)

    result = np.empty(len(weights))
    for start in range(0, len(weights), _REPEATS_AT_ONCE):
        part = weights[start : start + _REPEATS_AT_ONCE].astype(np.float64)
        repeat = np.arange(len(part))
        allowed = far * (part @ queries)[:, None] * (classes - 1) + 1e-9
        mass = np.pad(part @ counts_to_end.T, ((0, 0), (1, 0)))  # accepted before each block
        block = np.minimum((mass[:, 1:] <= allowed).sum(axis=1), blocks - 1)
        place = block[:, None] * size + np.arange(size)
        inside = place < len(scores)
        place = np.minimum(place, len(scores) - 1)
        steps = part[repeat[:, None], impostor_class[place]]
        within = mass[repeat, block][:, None] + np.cumsum(steps, axis=1)
        # The first impostor that takes the accepted mass over the limit must be refused.
        first_refused = block * size + ((within <= allowed) & inside).sum(axis=1)
        thresholds = np.append(scores, -np.inf)[first_refused]
        accepted = test.genuine[None, :] > thresholds[:, None]
        counted = part[:, test.query_labels]
        result[start : start + len(part)] = (accepted * counted).sum(axis=1) / counted.sum(axis=1)
    return result
