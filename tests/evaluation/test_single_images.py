import numpy as np

from tests.evaluation.noisy_classes import near_duplicates, noisy_classes
from unibct.evaluation import single_images
from unibct.evaluation.search_test import CROSS, OLD_SELF
from unibct.evaluation.upgrade import evaluate_embeddings


def test_templates_hide_what_happens_to_single_images():
    old, new, labels = near_duplicates()
    found = evaluate_embeddings(labels, old=old, new=new, repeats=200)
    assert found.verdict == "compatible"
    assert found.single_images_verdict == "not compatible"
    as_rows = evaluate_embeddings(labels, old=old, new=new, repeats=200, gallery_mode="images")
    assert as_rows.verdict == as_rows.single_images_verdict == "not compatible"
    described = found.as_json()["single_images"]
    assert described["verdict"] == "not compatible"
    assert described["tests"][CROSS] == as_rows.values[CROSS]
    assert described["criteria"] == [c.as_json() for c in as_rows.criteria]


def test_a_naive_loop_finds_the_same_images():
    old, labels = noisy_classes(12, 8, noise=1.3)
    new, _ = noisy_classes(12, 8, noise=0.6, seed=1)
    found = evaluate_embeddings(labels, old=old, new=new, repeats=9)
    split = found.split
    for direction, queries in ((OLD_SELF, old), (CROSS, new)):
        hits = 0
        for query in split.query:
            scores = [
                float(queries[query] @ old[row] / np.linalg.norm(old[row])) for row in split.gallery
            ]
            hits += labels[split.gallery[int(np.argmax(scores))]] == labels[query]
        top_1 = found.single_images.values[direction]["top-1"]
        assert top_1 == hits / len(split.query)


def test_of_too_many_queries_some_are_drawn_and_all_rows_stay(monkeypatch):
    monkeypatch.setattr(single_images, "MOST_PAIRS", 100)
    monkeypatch.setattr(single_images, "_FEWEST_QUERIES", 50)
    old, labels = noisy_classes(30, 12)
    search = evaluate_embeddings(labels, old=old, new=old, repeats=9).single_images.searches[CROSS]
    assert (len(search.query), len(search.gallery)) == (50, 90)
