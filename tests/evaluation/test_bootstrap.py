import tracemalloc

import numpy as np
import pytest
from scipy import stats

from tests.evaluation.noisy_classes import noisy_classes
from tests.evaluation.test_identification import TIED
from unibct.errors import UserError
from unibct.evaluation import bootstrap, impostors
from unibct.evaluation.bootstrap import (
    ClassDraws,
    class_draws,
    sampled_mean,
    sampled_tar,
    sampled_thresholds,
    sampled_tpir,
    t_quantile,
)
from unibct.evaluation.identification import OpenSearch
from unibct.evaluation.search_test import listed_pairs, scored_test, search_test
from unibct.evaluation.templates import split_gallery
from unibct.evaluation.verification import strict_threshold, tar_at_far


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 49, 317, 5000, 10**9])
@pytest.mark.parametrize("probability", [0.025, 0.5, 0.9, 0.975, 1 - 0.025 / 3, 0.999])
def test_quantiles_are_those_of_scipy(probability, freedom):
    expected = stats.t.ppf(probability, freedom)
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-4, abs=1e-12)


def test_bootstrap_with_each_class_once_gives_the_metric_itself():
    old, labels = noisy_classes()
    test = search_test(old, old, split_gallery(labels))
    once = ClassDraws(np.ones((1, 30), dtype=np.int64))
    for far in (1e-3, 1e-2, 0.1, 0.5, 1.0):
        assert sampled_tar(test.pairs, once, far)[0] == pytest.approx(test.tar(far))
    for k in (1, 5):
        top = sampled_mean(test.ranks < k, test.query_classes, once)[0]
        assert top == pytest.approx(test.top(k))


def test_bootstrap_equals_a_naive_resample():
    """A class drawn c times sends each of its queries c times; the gallery stays."""
    old, labels = noisy_classes(classes=6, noise=1.5)
    test = search_test(old, old, split_gallery(labels))
    weights = np.array([[2, 0, 1, 3, 0, 0], [1, 1, 1, 0, 2, 1]])
    tars = sampled_tar(test.pairs, ClassDraws(weights), 0.1)
    tops = sampled_mean(test.ranks < 1, test.query_classes, ClassDraws(weights))
    for repeat, counts in enumerate(weights):
        genuine, impostor, hits = [], [], []
        for row, label in zip(test.scores, test.query_classes, strict=True):
            for _ in range(counts[label]):
                genuine.append(row[label])
                impostor += [score for c, score in enumerate(row) if c != label]
                hits.append(row.argmax() == label)
        impostor = np.sort(impostor)[::-1]
        threshold = impostor[int(0.1 * len(impostor) + 1e-9)]
        assert tars[repeat] == pytest.approx(np.mean(np.array(genuine) > threshold))
        assert tops[repeat] == pytest.approx(np.mean(hits))


def scored_pairs(seed=8, subjects=9):
    rng = np.random.default_rng(seed)
    scores = rng.normal(1.5, 1, 80).round(2), rng.normal(0, 1, 3000).round(2)
    genuine = rng.integers(0, subjects, 80)
    classes = rng.integers(0, subjects, 3000) ** 2 // subjects
    return listed_pairs(*scores, genuine, classes), scores[1], classes


@pytest.fixture(params=[5000, 50], ids=["all impostors", "50 impostors"])
def _either_way(request, monkeypatch):
    """Thresholds from all impostors at once, and from windows of fifty, whatever the FAR."""
    monkeypatch.setattr(impostors, "_ALWAYS_KEPT", request.param)
    monkeypatch.setattr(bootstrap, "_WIDEST_WINDOW", request.param)


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("block", [20, 1024])
@pytest.mark.parametrize("far", [1e-4, 1e-3, 0.01, 0.03, 0.2, 0.5, 0.999, 1.0])
def test_sampled_thresholds_and_tar_equal_a_naive_resample(monkeypatch, far, block):
    """The thresholds to the bit."""
    monkeypatch.setattr(bootstrap, "_BLOCK", block)
    for seed in (3, 8):
        pairs, scores, classes = scored_pairs(seed)
        draws = np.random.default_rng(seed).multinomial(9, np.full(9, 1 / 9), size=60)
        draws[0] = 1
        tars = sampled_tar(pairs, ClassDraws(draws), far)
        thresholds = sampled_thresholds(pairs, ClassDraws(draws), far)
        assert tars[0] == pytest.approx(pairs.tars([far])[far])
        for tar, threshold, counts in zip(tars, thresholds, draws, strict=True):
            genuine = np.repeat(pairs.genuine, counts[pairs.genuine_classes])
            impostor = np.repeat(scores, counts[classes])
            assert tar == pytest.approx(tar_at_far(genuine, impostor, [far])[far])
            assert threshold == strict_threshold(impostor, far)


@pytest.mark.usefixtures("_either_way")
def test_sampled_tar_looks_further_down_when_a_draw_misses_the_highest_impostors():
    """All high impostors are of class 0, which is not drawn."""
    impostor = np.concatenate([np.linspace(5, 4, 3000), np.linspace(1, 0, 3000)])
    genuine = np.array([2.0, 0.995, 0.5])
    pairs = listed_pairs(genuine, impostor, np.array([1, 1, 1]), np.repeat([0, 1], 3000))
    draws = np.array([[0, 2], [2, 0], [1, 1]])
    found = sampled_tar(pairs, ClassDraws(draws), 0.01)
    threshold = impostor[3000 + 30]
    assert found[0] == np.mean(genuine > threshold) == 2 / 3
    assert found[1:].tolist() == [0, 0]  # none is genuine; none is above


def test_sampled_top_equals_a_naive_resample():
    ranks, classes = np.array([0, 3, 1, 0, 7]), np.array([0, 0, 1, 2, 2])
    draws = ClassDraws(np.array([[1, 1, 1], [2, 0, 1], [0, 0, 3]]))
    assert np.allclose(sampled_mean(ranks < 1, classes, draws), [2 / 5, 3 / 6, 1 / 2])
    assert np.allclose(sampled_mean(ranks < 5, classes, draws), [4 / 5, 5 / 6, 1 / 2])


def all_draws(draws):
    return np.concatenate([weights for _, weights in draws.parts(1)])


@pytest.mark.parametrize("kept", [1, 7, 20, 1 << 20])
@pytest.mark.parametrize("at_once", [1, 40, 2_000_000])
def test_the_draws_are_those_of_one_call_however_many_are_kept(monkeypatch, kept, at_once):
    monkeypatch.setattr(bootstrap, "_MOST_KEPT", 5 * kept)
    monkeypatch.setattr(bootstrap, "_WEIGHTS_AT_ONCE", at_once)
    test = scored_test(np.zeros((5, 9)), np.array([0, 1, 2, 5, 8]))
    want = np.zeros((40, 9))
    generator = np.random.default_rng([3, 1])
    want[:, [0, 1, 2, 5, 8]] = generator.multinomial(5, np.full(5, 1 / 5), size=40)
    draws = class_draws(test, seed=3, repeats=40)  # a class without a query is never drawn
    assert (draws.shape, draws.drawn) == ((40, 9), 5)
    values = np.random.default_rng(0).normal(size=(9, 2))
    for _ in range(2):
        assert np.array_equal(all_draws(draws), want)
        assert draws.sums(values) == pytest.approx(want @ values)
    chosen = np.array([0, 3, 4, 19, 20, 38])
    for columns in (1, 100):
        parts = list(draws.parts(columns, chosen))
        assert np.array_equal(np.concatenate([weights for _, weights in parts]), want[chosen])
        places = [place for part, _ in parts for place in range(part.start, part.stop)]
        assert places == list(range(6))


def test_no_draws_are_refused():
    test = scored_test(np.eye(2), np.arange(2))
    with pytest.raises(UserError, match="seed must not be negative, not -1"):
        class_draws(test, seed=-1)
    with pytest.raises(UserError, match="repeats must be at least 1, not 0"):
        class_draws(test, repeats=0)


@pytest.mark.parametrize("kept", [0, 3])
def test_memory_does_not_grow_with_classes_times_repeats(monkeypatch, kept):
    """The counts of 1,500 classes in 2,000 repeats would take 24 MB."""
    monkeypatch.setattr(bootstrap, "_MOST_KEPT", kept << 20)
    monkeypatch.setattr(bootstrap, "_WEIGHTS_AT_ONCE", 50_000)
    rng, classes = np.random.default_rng(0), 1500
    labels = np.arange(3000) % classes
    pairs = listed_pairs(
        rng.normal(1, 1, 3000), rng.normal(size=5000), labels, rng.integers(0, classes, 5000)
    )
    search = OpenSearch(*rng.normal(size=(3, 1000)), labels[:1000], labels[1000:2000])
    test = scored_test(rng.normal(size=(3000, classes)).astype(np.float32), labels)
    pairs.impostor.window(0, 1, classes)  # what is kept of the scores is not counted here
    tracemalloc.start()
    draws = class_draws(test)
    sampled_mean(test.ranks < 1, labels, draws)
    sampled_tar(pairs, draws, 0.01)
    sampled_tpir([search], draws, 0.1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (kept + 6) << 20


def test_sampled_tpir_equals_a_naive_resample():
    rng = np.random.default_rng(4)
    search = OpenSearch(
        mate=rng.normal(1, 1, 60).round(1),
        other=rng.normal(0, 1, 60).round(1),
        unmated=rng.normal(0, 1, 90).round(1),
        mate_classes=rng.integers(0, 7, 60),
        unmated_classes=rng.integers(0, 7, 90),
    )
    draws = rng.multinomial(7, np.full(7, 1 / 7), size=20)
    draws[0] = 1
    for fpir in (0.01, 0.1, 0.5):
        samples = sampled_tpir([search, search], ClassDraws(draws), fpir)
        assert samples[0] == pytest.approx(search.tpir(fpir))
        for value, counts in zip(samples, draws, strict=True):
            mated = np.repeat(np.arange(60), counts[search.mate_classes])
            unmated = np.repeat(search.unmated, counts[search.unmated_classes])
            drawn = OpenSearch(search.mate[mated], search.other[mated], unmated)
            assert value == pytest.approx(drawn.tpir(fpir))


def test_sampled_tpir_refuses_ties():
    draws = ClassDraws(np.array([[1, 1, 1], [2, 1, 1]]))
    assert sampled_tpir([TIED], draws, 0.5).tolist() == pytest.approx([1 / 3, 1 / 4])
    assert sampled_tpir([TIED], draws, 1.0).tolist() == pytest.approx([2 / 3, 3 / 4])
