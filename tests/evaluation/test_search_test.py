import copy
import json

import numpy as np
import pytest

from tests.evaluation.impostor_scores import all_scores
from tests.evaluation.noisy_classes import noisy_classes
from unibct.errors import UserError
from unibct.evaluation.search_test import (
    CROSS,
    DIRECTIONS,
    FREE_CROSS,
    OLD_SELF,
    Direction,
    scored_test,
    search_test,
)
from unibct.evaluation.templates import split_gallery


def test_a_direction_names_the_query_model_first():
    for direction, query, gallery in ((CROSS, "new", "old"), (FREE_CROSS, "free", "old")):
        assert (direction.query, direction.gallery) == (query, gallery)
        assert direction == f"{query}→{gallery}" == Direction(query, gallery)
    assert OLD_SELF == "old→old"
    assert json.dumps({CROSS: 1}, ensure_ascii=False) == '{"new→old": 1}'


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_direction_is_told_apart_in_a_table_and_copied_whole(direction):
    assert [other.label for other in DIRECTIONS].count(direction.label) == 1
    assert direction.meaning
    copied = copy.deepcopy(direction)  # as a worker process gets it
    assert vars(copied) == vars(direction)
    assert copied == direction


@pytest.mark.parametrize("mode", ["templates", "images"])
def test_search_test_equals_naive_loops(mode):
    """The entries are templates of the classes, or images, of which a query has several mates."""
    old, labels = noisy_classes(classes=8, images=16)
    new, _ = noisy_classes(classes=8, images=16, seed=1)
    split = split_gallery(labels)
    test = search_test(new, old, split, mode=mode)
    unit = lambda v: v / np.linalg.norm(v)  # noqa: E731
    rows = [unit(old[i]) for i in split.gallery]
    entries, entry_labels = rows, labels[split.gallery]
    if mode == "templates":
        entry_labels = np.arange(8)
        own = [[row for row, i in zip(rows, split.gallery, strict=True) if labels[i] == c]
               for c in range(8)]  # fmt: skip
        entries = [unit(sum(mates)) for mates in own]
    genuine, impostor, hits = [], [], 0
    for i in split.query:
        scores = np.array([unit(new[i]) @ entry for entry in entries])
        hits += entry_labels[int(np.argmax(scores))] == labels[i]
        genuine += scores[entry_labels == labels[i]].tolist()
        impostor += scores[entry_labels != labels[i]].tolist()
    assert np.allclose(np.sort(test.genuine), np.sort(genuine), atol=5e-6)
    assert np.allclose(np.sort(all_scores(test.impostor)), np.sort(impostor), atol=1e-6)
    assert test.top(1) == pytest.approx(hits / len(split.query))
    threshold = sorted(impostor, reverse=True)[int(0.05 * len(impostor))]
    assert test.tar(0.05) == pytest.approx(np.mean(np.array(genuine) > threshold + 1e-7), abs=1e-3)
    assert (test.classes, test.templates) == (8, len(entries))


def test_scores_are_taken_apart_once():
    scores = np.array([[0.9, 0.1], [0.3, 0.2]])
    test = scored_test(scores, np.array([0, 1]))
    assert test.genuine.tolist() == [0.9, 0.2]
    assert all_scores(test.impostor).tolist() == [0.1, 0.3]
    assert test.ranks.tolist() == [0, 1]


def test_a_k_that_finds_everything_is_not_reported_and_zero_is_refused():
    assert scored_test(np.eye(3), np.arange(3)).ks == (1,)
    assert scored_test(np.eye(6), np.arange(6)).ks == (1, 5)
    with pytest.raises(UserError, match="k must be at least 1, not 0"):
        scored_test(np.eye(2), np.arange(2)).top(0)


def test_the_gallery_holds_templates_or_images():
    old, labels = noisy_classes(classes=3)
    with pytest.raises(UserError, match="unknown mode of the gallery 'image'; choose templates or"):
        search_test(old, old, split_gallery(labels), mode="image")


def test_the_open_set_has_two_galleries_with_half_of_the_classes():
    rng = np.random.default_rng(3)
    labels = np.arange(40) % 10
    scores = rng.normal(size=(40, 10))
    test = scored_test(scores, labels)
    rates = []
    for half in (0, 1):
        columns = np.arange(half, 10, 2)
        unmated = [scores[q, columns].max() for q in range(40) if labels[q] % 2 != half]
        threshold = sorted(unmated, reverse=True)[max(int(0.1 * len(unmated)) - 1, 0)]
        hits = []
        for q in range(40):
            if labels[q] % 2 == half:
                best_other = max(scores[q, c] for c in columns if c != labels[q])
                hits.append(scores[q, labels[q]] > max(threshold, best_other))
        rates.append(np.mean(hits))
    assert test.tpir(0.1) == pytest.approx(np.mean(rates))
    assert not scored_test(np.eye(7), np.arange(7)).open_searches  # too few classes
    one_half = scored_test(scores[:20], 2 * (np.arange(20) % 5))
    assert not one_half.open_searches, "no query of an odd class"
