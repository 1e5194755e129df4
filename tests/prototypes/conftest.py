import pytest


class CountingProgress:
    """Counts the images of one task that is reported as "refinement"."""

    def __init__(self, total):
        self.total, self.done = total, 0

    def task(self, label, total, unit="images", **_):
        assert (label, total, unit) == ("refinement", self.total, "images")
        return self

    def __enter__(self):
        return self.advance

    def __exit__(self, *_):
        pass

    def advance(self, count):
        self.done += count


@pytest.fixture
def counting_progress():
    return CountingProgress
