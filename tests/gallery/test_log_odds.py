import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from unibct.errors import UserError
from unibct.gallery.log_odds import fit_log_odds


@pytest.mark.slow
@given(st.integers(0, 10_000))
def test_the_line_is_what_a_general_optimiser_finds(seed):
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.uniform(-1, 1, 40))
    mates = rng.poisson(20 * np.clip(scores, 0, 1)).astype(float)
    others = rng.poisson(50 * np.clip(0.5 - scores, 0, 1)).astype(float)
    mates[-1] += 1
    others[0] += 1
    targets = (mates.sum() + 1) / (mates.sum() + 2), 1 / (others.sum() + 2)

    def cross_entropy(line: np.ndarray) -> float:
        share = 1 / (1 + np.exp(-(line[0] * scores + line[1])))
        share = np.clip(share, 1e-300, 1 - 1e-16)
        loss = 0.0
        for counts, target in ((mates, targets[0]), (others, targets[1])):
            loss -= np.sum(counts * (target * np.log(share) + (1 - target) * np.log(1 - share)))
        return loss

    found = fit_log_odds(scores, mates, others)
    best = minimize(
        cross_entropy,
        np.zeros(2),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-9, "maxiter": 4000},
    )
    assert cross_entropy(np.array(found)) <= best.fun + 1e-6
    assert found == pytest.approx(best.x, rel=1e-2, abs=1e-2)


def test_odds_by_hand():
    # At score 0 one pair of four is a mate, at score 1 three of four; many pairs: targets are 0, 1.
    slope, shift = fit_log_odds(np.array([0.0, 1.0]), np.array([1e9, 3e9]), np.array([3e9, 1e9]))
    assert shift == pytest.approx(-np.log(3), abs=1e-6)
    assert slope == pytest.approx(2 * np.log(3), abs=1e-6)


def test_separated_scores_give_a_finite_line():
    slope, shift = fit_log_odds(np.array([0.1, 0.9]), np.array([0.0, 50]), np.array([5000.0, 0]))
    assert np.isfinite([slope, shift]).all()
    assert slope > 0
    assert 0.1 * slope + shift == pytest.approx(-np.log(5001), rel=1e-6), "Platt's target"
    assert 0.9 * slope + shift == pytest.approx(np.log(51), rel=1e-6)


def test_one_kind_of_pairs_is_not_enough():
    with pytest.raises(UserError, match="the odds of a mate need pairs of the same and of"):
        fit_log_odds(np.array([0.1, 0.9]), np.zeros(2), np.ones(2))
