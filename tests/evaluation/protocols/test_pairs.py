import json
import pickle

import numpy as np
import pytest

from tests.conftest import run_command
from unibct.data.decoding import encode_png
from unibct.data.readers import open_images
from unibct.errors import UserError
from unibct.evaluation.evaluate import evaluate
from unibct.evaluation.protocols import pairs as pair_protocol
from unibct.evaluation.protocols.pairs import evaluate_pairs
from unibct.models.model_folder import load_model


def test_pair_sets(faces_root, tmp_path, capsys):
    images = open_images("glyphs:val")
    rng = np.random.default_rng(0)
    pairs, same = [], []
    for number in range(20):
        first = rng.integers(len(images))
        wanted = number % 2 == 0
        others = np.flatnonzero((images.labels == images.labels[first]) == wanted)
        second = rng.choice(others[others != first])
        pairs += [encode_png(images.read(images.ids[int(i)])) for i in (first, second)]
        same.append(wanted)
    path = tmp_path / "lfw.bin"
    path.write_bytes(pickle.dumps((pairs, same), 2))
    found = evaluate(path, old=faces_root / "old", new=faces_root / "new")
    assert set(found.tests) == {"old→old", "new→old", "old→new", "new→new"}
    models = ("--query", faces_root / "new", "--gallery", faces_root / "old", "--json")
    assert run_command("evaluate", path, *models) == 0
    assert json.loads(capsys.readouterr().out) == found.as_json()
    assert found.as_json()["seen_classes"] is None
    assert found.as_json()["fingerprints"] == {
        side: load_model(faces_root / name).fingerprint
        for side, name in (("query", "new"), ("gallery", "old"))
    }
    assert "is unknown: a pair set names no classes" in found.as_json()["note"]
    assert run_command("evaluate", path, *models, "--seed", 1) == 0
    other_seed = json.loads(capsys.readouterr().out)
    assert other_seed["tests"] == found.as_json()["tests"]
    assert other_seed["criteria"][0]["interval"] != found.as_json()["criteria"][0]["interval"]
    assert run_command("evaluate", path, *models, "--far", "1e-3") == 2
    assert "far has no effect on the protocol pairs" in capsys.readouterr().err


def test_pair_evaluation_by_hand():
    rng = np.random.default_rng(0)
    same = np.arange(40) % 2 == 0
    first = rng.normal(size=(40, 16))
    second = np.where(same[:, None], first, rng.normal(size=(40, 16)))
    new = np.stack([first, second], axis=1).reshape(80, 16)
    noise = np.repeat(rng.normal(size=(40, 2, 16)) * 2, 1, axis=0).reshape(80, 16)
    found = evaluate_pairs(same, old=new + noise, new=new)
    assert found.tests["new→new"].mean == 1
    cross = (found.tests["new→old"].mean + found.tests["old→new"].mean) / 2
    assert found.criteria[0].cross == pytest.approx(cross)
    assert found.criteria[0].old_self == pytest.approx(found.tests["old→old"].mean)
    assert found.criteria[0].low <= found.criteria[0].difference <= found.criteria[0].high
    with pytest.raises(UserError, match="new has 78 embeddings for 40 pairs"):
        evaluate_pairs(same, old=new, new=new[:78])
    with pytest.raises(UserError, match="same must be True or False"):
        evaluate_pairs(np.where(same, "1", "0"), old=new, new=new)
    with pytest.raises(UserError, match="seed must not be negative, not -1"):
        evaluate_pairs(same, old=new, new=new, seed=-1)


def random_pairs(seed=0, pairs=60, noise=1.0):
    """Two models' embeddings of pairs: (2 · pairs, dim) each, and which pairs are genuine."""
    rng = np.random.default_rng(seed)
    same = np.arange(pairs) % 2 == 0
    first = rng.normal(size=(pairs, 6))
    second = np.where(same[:, None], first, rng.normal(size=(pairs, 6)))
    images = np.stack([first, second], axis=1).reshape(-1, 6)
    old, new = (images + noise * rng.normal(size=images.shape) for _ in range(2))
    return old, new, same


def interval(old, new, same, **options):
    criterion = evaluate_pairs(same, old=old, new=new, **options).criteria[0]
    return criterion.low, criterion.high


def test_the_interval_draws_folds_and_not_pairs():
    """More pairs of the same subjects are no new evidence: repeated pairs change nothing."""
    old, new, same = random_pairs()
    rows = np.repeat(np.arange(60), 9)  # each pair nine times, in the same fold
    images = np.stack([2 * rows, 2 * rows + 1], axis=1).ravel()
    once, often = interval(old, new, same), interval(old[images], new[images], same[rows])
    assert once == pytest.approx(often)
    assert once[0] < once[1]


def test_both_ways_of_the_cross_test_are_in_the_interval():
    """First and second image of a pair have no roles: exchanging them changes nothing."""
    old, new, same = random_pairs()
    exchanged = np.arange(120).reshape(-1, 2)[:, ::-1].ravel()
    found, back = (
        evaluate_pairs(same, old=old[rows], new=new[rows]) for rows in (slice(None), exchanged)
    )
    assert found.tests["new→old"].mean == back.tests["old→new"].mean != back.tests["new→old"].mean
    assert found.criteria[0] == back.criteria[0]


def test_the_seed_chooses_the_samples():
    data = random_pairs()
    assert interval(*data, seed=3) == interval(*data, seed=3) != interval(*data, seed=4)
    low, high = interval(*data, folds=2)
    assert np.isfinite([low, high]).all()


@pytest.mark.slow
def test_the_interval_holds_the_truth_as_often_as_it_says(monkeypatch):
    """Folds of subjects that are hard or easy for a model, in all of their pairs."""
    monkeypatch.setattr(pair_protocol, "REPEATS", 250)
    rng = np.random.default_rng(0)
    criteria = []
    for _ in range(100):
        subjects = rng.normal(size=(40, 12))  # four in each fold
        hardness = rng.choice([0.4, 1.4], size=(2, 40))
        fold = np.repeat(np.arange(10), 24)
        same = np.arange(240) % 2 == 0
        first = 4 * fold + rng.integers(0, 4, 240)
        second = np.where(same, first, 4 * fold + (first + rng.integers(1, 4, 240)) % 4)
        images = np.stack([first, second], axis=1).ravel()
        old, new = (
            subjects[images] + hard[images, None] * rng.normal(size=(480, 12)) for hard in hardness
        )
        criteria.append(evaluate_pairs(same, old=old, new=new).criteria[0])
    truth = np.mean([criterion.difference for criterion in criteria])
    assert 0.91 <= np.mean([c.low <= truth <= c.high for c in criteria]) <= 0.99
