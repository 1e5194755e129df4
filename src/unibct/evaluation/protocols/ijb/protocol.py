"""The tests of IJB-B and IJB-C on pooled templates, and the compatibility criterion.

1:1: every pair of the list is scored, TAR at FAR. 1:N closed set: each probe searches the merged
galleries, top-1, top-5, top-10. 1:N open set: each probe searches each gallery by itself, TPIR at
FPIR, averaged. In a cross test the query's side comes from the new model and the gallery's from
the old one.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import checked_embeddings, checked_labels, normalized, require_same_dim
from unibct.errors import UserError
from unibct.evaluation.evaluate import (
    BOOTSTRAP_REPEATS,
    HEADLINE_FAR,
    Criterion,
    Verdict,
    carried_fars,
    far_note,
    headline_far,
    joint_verdict,
    sampled_criterion,
    tar_name,
)
from unibct.evaluation.metrics import Floats, ThresholdRule
from unibct.evaluation.protocols.ijb.bootstrap import sampled_tar, sampled_top, subject_draws
from unibct.evaluation.protocols.ijb.meta import Meta, Subjects, rows_of
from unibct.evaluation.protocols.ijb.pairs import VerificationTest, pair_scores
from unibct.evaluation.protocols.ijb.search import IdentificationTest, identification_test

Ints: TypeAlias = NDArray[np.int64]

KS = (1, 5, 10)
CRITERION_KS = (1, 5)
FPIRS = (0.01, 0.1)
OLD_SELF, CROSS = "old→old", "new→old"
TESTS = (OLD_SELF, CROSS, "new→new", "old→new")


@dataclass(frozen=True)
class IjbEvaluation:
    """The tests of two models on one benchmark, and the criterion per metric.

    Both kinds have the tests old→old, new→old (deployment: the probe's side from the new model),
    new→new and old→new (the enrolled side from the new model: the paper's cross test, 1:1).
    """

    verification: dict[str, VerificationTest]
    identification: dict[str, IdentificationTest]
    criteria: tuple[Criterion, ...]
    far: float
    wanted_far: float
    fars: tuple[float, ...]
    subjects: int

    @property
    def tests(self) -> list[str]:
        """The names of the tests."""
        return list(self.verification)

    @property
    def note(self) -> str:
        """What the reversed cross test is, and what to know of the headline's FAR."""
        reverse = (
            "old→new has the enrolled side from the new model; "
            "its TAR is the paper's cross test of 1:1"
        )
        headline = far_note(self.far, self.wanted_far, self.subjects)
        return reverse if headline is None else f"{headline}; {reverse}"

    def as_json(self) -> dict[str, Any]:
        """Plain values for machines."""
        pairs = self.verification[OLD_SELF]
        return {
            "verdict": self.verdict,
            "far": self.far,
            "note": self.note,
            "criteria": [criterion.as_json() for criterion in self.criteria],
            "tests": {name: self.metrics(name) for name in self.tests},
            "pairs": {"genuine": len(pairs.genuine), "impostor": len(pairs.impostor)},
        }

    @property
    def verdict(self) -> Verdict:
        """Compatible only if each metric is; not compatible as soon as one is not."""
        return joint_verdict([criterion.verdict for criterion in self.criteria])

    def metrics(self, test: str, *, rule: ThresholdRule = "strict") -> dict[str, float]:
        """All metrics of one test: TAR at each FAR that the subjects carry, top-k, TPIR."""
        tars = self.verification[test].tars(self.fars, rule=rule)
        values = {tar_name(far): tar for far, tar in tars.items()}
        search = self.identification[test]
        values |= {f"top-{k}": search.top(k) for k in KS}
        return values | {f"TPIR@{fpir:g}": search.tpir(fpir) for fpir in FPIRS}


def evaluate_templates(
    meta: Meta,
    old: tuple[Any, Any],
    new: tuple[Any, Any],
    *,
    far: float = HEADLINE_FAR,
    seed: int = 0,
    repeats: int = BOOTSTRAP_REPEATS,
) -> IjbEvaluation:
    """Old self, cross and new self test of one benchmark, and the verdict.

    Args:
        meta: pairs, galleries and probes.
        old: template ids and (templates, dim) vectors of the old model, see ``pool_templates``.
        new: the same of the new model.
        far: false accept rate of the criterion's TAR (by the strict rule); a larger one is taken
            where the number of subjects does not carry it.
        seed: chooses the bootstrap samples.
        repeats: bootstrap samples.
    """
    if seed < 0 or repeats < 1:
        raise UserError(f"seed must be at least 0 and repeats at least 1, not {seed}, {repeats}")
    models = {"old": _Model.of("old", *old), "new": _Model.of("new", *new)}
    require_same_dim(models["new"].vectors, "new", models["old"].vectors, "old")
    gallery_side, query_side = _sides(meta)
    pair_subjects = _subjects_of(query_side, meta)
    subjects = np.unique(np.concatenate([pair_subjects, meta.probes.subjects]))
    pair_subjects = np.searchsorted(subjects, pair_subjects).astype(np.int32)
    probe_subjects = np.searchsorted(subjects, meta.probes.subjects)

    verification: dict[str, VerificationTest] = {}
    for name in TESTS:
        query, gallery = (models[part] for part in name.split("→"))
        scores = pair_scores(
            gallery.vectors, query.vectors, gallery.rows(gallery_side), query.rows(query_side)
        )
        verification[name] = VerificationTest(scores[meta.same], scores[~meta.same])
        del scores
    identification = {
        name: _search(meta, *(models[part] for part in name.split("→"))) for name in TESTS
    }

    wanted, far = far, headline_far(len(subjects), far)
    draws = subject_draws(len(subjects), seed=seed, repeats=repeats)
    genuine_subjects, impostor_subjects = pair_subjects[meta.same], pair_subjects[~meta.same]
    point: list[dict[str, float]] = []
    sampled: list[dict[str, Floats]] = []
    for name in (OLD_SELF, CROSS):
        pairs, search = verification[name], identification[name]
        point.append(
            {tar_name(far): pairs.tars([far])[far]}
            | {f"top-{k}": search.top(k) for k in CRITERION_KS}
        )
        sampled.append(
            {tar_name(far): sampled_tar(pairs, genuine_subjects, impostor_subjects, draws, far)}
            | {
                f"top-{k}": sampled_top(search.ranks, probe_subjects, draws, k)
                for k in CRITERION_KS
            }
        )
    criteria = tuple(
        sampled_criterion(metric, point[0][metric], point[1][metric], values - sampled[0][metric])
        for metric, values in sampled[1].items()
    )
    fars = tuple(sorted({far, *carried_fars(len(subjects))}))
    return IjbEvaluation(verification, identification, criteria, far, wanted, fars, len(subjects))


@dataclass(frozen=True)
class _Model:
    """One model's templates, by ascending id."""

    name: str
    ids: Ints
    vectors: Floats

    @classmethod
    def of(cls, name: str, ids: Any, vectors: Any) -> "_Model":
        vectors = normalized(checked_embeddings(vectors, name)).astype(np.float32)
        ids = checked_labels(ids, len(vectors), f"template ids of {name}")
        order = np.argsort(ids, kind="stable")
        twice = np.flatnonzero(np.diff(ids[order]) == 0)
        if len(twice):
            raise UserError(
                f"{name} has the template {int(ids[order[twice[0]]])} twice; pool each one once"
            )
        return cls(name, ids[order], vectors[order])

    def rows(self, templates: Ints) -> NDArray[np.int32]:
        rows = rows_of(self.ids, templates)
        if len(rows) and rows.min() < 0:
            raise UserError(
                f"the {self.name} model has no vector of template "
                f"{int(templates[rows.argmin()])}; embed and pool all images of the benchmark"
            )
        return rows.astype(np.int32)


def _sides(meta: Meta) -> tuple[Ints, Ints]:
    """The pairs' templates on the gallery's side and on the query's.

    The lists give the enrolled template first. Should a list have them the other way round, which
    the galleries' files tell, the sides are exchanged.
    """
    enrolled = np.unique(np.concatenate([g.templates for g in meta.galleries.values()]))
    shares = [float(np.mean(rows_of(enrolled, side) >= 0)) for side in (meta.first, meta.second)]
    return (meta.first, meta.second) if shares[0] >= shares[1] else (meta.second, meta.first)


def _subjects_of(templates: Ints, meta: Meta) -> Ints:
    """The subject of each template, from the files of probes and galleries."""
    known: list[Subjects] = [meta.probes, *meta.galleries.values()]
    ids, first = np.unique(np.concatenate([s.templates for s in known]), return_index=True)
    subjects = np.concatenate([s.subjects for s in known])[first]
    rows = rows_of(ids, templates)
    if len(rows) and rows.min() < 0:
        raise UserError(
            f"template {int(templates[rows.argmin()])} of the pairs is in no file of probes or "
            "galleries, which say whose it is; all must come from the same release"
        )
    return subjects[rows]


def _search(meta: Meta, query: _Model, gallery: _Model) -> IdentificationTest:
    return identification_test(
        query.vectors[query.rows(meta.probes.templates)],
        meta.probes.subjects,
        {
            name: (gallery.vectors[gallery.rows(part.templates)], part.subjects)
            for name, part in meta.galleries.items()
        },
    )
