"""A tie never helps: rows of two classes that are the same, or the same to rounding."""

import numpy as np
import pytest

from tests.evaluation.protocols.test_ijb_tests import benchmark_of
from unibct.arrays import normalized
from unibct.embeddings.recall import recall_at_1
from unibct.evaluation.identification import average_precisions, identification
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.mixed_gallery import POINTS, MixedScores, TwoKinds, mixed_quality
from unibct.evaluation.protocols.ijb_tests import evaluate_templates
from unibct.evaluation.score_map import ScoreMap
from unibct.evaluation.score_table import NormalizedRows
from unibct.evaluation.search_test import scored_test, search_test
from unibct.evaluation.templates import chosen_gallery
from unibct.evaluation.verification import verification
from unibct.maps.space_map import found_mates

CLASSES, ROWS, QUERIES, DIM = 22, 3, 11, 96
FARS = (0.01, 0.1, 0.3)


def twins(*, stretched=False, seed=0):
    """Return (vectors, labels, split): class c + 11 has the rows and the queries of class c.

    Args:
        stretched: the second class's rows are a multiple, so that they differ by rounding.
    """
    rng = np.random.default_rng(seed)
    size = ROWS + QUERIES
    centres = np.abs(rng.normal(size=(CLASSES // 2, 1, DIM))) + 0.5
    vectors = centres + 0.9 * rng.normal(size=(CLASSES // 2, size, DIM))
    first = vectors.reshape(-1, DIM).astype(np.float32)
    second = first * np.float32(3.7) if stretched else first
    labels = np.repeat(np.arange(CLASSES), size)
    place = np.arange(len(labels))
    in_gallery = place % size < ROWS
    split = chosen_gallery(labels, place[~in_gallery], place[in_gallery])
    return np.concatenate([first, second]), labels, split


def exact_scores(query, gallery):
    """Return float64 cosines, one product at a time: equal rows have equal scores."""
    query, gallery = (normalized(side).astype(np.float64) for side in (query, gallery))
    return np.array([[float(np.dot(q, g)) for g in gallery] for q in query])


def naive_metrics(scores, query_labels, entry_labels):
    """Return top-1, top-5, mAP and the TARs; of equal scores the impostor's comes first."""
    ranks, precisions, genuine, impostor = [], [], [], []
    for row, label in zip(scores, query_labels, strict=True):
        is_mate = entry_labels == label
        order = np.lexsort((is_mate, -row))  # the best first, of equals the impostor first
        found = np.flatnonzero(is_mate[order])
        ranks.append(int(found[0]))
        precisions.append(np.mean(np.arange(1, len(found) + 1) / (found + 1)))
        genuine += row[is_mate].tolist()
        impostor += row[~is_mate].tolist()
    descending = np.sort(impostor)[::-1]
    tars = {far: np.mean(genuine > descending[int(far * len(impostor))]) for far in FARS}
    return {k: np.mean(np.array(ranks) < k) for k in (1, 5)} | {"mAP": np.mean(precisions)} | tars


@pytest.mark.parametrize("stretched", [False, True])
@pytest.mark.parametrize("mode", ["templates", "images"])
def test_no_metric_of_a_search_test_counts_a_tie(mode, stretched):
    vectors, _, split = twins(stretched=stretched)
    query = vectors[split.query]
    # The second of two twins is exactly the first one here.
    exact, _, _ = twins()
    rows, row_labels = exact[split.gallery], split.gallery_labels
    image_scores = exact_scores(exact[split.query], rows)
    scores, entry_labels = image_scores, row_labels
    if mode == "templates":
        sums = normalized(rows).astype(np.float64).reshape(CLASSES, ROWS, DIM).sum(axis=1)
        scores = exact_scores(exact[split.query], normalized(sums).astype(np.float32))
        entry_labels = np.arange(CLASSES)
    test = search_test(vectors, vectors, split, mode=mode)
    measured = measured_metrics(test, [0.1])
    want = naive_metrics(scores, split.query_labels, entry_labels)
    assert (len(query), want[1], want[5] > 0.3) == (242, 0, True)
    assert measured["top-1"] == 0
    assert measured["top-5"] == pytest.approx(want[5])
    assert {far: test.tar(far) for far in FARS} == pytest.approx({far: want[far] for far in FARS})
    exact_test = scored_test(scores, split.query_labels, entry_labels)
    for fpir in (0.1, 0.5):
        assert test.tpir(fpir) == pytest.approx(exact_test.tpir(fpir))
    image_want = naive_metrics(image_scores, split.query_labels, row_labels)
    assert measured["mAP"] == pytest.approx(image_want["mAP"])


def test_a_query_that_two_classes_share_is_not_accepted_beside_itself():
    """Its score with a row is genuine in one class and an impostor's in the other."""
    rng = np.random.default_rng(1)
    query = np.abs(rng.normal(size=(39, DIM))).astype(np.float32)
    labels = np.arange(40)  # the rows are of classes 0…38, and the queries a second time of 39
    vectors = np.concatenate([query, query, np.abs(rng.normal(size=(40, DIM)))]).astype(np.float32)
    labels = np.concatenate([np.arange(39), np.full(39, 39), labels])
    split = chosen_gallery(labels, np.arange(78), np.arange(78, 118))
    test = search_test(vectors, vectors, split)
    scores = exact_scores(vectors[:78], vectors[78:])
    want = naive_metrics(scores, labels[:78], np.arange(40))
    assert {far: test.tar(far) for far in FARS} == pytest.approx({far: want[far] for far in FARS})
    same = np.repeat([True, False], 39)
    pairs = np.tile(query, (2, 1)), np.tile(vectors[78:117], (2, 1))
    assert set(verification(*pairs, same, fars=[1 / 39]).values()) == {1 / 39}


def test_identification_and_recall_count_no_tie():
    vectors, labels, split = twins()
    rows, row_labels = vectors[split.gallery], split.gallery_labels
    assert identification(vectors[split.query], split.query_labels, rows, row_labels)[1] == 0
    query, labels_of_query = NormalizedRows(vectors, split.query), split.query_labels
    precisions = average_precisions(query, labels_of_query, normalized(rows), row_labels)
    assert precisions.max() <= 0.5
    assert recall_at_1(vectors, labels) == 0
    one_each = slice(None, None, ROWS)  # so few rows that only the first counts
    found = found_mates(
        vectors[split.query], split.query_labels, rows[one_each], row_labels[one_each]
    )
    assert found is not None
    assert found.share == 0


def test_no_search_and_no_pair_of_ijb_counts_a_tie():
    """Subject s + 30 has the templates of subject s, each in another gallery or in the same."""
    read, templates, subjects = benchmark_of()
    rng = np.random.default_rng(2)
    centres = np.abs(rng.normal(size=(30, DIM))) + 0.5
    is_probe = templates >= 5000
    vectors = centres[subjects % 30]
    vectors[is_probe] += rng.normal(size=(is_probe.sum(), DIM))
    vectors = vectors.astype(np.float32)
    found = evaluate_templates(read, old=(templates, vectors), new=(templates, vectors), far=0.1)
    enrolled = np.flatnonzero(~is_probe)
    exact = exact_scores(vectors[is_probe], vectors[enrolled])
    want = naive_metrics(exact, subjects[is_probe], subjects[enrolled])
    for direction in ("old→old", "new→old", "old→new", "new→new", "blend→old"):
        test = found.tests[direction]
        assert test.top(1) == want[1] == 0
        assert {far: test.tar(far) for far in FARS} == pytest.approx({f: want[f] for f in FARS})
    for name, gallery in read.galleries.items():
        search = found.tests["old→old"].open_searches[name]
        assert search.mate_classes is not None
        twin_is_here = np.isin((search.mate_classes + 30) % 60, gallery.subjects)
        assert 0 < twin_is_here.sum() < len(twin_is_here)
        assert (search.mate <= search.other)[twin_is_here].all()


def test_no_mixed_gallery_counts_a_tie():
    vectors, _, split = twins()
    old = search_test(vectors, vectors, split)
    new = search_test(vectors + np.float32(0.3), vectors + np.float32(0.3), split)
    scores = MixedScores.of_tests(old, new)
    steep = ScoreMap("standardised", slope=40.0, shift=-30.0)
    pairs = np.arange(CLASSES).reshape(2, -1).T.ravel()  # both of two twins are remade together
    for order in (pairs, pairs[::-1]):
        right = scores.right(order, steep)
        together = np.arange(POINTS) * CLASSES // (POINTS - 1) % 2 == 0
        assert not right[:, together].any()
        half = scores.half_test(order, steep)
        hits = (half.ranks == 0).sum()
        assert hits <= 2 * QUERIES  # of the two classes at the middle
    kinds = TwoKinds(old.images, new.images)
    for remade in (np.zeros(CLASSES * ROWS, bool), np.ones(CLASSES * ROWS, bool)):
        assert mixed_quality(kinds, {"any": steep}, [remade])["any"].top_1 == 0
