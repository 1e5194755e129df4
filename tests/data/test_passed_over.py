import pytest

from unibct.data.passed_over import PassedOverWarning, warn_of_passed_over


def test_one_line_counts_them_and_names_the_first(recwarn, monkeypatch):
    warn_of_passed_over("photos", [], "why")
    assert not recwarn
    with pytest.warns(PassedOverWarning) as seen:
        warn_of_passed_over("photos", ["b", "a"], "why")
    assert str(seen[0].message) == "photos: 2 entries are passed over, first a: why"
    monkeypatch.setenv("RANK", "1")
    warn_of_passed_over("photos", ["b", "a"], "why")
    assert not recwarn, "the first process has said it"
