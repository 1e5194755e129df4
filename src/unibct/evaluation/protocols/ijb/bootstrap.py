"""Metrics when the query's subjects are drawn with replacement."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.evaluation.metrics import Floats
from unibct.evaluation.protocols.ijb.pairs import VerificationTest

Ints: TypeAlias = NDArray[np.int64]

_ENTRIES_AT_ONCE = 4_000_000


def subject_draws(subjects: int, *, seed: int, repeats: int) -> Ints:
    """(repeats, subjects) how often each subject is drawn; the same for every test."""
    shares = np.full(subjects, 1 / subjects)
    return np.random.default_rng([seed, 1]).multinomial(subjects, shares, size=repeats)


def sampled_top(ranks: Ints, subjects: Ints, draws: Ints, k: int) -> Floats:
    """(repeats,) top-k where the probes of subject s count ``draws[:, s]`` times."""
    count = draws.shape[1]
    hits = np.bincount(subjects[ranks < k], minlength=count).astype(np.float64)
    probes = np.bincount(subjects, minlength=count).astype(np.float64)
    return _share(draws @ hits, draws @ probes)


def sampled_tar(
    test: VerificationTest,
    genuine_subjects: NDArray[np.integer[Any]],
    impostor_subjects: NDArray[np.integer[Any]],
    draws: Ints,
    far: float,
) -> Floats:
    """(repeats,) TAR at FAR where the pairs of query subject s count ``draws[:, s]`` times.

    Only the highest impostors can set a threshold. Twice as many as are allowed are looked at,
    and twice as many again as long as some repeat allows all of them.

    Args:
        test: the scores.
        genuine_subjects: (genuine,) the query's subject, 0…S-1.
        impostor_subjects: (impostor,) the same of the impostor pairs.
        draws: (repeats, S) how often each subject is drawn.
        far: false accept rate.
    """
    subjects = draws.shape[1]
    impostors = np.bincount(impostor_subjects, minlength=subjects).astype(np.float64)
    allowed = far * (draws @ impostors) + 1e-9
    total = len(test.impostor)
    kept = min(total, int(2 * far * total) + 1024)
    thresholds = np.empty(len(draws))
    unset = np.arange(len(draws))
    while len(unset):
        highest = _highest(test.impostor, kept)
        scores, subject = test.impostor[highest], impostor_subjects[highest]
        if kept == total:
            scores = np.append(scores, -np.inf)
        size = max(1, _ENTRIES_AT_ONCE // kept)
        left: list[Ints] = []
        for start in range(0, len(unset), size):
            repeats = unset[start : start + size]
            accepted = np.cumsum(draws[repeats].astype(np.float64)[:, subject], axis=1)
            # The first impostor that takes the accepted mass over the limit must be refused.
            refused = (accepted <= allowed[repeats, None]).sum(axis=1)
            found = refused < len(scores)
            thresholds[repeats[found]] = scores[refused[found]]
            left.append(repeats[~found])
        unset = np.concatenate(left) if kept < total else unset[:0]
        kept = min(total, 2 * kept)

    order = np.argsort(test.genuine, kind="stable")
    ascending, subject = test.genuine[order], genuine_subjects[order]
    genuine = np.bincount(genuine_subjects, minlength=subjects).astype(np.float64)
    places = np.searchsorted(ascending, thresholds.astype(ascending.dtype), side="right")
    accepted = np.array(
        [float(row[subject[place:]].sum()) for row, place in zip(draws, places, strict=True)]
    )
    return _share(accepted, draws @ genuine)


def _highest(scores: Floats, count: int) -> Ints:
    """The places of the ``count`` highest scores, descending."""
    highest = np.argpartition(scores, len(scores) - count)[len(scores) - count :]
    return highest[np.argsort(-scores[highest], kind="stable")]


def _share(part: Floats, whole: Floats) -> Floats:
    """A repeat that draws nothing to count has no value: it counts as zero in both tests."""
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
