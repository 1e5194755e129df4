import numpy as np
import pytest

from tests.maps.cases import rotation, unit
from unibct.errors import UserError
from unibct.maps.known_queries import FoundMates, found_mates


def test_mates_are_found_among_the_best_rows():
    rows = unit(np.random.default_rng(0).normal(size=(200, 8)))
    keys = [f"image {i}" for i in range(200)]
    found = found_mates(rows[:20], keys[:20], rows, keys)
    assert found.share == 1
    assert np.isclose(found.chance, 1 - (1 - 1 / 200) ** 10)  # the best 5 % are ten rows
    turned = found_mates(rows[:20] @ rotation(8), keys[:20], rows, keys)
    assert turned.share < 0.4
    assert found_mates(rows[:2], ["x", "y"], rows, keys) is None


def test_queries_without_a_mate_do_not_count_and_any_mate_will_do():
    rows = np.array([[1.0, 0], [0, 1], [-1, 0]])
    found = found_mates(np.array([[0, 1.0], [1, 0], [1, 0]]), "abx", rows, "bab")
    assert (found.share, found.queries) == (1.0, 2)


def test_ties_do_not_count_as_found():
    rows = np.array([[1.0, 0], [1, 0]])
    assert found_mates(rows[:1], ["a"], rows, ["a", "b"]).share == 0


def test_too_few_are_refused_half_way_to_chance():
    FoundMates(0.51, 0.01, 20).require(1.0, "x")
    with pytest.raises(UserError, match=r"x: only 50% of 20 known queries .* instead of 100%"):
        FoundMates(0.50, 0.01, 20).require(1.0, "x")
    assert FoundMates(0.2, 0.01, 20).is_useful
    assert not FoundMates(0.1, 0.05, 20).is_useful


def test_a_trial_takes_a_thousand_queries_at_most():
    rows = unit(np.random.default_rng(0).normal(size=(1500, 4)))
    trial = found_mates(rows, range(1500), rows, range(1500))
    assert (trial.queries, trial.share) == (1000, 1)
