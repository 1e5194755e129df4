"""The tests of IJB-B and IJB-C on pooled templates, and the compatibility criterion.

- 1:1: every pair of the list is scored, for TAR at FAR.
- 1:N, closed set: each probe searches the merged galleries, for top-1, top-5 and top-10.
- 1:N, open set: each probe searches each gallery on its own, for TPIR at FPIR; the galleries are
  averaged.

In a cross test the queries come from the new model and the gallery from the old one.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import (
    Floats,
    Ints,
    checked_embeddings,
    checked_labels,
    lowered,
    normalized,
    require_same_dim,
)
from unibct.errors import UserError
from unibct.evaluation.blending import MIDPOINT, blended
from unibct.evaluation.bootstrap import REPEATS
from unibct.evaluation.criterion import few_classes_note
from unibct.evaluation.directions import BLEND, CROSS, NEW_SELF, OLD_SELF, REVERSED_CROSS, sides
from unibct.evaluation.metrics.table import measured_metrics
from unibct.evaluation.metrics.verification import ThresholdRule
from unibct.evaluation.protocols.ijb.meta import Meta, Subjects, rows_of
from unibct.evaluation.protocols.ijb.pair_scores import pair_scores
from unibct.evaluation.protocols.ijb.search import search_galleries
from unibct.evaluation.resolution import carried_fars, far_note, headline_far
from unibct.evaluation.search_test import SearchTest, listed_pairs
from unibct.evaluation.seen_classes import SeenClasses
from unibct.evaluation.upgrade import SearchEvaluation, compared_answers, joined_notes

TOP_KS = (1, 5, 10)
TESTS = (OLD_SELF, CROSS, NEW_SELF, REVERSED_CROSS)
_REVERSED_NOTE = (
    f"{REVERSED_CROSS} has the enrolled side from the new model; "
    "its TAR is the paper's cross test of 1:1"
)

_SEEN = SeenClasses(None, None, "they have numbers of their own", "subjects")


@dataclass(frozen=True, kw_only=True)
class IjbEvaluation(SearchEvaluation):
    """The tests of two models on one benchmark, and the criterion per metric.

    The tests are old→old, new→old (as in deployment, the probes from the new model), new→new and
    old→new (the enrolled side from the new model, which is the paper's cross test of 1:1), and
    blend→old (the probes are blends of both models' templates).

    Attributes:
        fars: false accept rates of the reported TARs.
    """

    fars: tuple[float, ...]

    def metrics(self, test: str, *, rule: ThresholdRule | None = None) -> dict[str, float]:
        """Return all metrics of one test: TAR at each FAR, top-k, TPIR.

        Args:
            test: its direction.
            rule: how the thresholds are set; by default as in the reported values.
        """
        if rule is None:
            return self.values[test]
        return measured_metrics(self.tests[test], self.fars, rule=rule)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        pairs = self.tests[OLD_SELF].pairs
        return super().as_json() | {
            "pairs": {"genuine": len(pairs.genuine), "impostor": len(pairs.impostor)},
        }


def evaluate_templates(
    meta: Meta,
    old: tuple[Any, Any],
    new: tuple[Any, Any],
    *,
    far: float | None = None,
    rule: ThresholdRule = "strict",
    seed: int = 0,
    repeats: int = REPEATS,
    alpha: float = MIDPOINT,
    score_scale: float | None = None,
) -> IjbEvaluation:
    """Run the self tests and the cross test in both directions, and give a verdict.

    Args:
        meta: pairs, galleries and probes.
        old: template ids and (templates, dim) vectors of the old model, see ``pool_templates``.
        new: the same of the new model.
        far: false accept rate of the criterion's TAR (by the strict rule); by default the smallest
            of 1e-4, 1e-3, … that the number of subjects can measure.
        rule: how the thresholds of the reported TARs are set, see ``tar_at_far``.
        seed: chooses the bootstrap samples.
        repeats: number of bootstrap samples.
        alpha: the share of the new template in blended probes.
        score_scale: the new model's, see ``evaluate_upgrade``.
    """
    if seed < 0 or repeats < 1:
        raise UserError(f"seed must be at least 0 and repeats at least 1, not {seed}, {repeats}")
    models = {"old": _ModelTemplates.of("old", *old), "new": _ModelTemplates.of("new", *new)}
    require_same_dim(models["new"].vectors, "new", models["old"].vectors, "old")
    lists = _SubjectLists.of(meta)
    tests = {
        direction: _template_test(meta, lists, *(models[side] for side in sides(direction)))
        for direction in TESTS
    }
    blend = models["new"].blended_with(models["old"], alpha)
    tests[BLEND] = _template_test(meta, lists, blend, models["old"])
    used_far = headline_far(lists.subjects, far)
    carried = tuple(carried_fars(lists.subjects))
    fars = tuple(sorted({used_far, *carried}))
    return IjbEvaluation(
        values={name: measured_metrics(test, fars, rule=rule) for name, test in tests.items()},
        note=joined_notes(
            far_note(used_far, far, lists.subjects, "subjects"),
            few_classes_note(lists.subjects, "subjects"),
            _REVERSED_NOTE,
            _SEEN.note,
            rule=rule,
        ),
        seen=_SEEN,
        tests=tests,
        far=used_far,
        fars=fars,
        carried_fars=carried,
        **compared_answers(tests, used_far, seed, repeats, alpha=alpha, score_scale=score_scale),
    )


@dataclass(frozen=True)
class _SubjectLists:
    """The two templates of each pair, and the subjects of the queries as numbers 0…S-1.

    Attributes:
        gallery_side: (pairs,) template ids of the enrolled side.
        query_side: (pairs,) template ids of the query's side.
        genuine_subjects: (genuine pairs,) the query's subject.
        impostor_subjects: (impostor pairs,) the query's subject.
        probe_subjects: (probes,).
        subject_ids: (S,) the id of each subject, ascending.
    """

    gallery_side: Ints
    query_side: Ints
    genuine_subjects: NDArray[np.int32]
    impostor_subjects: NDArray[np.int32]
    probe_subjects: Ints
    subject_ids: Ints

    @property
    def subjects(self) -> int:
        """How many subjects there are."""
        return len(self.subject_ids)

    def number(self, subjects: Ints | None) -> Ints:
        """Return the numbers 0…S-1 of subjects' ids."""
        assert subjects is not None
        return np.searchsorted(self.subject_ids, subjects)

    @classmethod
    def of(cls, meta: Meta) -> "_SubjectLists":
        gallery_side, query_side = _sides(meta)
        pair_subjects = _subjects_of(query_side, meta)
        subjects = np.unique(np.concatenate([pair_subjects, meta.probes.subjects]))
        pair_subjects = np.searchsorted(subjects, pair_subjects).astype(np.int32)
        return cls(
            gallery_side,
            query_side,
            pair_subjects[meta.same],
            pair_subjects[~meta.same],
            np.searchsorted(subjects, meta.probes.subjects),
            subjects,
        )


def _template_test(
    meta: Meta, lists: _SubjectLists, query: "_ModelTemplates", gallery: "_ModelTemplates"
) -> SearchTest:
    """Score the pairs and search the galleries with one query model and one gallery model."""
    scores = pair_scores(
        gallery.vectors,
        query.vectors,
        gallery.rows(lists.gallery_side),
        query.rows(lists.query_side),
    )
    pairs = listed_pairs(
        lowered(scores[meta.same]),
        scores[~meta.same],
        lists.genuine_subjects,
        lists.impostor_subjects,
    )
    del scores
    search = search_galleries(
        query.vectors[query.rows(meta.probes.templates)],
        meta.probes.subjects,
        {
            name: (gallery.vectors[gallery.rows(part.templates)], part.subjects)
            for name, part in meta.galleries.items()
        },
    )
    return SearchTest(
        pairs,
        ranks=search.ranks,
        query_classes=lists.probe_subjects,
        classes=lists.subjects,
        templates=sum(len(part.templates) for part in meta.galleries.values()),
        ks=TOP_KS,
        open_searches={
            name: replace(
                open_search,
                mate_classes=lists.number(open_search.mate_classes),
                unmated_classes=lists.number(open_search.unmated_classes),
            )
            for name, open_search in search.open_searches.items()
        },
    )


@dataclass(frozen=True)
class _ModelTemplates:
    """The template vectors of one model.

    Attributes:
        name: ``old`` or ``new``, for messages.
        ids: (templates,) in ascending order.
        vectors: (templates, dim) normalised.
    """

    name: str
    ids: Ints
    vectors: Floats

    @classmethod
    def of(cls, name: str, ids: Any, vectors: Any) -> "_ModelTemplates":
        vectors = normalized(checked_embeddings(vectors, name)).astype(np.float32)
        ids = checked_labels(ids, len(vectors), f"template ids of {name}")
        order = np.argsort(ids, kind="stable")
        repeated = np.flatnonzero(np.diff(ids[order]) == 0)
        if len(repeated):
            raise UserError(
                f"{name} has the template {int(ids[order[repeated[0]]])} twice; pool each one once"
            )
        return cls(name, ids[order], vectors[order])

    def blended_with(self, old: "_ModelTemplates", alpha: float) -> "_ModelTemplates":
        """Return blends of the old model's templates and these, for templates of both."""
        ids = np.intersect1d(self.ids, old.ids)
        vectors = blended(old.vectors[old.rows(ids)], self.vectors[self.rows(ids)], alpha)
        return _ModelTemplates("blended", ids, vectors)

    def rows(self, templates: Ints) -> NDArray[np.int32]:
        rows = rows_of(self.ids, templates)
        if len(rows) and rows.min() < 0:
            raise UserError(
                f"the {self.name} model has no vector of template "
                f"{int(templates[rows.argmin()])}; embed and pool all images of the benchmark"
            )
        return rows.astype(np.int32)


def _sides(meta: Meta) -> tuple[Ints, Ints]:
    """Return the gallery's template and the query's template of each pair.

    Most lists give the enrolled template first. The files of the galleries show which templates
    are enrolled; if they are mostly in the second column, the two columns are swapped.
    """
    enrolled = np.unique(np.concatenate([g.templates for g in meta.galleries.values()]))
    shares = [float(np.mean(rows_of(enrolled, side) >= 0)) for side in (meta.first, meta.second)]
    return (meta.first, meta.second) if shares[0] >= shares[1] else (meta.second, meta.first)


def _subjects_of(templates: Ints, meta: Meta) -> Ints:
    """Return the subject of each template, from the files of probes and galleries."""
    files: list[Subjects] = [meta.probes, *meta.galleries.values()]
    ids, first = np.unique(np.concatenate([file.templates for file in files]), return_index=True)
    subjects = np.concatenate([file.subjects for file in files])[first]
    rows = rows_of(ids, templates)
    if len(rows) and rows.min() < 0:
        raise UserError(
            f"template {int(templates[rows.argmin()])} of the pairs is in no file of probes or "
            "galleries, so its subject is unknown; all files must come from the same release"
        )
    return subjects[rows]
