import numpy as np
import pytest

from tests.notes import Notes, show
from tests.tiny_models import LARGEST_SHIFT
from unibct.embeddings.score_scale import mapped_score_scale, sample_rows, score_scale
from unibct.errors import UserError


@pytest.fixture(autouse=True)
def real_limit(monkeypatch):
    monkeypatch.setattr("unibct.embeddings.score_scale._LARGEST_SHIFT", LARGEST_SHIFT)


def two_models(classes=7, images=40, dim=5, seed=0):
    """Old and new embeddings of the same images, in classes of different sizes."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=images) ** 2  # with gaps between the numbers
    centres = {label: draw.normal(size=dim) for label in set(labels.tolist())}
    means = np.stack([centres[label] for label in labels.tolist()])
    old, new = (means + draw.normal(size=means.shape) for _ in range(2))
    return old, new + 0.5, labels


def naive(new, old, labels):
    """Every pair of different classes, one by one."""
    new, old = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (new, old))
    rows = range(len(labels))
    pairs = [(i, j) for i in rows for j in rows if labels[i] != labels[j]]
    crossed, before = ([left[i] @ old[j] for i, j in pairs] for left in (new, old))
    return np.std(before) / np.std(crossed)


@pytest.mark.parametrize("dim", [2, 5, 60])
def test_it_is_the_ratio_over_all_pairs_of_different_classes(dim):
    old, new, labels = two_models(dim=dim)
    assert score_scale(new, old, labels) == pytest.approx(naive(new, old, labels), rel=1e-12)
    assert score_scale(old, old, labels) == pytest.approx(1, rel=1e-12)


def test_single_precision_and_lengths_do_not_matter():
    old, new, labels = two_models(dim=30)
    expected = naive(new, old, labels)
    lengths = np.random.default_rng(1).uniform(0.5, 2, size=(len(new), 1))
    assert score_scale(lengths * new, old, labels) == pytest.approx(expected, rel=1e-12)
    single = score_scale(new.astype(np.float32), old.astype(np.float32), labels)
    assert single == pytest.approx(expected, rel=1e-6)


def test_directions_that_old_rows_do_not_use_make_it_larger():
    old, new, labels = two_models(dim=20)
    unused = np.full((len(new), 1), np.linalg.norm(new, axis=1).mean())
    wider_old, wider_new = np.hstack([old, 0 * unused]), np.hstack([new, unused])
    assert score_scale(wider_new, wider_old, labels) > 1.2 * score_scale(new, old, labels)


def test_what_cannot_be_measured_is_refused_by_name():
    old, new, labels = two_models()
    for given, message in [
        ((new, old, np.zeros(len(old), dtype=int)), "two classes"),
        ((new, old[:-1], labels), "40 rows but old has 39"),
        ((new[:, :-1], old, labels), "dimension"),
        ((np.ones_like(new), np.ones_like(old), labels), "all score the same"),
    ]:
        with pytest.raises(UserError, match=message):
            score_scale(*given)


def test_a_cone_whose_scores_a_factor_would_lift_is_refused():
    old, new, labels = two_models(dim=20)
    axis = np.zeros(20)
    axis[0] = 40
    assert naive(new / 2 + axis, old + axis, labels) > 1.3  # times scores that are near 1
    with pytest.raises(UserError, match=r"0\.9\d+ on average .*no factor sets right"):
        score_scale(new / 2 + axis, old + axis, labels)
    assert mapped_score_scale(np.asarray, new / 2 + axis, old + axis, labels) is None
    assert score_scale(old + axis, old + axis, labels) == pytest.approx(1, rel=1e-6)


def test_a_map_has_the_scale_of_what_it_makes():
    old, new, labels = two_models()
    turned = np.eye(5)[::-1]
    found = mapped_score_scale(lambda rows: rows @ turned, new, old, labels)
    assert found == score_scale(new @ turned, old, labels)
    assert mapped_score_scale(np.asarray, new, old, np.zeros(len(old), dtype=int)) is None


def test_a_map_without_a_scale_is_noted():
    notes, labels, same = show(Notes()), np.arange(12) // 6, np.ones((12, 4))
    assert mapped_score_scale(lambda rows: rows, same, same, labels) is None
    assert notes.texts == [
        "the score scale is unknown: images of different classes all score the same: there is no "
        "score scale"
    ]


def test_the_sample_depends_on_the_number_of_images_alone():
    assert sample_rows(50).tolist() == list(range(50))
    rows = sample_rows(9000)
    assert len(set(rows.tolist())) == 4096
    assert rows.tolist() == sorted(rows.tolist())
    assert np.array_equal(rows, sample_rows(9000))
    assert 0.4 < np.mean(rows < 4500) < 0.6
