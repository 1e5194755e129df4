import pytest
from scipy import stats

from unibct.evaluation.student import t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 49, 317, 5000, 10**9])
@pytest.mark.parametrize("probability", [0.025, 0.5, 0.9, 0.975, 1 - 0.025 / 3, 0.999])
def test_quantiles_are_those_of_scipy(probability, freedom):
    expected = stats.t.ppf(probability, freedom)
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-4, abs=1e-12)
