import numpy as np

from unibct.embeddings import extraction
from unibct.models.model import Model


def assert_equal(first, second):
    """Two embeddings are the same to the bit, as those from batches of equal sizes are."""
    assert np.array_equal(np.asarray(first.vectors), np.asarray(second.vectors))
    _assert_same_rows(first, second)


def assert_close(first, second):
    """Two embeddings are the same up to rounding.

    The last layer's matrix product may round differently in batches of another size.
    """
    difference = np.abs(np.asarray(first.vectors) - np.asarray(second.vectors))
    assert difference.max(initial=0) <= 1e-6
    _assert_same_rows(first, second)


def _assert_same_rows(first, second):
    """Two embeddings have the same labels, ids, classes, model and training classes."""
    assert np.array_equal(first.labels, second.labels)
    assert (first.ids, first.class_names) == (second.ids, second.class_names)
    assert first.fingerprint == second.fingerprint
    assert first.class_source == second.class_source
    assert first.training_classes == second.training_classes


class EmbeddingCounter:
    """Counts the images that models embed, and stops the run at one of the shards."""

    def __init__(self, monkeypatch, stop_at=None):
        self.images, self.shards = 0, 0
        real, write = Model.embed_pixels, extraction.write_shard

        def embed(model, batch):
            self.images += len(batch)
            return real(model, batch)

        def write_shard(*arguments):
            self.shards += 1
            if self.shards == stop_at:
                raise KeyboardInterrupt
            return write(*arguments)

        monkeypatch.setattr(Model, "embed_pixels", embed)
        monkeypatch.setattr(extraction, "write_shard", write_shard)
