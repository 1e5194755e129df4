import pytest

from unibct.evaluation.resolution import carried_fars, far_note, headline_far, tar_name


def test_fars_follow_the_number_of_class_pairs():
    # 776 · 775/2 = 300,700 class pairs, of which 1e-4 is just over thirty.
    assert carried_fars(776) == [1e-4, 1e-3, 1e-2, 1e-1]
    assert headline_far(776) == 1e-4
    assert headline_far(318) == 1e-3
    assert headline_far(318, 0.05) == 0.05
    assert headline_far(3) == 1e-1
    assert headline_far(5, 0.9) == 0.9
    assert headline_far(30, 1e-6) == 1e-6  # what a user asks for is not replaced
    for far, name in [(1e-3, "1e-3"), (0.015, "0.015"), (0.25, "0.25"), (1e-4, "1e-4"), (1, "1")]:
        assert tar_name(far) == f"TAR@{name}"
    with pytest.raises(ValueError, match="false accept rate"):
        headline_far(50, 5)


def test_a_rate_that_the_classes_cannot_measure_is_said():
    assert far_note(1e-4, None, 776) is None
    assert far_note(0.05, 0.05, 318) is None
    assert far_note(1e-3, None, 318).startswith("TAR@1e-3 instead of TAR@1e-4: 318 classes cannot")
    note = far_note(1e-6, 1e-6, 3531, "subjects")
    assert note.startswith("3531 subjects are too few to measure TAR@1e-6 well")
    assert note.endswith("7747 are needed")
    assert carried_fars(7747)[0] == 1e-6
    assert carried_fars(7746)[0] == 1e-5
