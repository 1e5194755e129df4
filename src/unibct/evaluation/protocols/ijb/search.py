"""1:N identification, closed and open set, in several galleries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import checked_embeddings, checked_labels, normalized, require_same_dim
from unibct.errors import UserError
from unibct.evaluation.metrics import Floats, mate_ranks

Ints: TypeAlias = NDArray[np.int64]

_SCORES_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class OpenSearch:
    """1:N open set in one gallery: what decides about each probe.

    Attributes:
        mate: (probes with a mate,) the score of the best mate.
        other: (probes with a mate,) the best score of another subject.
        unmated: (probes without a mate,) the best score.
    """

    mate: Floats
    other: Floats
    unmated: Floats

    def tpir(self, fpir: float) -> float:
        """The share of mates found: above all others and above the threshold.

        The threshold is the field's: of the n scores of probes without a mate, descending, the
        one at max(floor(n · fpir) − 1, 0).
        """
        if not 0 < fpir <= 1:
            raise UserError(f"a false positive identification rate lies in (0, 1], not {fpir}")
        if not len(self.mate) or not len(self.unmated):
            missing = "with" if not len(self.mate) else "without"
            raise UserError(
                f"no probe is {missing} a mate in a gallery: the open set needs both kinds"
            )
        rank = max(int(len(self.unmated) * fpir + 1e-9) - 1, 0)
        threshold = float(np.sort(self.unmated)[::-1][rank])
        return float(np.mean((self.mate > threshold) & (self.mate > self.other)))


@dataclass(frozen=True)
class IdentificationTest:
    """1:N: the rank of each probe's mate in the merged galleries, and the search in each."""

    ranks: Ints
    searches: dict[str, OpenSearch]

    def top(self, k: int) -> float:
        """The share of probes whose mate is among the k best of the merged galleries."""
        if k < 1:
            raise UserError(f"k must be at least 1, not {k}")
        return float(np.mean(self.ranks < k))

    def tpir(self, fpir: float) -> float:
        """TPIR at FPIR in the open set, the mean over the galleries."""
        return float(np.mean([search.tpir(fpir) for search in self.searches.values()]))


def identification_test(
    query: Any, query_subjects: Any, galleries: dict[str, tuple[Any, Any]]
) -> IdentificationTest:
    """Search each probe's vector in every gallery.

    Args:
        query: (probes, dim).
        query_subjects: (probes,); each has a mate in one of the galleries.
        galleries: name -> (templates, dim) vectors and (templates,) subjects.
    """
    query = normalized(checked_embeddings(query, "query")).astype(np.float32)
    query_subjects = checked_labels(query_subjects, len(query), "query_subjects")
    vectors = [checked_embeddings(vectors, name) for name, (vectors, _) in galleries.items()]
    for name, array in zip(galleries, vectors, strict=True):
        require_same_dim(query, "query", array, name)
    merged = normalized(np.concatenate(vectors)).astype(np.float32)
    subjects = np.concatenate(
        [
            checked_labels(labels, len(array), f"subjects of {name}")
            for (name, (_, labels)), array in zip(galleries.items(), vectors, strict=True)
        ]
    )
    missing = ~np.isin(query_subjects, subjects)
    if missing.any():
        row = int(missing.argmax())
        raise UserError(
            f"probe row {row} has the subject {int(query_subjects[row])}, which no gallery has; "
            "the closed set needs a mate for each probe"
        )
    ends = np.cumsum([len(array) for array in vectors])
    parts = [slice(end - len(array), end) for array, end in zip(vectors, ends, strict=True)]
    ranks: list[Ints] = []
    best: list[Floats] = []
    block = max(1, _SCORES_AT_ONCE // len(merged))
    for start in range(0, len(query), block):
        scores = query[start : start + block] @ merged.T
        wanted = query_subjects[start : start + block]
        ranks.append(mate_ranks(scores, wanted, subjects))
        best.append(_best_scores(scores, wanted, subjects, parts))
    mate, other = np.concatenate(best, axis=2)
    searches = {
        name: OpenSearch(mate[i][mated], other[i][mated], other[i][~mated])
        for i, name in enumerate(galleries)
        for mated in [np.isfinite(mate[i])]
    }
    return IdentificationTest(np.concatenate(ranks), searches)


def _best_scores(
    scores: Floats, query_subjects: Ints, gallery_subjects: Ints, parts: Sequence[slice]
) -> Floats:
    """(2, galleries, probes): the best mate's and the best other's score, -inf if there is none."""
    best = np.full((2, len(parts), len(scores)), -np.inf, dtype=np.float32)
    probes, entries = _mates(query_subjects, gallery_subjects)
    mate_scores = scores[probes, entries]
    others = scores.copy()
    others[probes, entries] = -np.inf
    for number, part in enumerate(parts):
        inside = (entries >= part.start) & (entries < part.stop)
        np.maximum.at(best[0, number], probes[inside], mate_scores[inside])
        best[1, number] = others[:, part].max(axis=1)
    return best


def _mates(query_subjects: Ints, gallery_subjects: Ints) -> tuple[Ints, Ints]:
    """All (probe, gallery entry) of the same subject."""
    order = np.argsort(gallery_subjects, kind="stable")
    ordered = gallery_subjects[order]
    low = np.searchsorted(ordered, query_subjects, side="left")
    count = np.searchsorted(ordered, query_subjects, side="right") - low
    probes = np.repeat(np.arange(len(query_subjects)), count)
    step = np.arange(len(probes)) - np.repeat(np.cumsum(count) - count, count)
    return probes, order[np.repeat(low, count) + step]
