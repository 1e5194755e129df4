from dataclasses import replace

import numpy as np
import pytest

from unibct.errors import UserError
from unibct.evaluation.metrics.open_set import OpenSearch


def test_open_search_by_hand():
    search = OpenSearch(
        mate=np.array([0.9, 0.7, 0.6, 0.3]),
        other=np.array([0.2, 0.8, 0.1, 0.1]),
        unmated=np.array([0.5, 0.1, 0.65, 0.2, 0.4, 0.3, 0.0, 0.35, 0.15, 0.25]),
    )
    assert search.tpir(0.01) == 0.25  # at 0.65: only the first, the second has a better other
    assert search.tpir(0.1) == 0.25
    assert search.tpir(0.2) == 0.5  # at 0.5
    assert search.tpir(0.5) == 0.5  # at 0.3: a score equal to the threshold is no hit
    assert search.tpir(1.0) == 0.75  # at 0.0
    # A mate that scores exactly as high as the threshold, or as another subject, is not found.
    tied = OpenSearch(
        mate=np.array([0.5, 0.7, 0.7]),
        other=np.array([0.1, 0.7, 0.6]),
        unmated=np.array([0.5, 0.2]),
    )
    assert tied.tpir(0.5) == pytest.approx(1 / 3)
    assert tied.tpir(1.0) == pytest.approx(2 / 3)
    with pytest.raises(UserError, match=r"lies in \(0, 1\], not 0"):
        search.tpir(0)
    with pytest.raises(UserError, match="no probe is without a mate"):
        replace(search, unmated=np.zeros(0)).tpir(0.1)
    with pytest.raises(UserError, match="no probe is with a mate"):
        replace(search, mate=np.zeros(0), other=np.zeros(0)).tpir(0.1)
