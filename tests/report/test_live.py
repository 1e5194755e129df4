import numpy as np
import pytest

from unibct.report.live import Gains


def test_a_live_table_has_no_gain_while_the_old_model_is_trained_again(finished, tmp_path):
    benchmark, results = finished
    gains = Gains(benchmark.workspace.out)
    expected = results.cross("open-class", "none", "top-1") - results.old_self(
        "open-class", "top-1"
    )
    assert gains.of("open-class", "none", 1) == pytest.approx(100 * expected.values[1])
    assert np.isnan(Gains(tmp_path).of("open-class", "none", 1))
