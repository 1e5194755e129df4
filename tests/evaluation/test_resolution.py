import pytest

from unibct.evaluation.resolution import carried_fars, headline_far, tar_name


def test_fars_follow_the_number_of_class_pairs():
    # 776 · 775/2 = 300,700 class pairs, of which 1e-4 is just over thirty.
    assert carried_fars(776) == [1e-4, 1e-3, 1e-2, 1e-1]
    assert headline_far(776) == 1e-4
    assert headline_far(318) == 1e-3
    assert headline_far(318, 0.05) == 0.05
    assert headline_far(3) == 1e-1
    assert headline_far(5, 0.9) == 0.9
    for far, name in [(1e-3, "1e-3"), (0.015, "0.015"), (0.25, "0.25"), (1e-4, "1e-4"), (1, "1")]:
        assert tar_name(far) == f"TAR@{name}"
    with pytest.raises(ValueError, match="false accept rate"):
        headline_far(50, 5)
