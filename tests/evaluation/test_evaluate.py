import numpy as np
import pytest

from unibct.evaluation import evaluate
from unibct.evaluation.evaluate import (
    Criterion,
    SearchTest,
    carried_fars,
    compatibility,
    evaluate_upgrade,
    headline_far,
    make_protocol,
    pool_templates,
    search_test,
)


def embeddings(classes=30, images=12, noise=0.8, dim=16, seed=0):
    centres = np.random.default_rng(0).normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), images)
    rng = np.random.default_rng(seed)
    vectors = centres[labels] + noise * rng.normal(size=(len(labels), dim))
    return vectors.astype(np.float32), labels


def test_protocol_takes_a_quarter_and_at_least_one():
    labels = np.repeat(np.arange(4), [1, 3, 8, 21])
    protocol = make_protocol(labels, seed=3)
    assert np.bincount(labels[protocol.gallery]).tolist() == [1, 1, 2, 5]
    assert np.array_equal(np.union1d(protocol.gallery, protocol.query), np.arange(len(labels)))
    assert not set(protocol.gallery) & set(protocol.query)
    assert np.array_equal(make_protocol(labels, seed=3).query, protocol.query)
    assert not np.array_equal(make_protocol(labels, seed=4).query, protocol.query)


def test_templates_by_hand():
    vectors = np.array([[3.0, 0.0], [0.0, 5.0], [0.0, 2.0]])
    templates = pool_templates(vectors, np.array([0, 0, 1]))
    assert np.allclose(templates, [[2**-0.5, 2**-0.5], [0, 1]])


def test_search_test_equals_naive_loops():
    old, labels = embeddings(classes=8)
    new, _ = embeddings(classes=8, seed=1)
    protocol = make_protocol(labels)
    test = search_test(new, old, protocol)
    genuine, impostor, hits = [], [], 0
    unit = lambda v: v / np.linalg.norm(v)  # noqa: E731
    templates = [
        unit(sum(unit(old[i]) for i in protocol.gallery if labels[i] == c)) for c in range(8)
    ]
    for i in protocol.query:
        scores = [float(unit(new[i]) @ t) for t in templates]
        hits += int(np.argmax(scores)) == labels[i]
        genuine.append(scores[labels[i]])
        impostor += [s for c, s in enumerate(scores) if c != labels[i]]
    assert np.allclose(test.genuine, genuine, atol=1e-6)
    assert np.allclose(np.sort(test.impostor), np.sort(impostor), atol=1e-6)
    assert test.top(1) == pytest.approx(hits / len(protocol.query))
    threshold = sorted(impostor, reverse=True)[int(0.05 * len(impostor))]
    assert test.tar(0.05) == pytest.approx(np.mean(np.array(genuine) > threshold + 1e-7), abs=1e-3)


def test_bootstrap_with_each_class_once_gives_the_metric_itself():
    old, labels = embeddings()
    test = search_test(old, old, make_protocol(labels))
    once = np.ones((1, 30), dtype=np.int64)
    for far in (1e-3, 1e-2, 0.1, 0.5, 1.0):
        assert evaluate._bootstrap_tar(test, once, far)[0] == pytest.approx(test.tar(far))
    for k in (1, 5):
        assert evaluate._bootstrap_top(test, once, k)[0] == pytest.approx(test.top(k))


def test_bootstrap_equals_a_naive_resample():
    """A class drawn c times sends each of its queries c times; the gallery stays."""
    old, labels = embeddings(classes=6, noise=1.5)
    test = search_test(old, old, make_protocol(labels))
    weights = np.array([[2, 0, 1, 3, 0, 0], [1, 1, 1, 0, 2, 1]])
    tars = evaluate._bootstrap_tar(test, weights, 0.1)
    tops = evaluate._bootstrap_top(test, weights, 1)
    for repeat, counts in enumerate(weights):
        genuine, impostor, hits = [], [], []
        for row, label in zip(test.scores, test.query_labels, strict=True):
            for _ in range(counts[label]):
                genuine.append(row[label])
                impostor += [score for c, score in enumerate(row) if c != label]
                hits.append(row.argmax() == label)
        impostor = np.sort(impostor)[::-1]
        threshold = impostor[int(0.1 * len(impostor) + 1e-9)]
        assert tars[repeat] == pytest.approx(np.mean(np.array(genuine) > threshold))
        assert tops[repeat] == pytest.approx(np.mean(hits))


def test_verdicts():
    def criterion(low, high):
        return Criterion("top-1", 0.5, 0.5, low, high).verdict

    assert criterion(0.01, 0.03) == "compatible"
    assert criterion(-0.03, -0.01) == "not compatible"
    assert criterion(-0.01, 0.03) == "within noise"
    assert criterion(0.0, 0.0) == "within noise"


def test_a_better_query_model_is_compatible_and_a_foreign_one_is_not():
    old, labels = embeddings(noise=1.3)
    better, _ = embeddings(noise=0.3, seed=1)
    good = evaluate_upgrade(old, better, labels, far=0.01, repeats=300)
    assert good.verdict == "compatible"
    assert all(c.low > 0 for c in good.criteria)
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(16, 16)))[0].astype(np.float32)
    foreign = evaluate_upgrade(old, better @ rotation, labels, free=better, far=0.01, repeats=300)
    assert foreign.verdict == "not compatible"
    assert foreign.tests["new→new"].top(1) == pytest.approx(good.tests["new→new"].top(1))
    assert foreign.tests["free→old"].top(1) == pytest.approx(good.tests["new→old"].top(1))
    assert evaluate_upgrade(old, old, labels, far=0.1, repeats=9).note is None
    assert (
        "TAR@1e-1 instead of TAR@1e-4: 30 classes"
        in evaluate_upgrade(old, old, labels, repeats=9).note
    )
    itself = evaluate_upgrade(old, old, labels, repeats=50)
    assert itself.verdict == "within noise"
    assert good.as_json()["verdict"] == "compatible"
    assert set(good.as_json()["tests"]) == {"old→old", "new→old", "new→new"}


def test_interval_covers_the_truth_about_as_often_as_it_says():
    """Two query models of equal quality: a 95 % interval of the difference should hold zero."""
    covered = 0
    for seed in range(60):
        old, labels = embeddings(classes=25, images=8, noise=1.2, seed=seed)
        protocol = make_protocol(labels, seed=seed)
        first, _ = embeddings(classes=25, images=8, noise=1.2, seed=1000 + seed)
        second, _ = embeddings(classes=25, images=8, noise=1.2, seed=2000 + seed)
        tests = [search_test(query, old, protocol) for query in (first, second)]
        criteria = compatibility(*tests, far=0.05, seed=seed, repeats=200)
        covered += criteria[1].low <= 0 <= criteria[1].high
    assert 50 <= covered <= 60


def test_the_interval_of_a_tar_is_as_wide_as_the_spread_over_draws_of_classes():
    """Look-alike classes set the threshold: the bootstrap must neither hide nor inflate that."""
    rng = np.random.default_rng(0)
    differences, widths = [], []
    for seed in range(60):
        centres = rng.normal(size=(45, 8))
        centres[:15] = centres[15:30] + 0.15 * rng.normal(size=(15, 8))
        labels = np.repeat(np.arange(45), 10)
        shared, own = rng.normal(size=(2, 450, 8))
        old = (centres[labels] + 0.5 * shared).astype(np.float32)
        new = (centres[labels] + 0.35 * shared + 0.1 * own).astype(np.float32)
        protocol = make_protocol(labels, seed=seed)
        tests = [search_test(query, old, protocol) for query in (old, new)]
        tar = compatibility(*tests, far=0.01, seed=seed, repeats=150)[0]
        differences.append(tar.difference)
        widths.append(tar.high - tar.low)
    assert 0.9 < np.mean(widths) / (2 * 1.96 * np.std(differences)) < 1.4


def test_fars_follow_the_number_of_class_pairs():
    # 776 · 775/2 = 300,700 class pairs, of which 1e-4 is just over thirty.
    assert carried_fars(776) == [1e-4, 1e-3, 1e-2, 1e-1]
    assert headline_far(776) == 1e-4
    assert headline_far(318) == 1e-3
    assert headline_far(318, 0.05) == 0.05
    assert headline_far(3) == 1e-1
    assert headline_far(5, 0.9) == 0.9
    for far, name in [(1e-3, "1e-3"), (0.015, "0.015"), (0.25, "0.25"), (1e-4, "1e-4"), (1, "1")]:
        assert evaluate.tar_name(far) == f"TAR@{name}"
    with pytest.raises(ValueError, match="false accept rate"):
        headline_far(50, 5)


def test_scores_are_taken_apart_once():
    scores = np.array([[0.9, 0.1], [0.3, 0.2]])
    test = SearchTest(scores, np.array([0, 1]))
    assert test.genuine.tolist() == [0.9, 0.2]
    assert test.impostor.tolist() == [0.1, 0.3]
    assert test.ranks.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_protocol([0, 0, 0]), "two classes"),
        (lambda: make_protocol([0, 1, 2]), "fewer than two classes"),
        (lambda: make_protocol([0, 0, 1]), "fewer than two classes"),
        (lambda: make_protocol([0, 0, 2, 2]), "gap"),
        (
            lambda: evaluate_upgrade(np.ones((4, 2)), np.ones((4, 3)), [0, 0, 1, 1]),
            "dimension",
        ),
        (lambda: evaluate_upgrade(np.ones((3, 2)), np.ones((4, 2)), [0, 0, 1, 1]), "3 embeddings"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
