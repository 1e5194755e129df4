import pytest

from tests.gallery.toys import OLD
from unibct.embedders.table import Opening
from unibct.gallery.savings import Savings, duration, embedding_rate


def test_cost_is_rows_by_rate():
    assert Savings(1000, 50.0).seconds == 20
    assert Savings(1000, None).seconds is None
    assert "1,000 rows" in Savings(1000, 50.0).summary()
    assert "20 s" in Savings(1000, 50.0).summary()
    assert "no rows" in Savings(0, 50.0).summary()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "less than a second"),
        (90, "90 s"),
        (600, "10 min"),
        (9000, "2 h"),
        (864_000, "10 days"),
    ],
)
def test_time_spans_in_words(seconds, text):
    assert duration(seconds) == text


def test_the_rate_counts_images(monkeypatch):
    monkeypatch.setattr("unibct.gallery.savings._SECONDS", 0.3)
    ticks = iter([0.0, 0.2, 0.5])
    monkeypatch.setattr("unibct.gallery.savings.perf_counter", lambda: next(ticks))
    assert embedding_rate(Opening().open(OLD)) == pytest.approx(2 * 64 / 0.5)
