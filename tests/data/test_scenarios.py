import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unibct
from unibct.data.image_set import ImageSet, select_listed
from unibct.data.scenarios import SCENARIOS, hold_out, nested_split, write_split
from unibct.errors import UserError

labels_strategy = st.lists(st.integers(0, 9), min_size=1, max_size=120)


@given(labels_strategy, st.sampled_from([0.3, 0.29, 0.5, 0.75]), st.integers(0, 5))
def test_data_scenarios_obey_their_rule(labels, fraction, seed):
    labels = np.array(labels)
    kept = unibct.split(labels, "extended-data", fraction=fraction, seed=seed)
    same = unibct.split(labels, "identical-data", fraction=fraction, seed=seed)
    for c in np.unique(labels):
        size = int((labels == c).sum())
        want = max(1, int(size * round(fraction * 100)) // 100)
        assert (labels[kept.old] == c).sum() == want
    assert np.array_equal(kept.new, np.arange(len(labels)))
    assert np.array_equal(same.old, kept.old)
    assert np.array_equal(same.new, kept.old)
    if len(kept.old) < len(labels):
        rest = unibct.split(labels, "open-data", fraction=fraction, seed=seed)
        assert np.array_equal(rest.old, kept.old)
        assert np.array_equal(np.union1d(rest.old, rest.new), np.arange(len(labels)))
        assert not set(rest.old) & set(rest.new)


@given(labels_strategy.filter(lambda ls: len(set(ls)) >= 4), st.integers(0, 5))
def test_class_scenarios_obey_their_rule(labels, seed):
    labels = np.array(labels)
    extended = unibct.split(labels, "extended-class", seed=seed)
    opened = unibct.split(labels, "open-class", seed=seed)
    assert np.array_equal(extended.old, opened.old)
    old, new = set(labels[opened.old]), set(labels[opened.new])
    assert len(old) == int(0.3 * len(set(labels)) + 1e-9)
    assert not old & new
    assert old | new == set(labels)
    assert np.array_equal(extended.new, np.arange(len(labels)))
    assert np.array_equal(opened.old, np.flatnonzero(np.isin(labels, list(old))))


def ms1mv3_like_sizes() -> np.ndarray:
    """Class sizes with MS1Mv3's totals: 93,431 classes, 5,179,510 images, Σ⌊0.3·n⌋ = 1,511,514.

    3·n mod 10 is what the floor takes off; it must sum to 10·(0.3·5,179,510 − 1,511,514) = 423,390.
    """
    rng = np.random.default_rng(0)
    sizes = rng.integers(10, 101, 93_431)
    while (gap := 5_179_510 - sizes.sum()) != 0:
        chosen = rng.choice(len(sizes), size=min(abs(gap), 50_000), replace=False)
        moved = sizes[chosen] + np.sign(gap)
        sizes[chosen] = np.where(moved >= 5, moved, sizes[chosen])
    # Move single images between classes until the remainders sum up; the total stays.
    while (extra := (3 * sizes % 10).sum() - 423_390) != 0:
        for i in range(0, len(sizes) - 1, 2):
            a, b = sizes[i], sizes[i + 1]
            change = int((3 * (a + 1) % 10 + 3 * (b - 1) % 10) - (3 * a % 10 + 3 * b % 10))
            if change and np.sign(change) != np.sign(extra) and abs(change) <= abs(extra):
                sizes[i], sizes[i + 1] = a + 1, b - 1
                extra += change
            if extra == 0:
                break
    return sizes


@pytest.mark.slow
def test_counts_of_the_paper_from_class_sizes_alone():
    sizes = ms1mv3_like_sizes()
    assert (len(sizes), sizes.sum(), sizes.min() >= 4) == (93_431, 5_179_510, True)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    data = unibct.split(labels, "open-data")
    assert (len(data.old), len(data.new)) == (1_511_514, 3_667_996)
    classes = unibct.split(labels, "open-class")
    assert len(np.unique(labels[classes.old])) == 28_029
    assert len(np.unique(labels[classes.new])) == 65_402


def test_same_kind_and_same_seed():
    labels = np.repeat([5, 2, 9], 10)
    ours = unibct.split(labels, "open-data")
    theirs = unibct.split(torch.from_numpy(labels), "open-data")
    assert isinstance(theirs.old, torch.Tensor)
    assert np.array_equal(theirs.new.numpy(), ours.new)
    assert not np.array_equal(unibct.split(labels, "open-data", seed=1).old, ours.old)


@pytest.mark.parametrize(
    ("labels", "scenario", "fraction", "message"),
    [
        ([0, 1], "closed", 0.3, "unknown scenario 'closed'"),
        ([0, 1], "open-data", 1.0, "fraction must lie between"),
        ([], "open-data", 0.3, "empty"),
        ([0.5, 1.0], "open-data", 0.3, "integers"),
        ([0, 1, 2], "open-class", 0.3, "no class at all"),
        ([0, 1, 2], "open-data", 0.3, "no image for the new set"),
    ],
)
def test_bad_input_is_named(labels, scenario, fraction, message):
    with pytest.raises(ValueError, match=message):
        unibct.split(np.array(labels), scenario, fraction=fraction)


def test_every_scenario_has_a_rule():
    names = "extended-data open-data extended-class open-class identical-data"
    assert list(SCENARIOS) == names.split()


@pytest.mark.parametrize(("fraction", "want"), [(1 / 3, 999), (0.1 + 0.2, 900), (1e-20, 1)])
def test_fractions_of_many_digits_do_not_overflow(fraction, want):
    labels = np.zeros(3000, dtype=int)
    assert abs(len(unibct.split(labels, "extended-data", fraction=fraction).old) - want) <= 1


@given(labels_strategy, st.integers(0, 5))
def test_a_nested_split_holds_the_smaller_ones(labels, seed):
    labels = np.array(labels)
    smaller = set()
    for percent in (1, 30, 50, 99):
        drawn = nested_split(labels, percent / 100, seed=seed)
        assert np.array_equal(drawn, np.unique(drawn))
        for c in np.unique(labels):
            size = int((labels == c).sum())
            assert (labels[drawn] == c).sum() == max(1, size * percent // 100)
        assert smaller <= set(drawn)
        smaller = set(drawn)
    assert np.array_equal(nested_split(labels, 1, seed=seed), np.arange(len(labels)))


def test_a_nested_split_is_the_old_set_of_extended_data():
    labels = np.random.default_rng(0).permutation(np.repeat([5, 2, 9], 20))
    for seed in (0, 666):
        old = unibct.split(labels, "extended-data", seed=seed).old
        assert np.array_equal(nested_split(labels, 0.3, seed=seed), old)
    assert np.array_equal(nested_split(labels, 0.3), unibct.split(labels, "open-data").old)
    assert not np.array_equal(nested_split(labels, 0.3, seed=1), nested_split(labels, 0.3))
    as_tensor = nested_split(torch.from_numpy(labels), 0.3)
    assert isinstance(as_tensor, torch.Tensor)
    assert np.array_equal(as_tensor.numpy(), nested_split(labels, 0.3))
    for fraction in (0, 1.5):
        with pytest.raises(ValueError, match="fraction must lie between"):
            nested_split(labels, fraction)


@given(labels_strategy.filter(lambda ls: len(set(ls)) >= 7), st.integers(0, 5))
def test_held_out_classes_are_in_no_training_set(labels, seed):
    labels = np.array(labels)
    parts = hold_out(labels, 0.3, seed=seed)
    train, test = set(labels[parts.train]), set(labels[parts.test])
    assert not train & test
    assert train | test == set(labels)
    assert len(test) == int(0.3 * len(set(labels)) + 1e-9)
    assert np.array_equal(np.union1d(parts.train, parts.test), np.arange(len(labels)))
    again = hold_out(labels, 0.3, seed=seed)
    assert np.array_equal(again.test, parts.test)


def test_the_seed_chooses_the_held_out_classes():
    labels = torch.arange(60) // 3
    drawn = {tuple(hold_out(labels, 0.5, seed=seed).test.tolist()) for seed in range(5)}
    assert len(drawn) == 5
    assert isinstance(hold_out(labels, 0.5).train, torch.Tensor)


@pytest.mark.parametrize(
    ("classes", "fraction", "message"),
    [
        (5, 0.3, "0.3 of 5 classes are 1 for testing and 4 for training: each needs two or more"),
        (5, 0.9, "are 4 for testing and 1 for training"),
        (0, 0.3, "labels is empty"),
        (5, 1, "hold_out must lie between 0 and 1, not 1"),
    ],
)
def test_a_hold_out_that_leaves_too_little_is_refused(classes, fraction, message):
    with pytest.raises(UserError, match=message):
        hold_out(np.arange(classes), fraction)


def image_set(name, classes, per_class):
    ids = tuple(f"{c}/é {i}" for c in classes for i in range(per_class))
    labels = np.repeat(np.arange(len(classes)), per_class)
    return ImageSet(name, ids, labels, tuple(map(str, classes)), read=print)


FOUR, TWENTY = image_set("some set", "abcd", 10), image_set("twenty", range(20), 4)


def classes_in(path):
    return {line.split("/")[0] for line in path.read_text().splitlines()}


@pytest.mark.parametrize(
    ("scenario", "counts"),
    [
        ("open-data", {"old": (12, 4), "new": (28, 4)}),
        ("open-class", {"old": (10, 1), "new": (30, 3)}),
    ],
)
def test_a_split_on_disk(scenario, counts, tmp_path):
    out = tmp_path / "split"
    assert write_split(FOUR, scenario, out, seed=3) == counts
    sets = unibct.split(FOUR.labels, scenario, seed=3)
    for name, rows in (("old", sets.old), ("new", sets.new)):
        assert select_listed(FOUR, out / f"{name}.txt").ids == FOUR.select(rows).ids
    assert json.loads((out / "split.json").read_text()) == {
        **{"scenario": scenario, "fraction": 0.3, "seed": 3, "data": "some set"},
        "counts": {k: {"images": v[0], "classes": v[1]} for k, v in counts.items()},
    }
    with pytest.raises(UserError, match="exists already"):
        write_split(FOUR, scenario, out)


def test_test_classes_are_set_aside(tmp_path):
    with pytest.raises(UserError, match="give a scenario, hold_out or both"):
        write_split(FOUR, None, tmp_path / "split")
    assert not (tmp_path / "split").exists()
    counts = write_split(TWENTY, None, tmp_path, hold_out=0.3, seed=3)
    assert counts == {"train": (56, 14), "test": (24, 6)}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["split.json", "test.txt", "train.txt"]
    assert not classes_in(tmp_path / "train.txt") & classes_in(tmp_path / "test.txt")
    parts = hold_out(TWENTY.labels, 0.3, seed=3)
    assert select_listed(TWENTY, tmp_path / "test.txt").ids == TWENTY.select(parts.test).ids
    described = json.loads((tmp_path / "split.json").read_text())
    assert (described["scenario"], described["hold_out"]) == (None, 0.3)


@pytest.mark.parametrize("scenario", ["open-class", "extended-data"])
def test_a_scenario_is_drawn_from_the_training_classes_only(scenario, tmp_path):
    counts = write_split(TWENTY, scenario, tmp_path, hold_out=0.3, seed=3)
    assert list(counts) == ["old", "new", "train", "test"]
    train = select_listed(TWENTY, tmp_path / "train.txt")
    sets = unibct.split(train.labels, scenario, seed=3)
    for name, rows in (("old", sets.old), ("new", sets.new)):
        assert select_listed(TWENTY, tmp_path / f"{name}.txt").ids == train.select(rows).ids
        assert not classes_in(tmp_path / f"{name}.txt") & classes_in(tmp_path / "test.txt")
