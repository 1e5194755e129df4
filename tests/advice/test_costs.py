from dataclasses import replace

import pytest

from tests.training.recipes import SMALL
from unibct.advice.costs import backfill_cost, mapping_cost, training_cost
from unibct.advice.rates import Rates
from unibct.data.loader import MEMORY_VARIABLE

RATES = Rates(
    reading=10, gallery_reading=20, old_forward=50, new_forward=40, training=5, map_rows=1000
)


def test_training_reads_once_embeds_once_and_counts_every_step():
    recipe = SMALL.updated(epochs=3, batch_size=8)
    cost = training_cost(recipe, 100, "unibct-plus", RATES)
    # 96 of 100 images are in whole batches
    expected = {"reading": 10.0, "old embeddings": 2.0, "training steps": 3 * 96 / 5}
    assert dict(cost.parts) == pytest.approx(expected)
    assert cost.seconds == pytest.approx(sum(expected.values()))
    assert "old embeddings" not in training_cost(recipe, 100, "bct", RATES).parts
    flipped = training_cost(recipe.updated(flip=True), 100, "unibct", RATES)
    assert flipped.parts["old embeddings"] == pytest.approx(4.0)


def test_stored_old_embeddings_cost_nothing():
    stored = replace(RATES, old_forward=None)
    recipe = SMALL.updated(epochs=3, batch_size=8)
    assert list(training_cost(recipe, 100, "unibct", stored).parts) == ["reading", "training steps"]
    assert list(mapping_cost(100, stored).parts.values()) == pytest.approx([10.0, 2.5, 0.1])


def test_steps_make_a_training_longer():
    recipe = SMALL.updated(epochs=3, batch_size=8, steps=48)
    cost = training_cost(recipe, 100, "unibct", RATES)
    assert cost.what == "train for 4 epochs on 100 images"
    assert cost.parts["training steps"] == pytest.approx(4 * 96 / 5)


def test_pixels_that_do_not_fit_are_read_in_every_epoch(monkeypatch):
    monkeypatch.setenv(MEMORY_VARIABLE, "1000")
    cost = training_cost(SMALL.updated(epochs=3, batch_size=8), 100, "unibct", RATES)
    assert cost.parts["reading in every epoch"] == pytest.approx(3 * 96 / 10)


def test_mapping_and_backfill():
    parts = mapping_cost(100, RATES).parts
    assert list(parts.values()) == pytest.approx([20.0, 2.0, 2.5, 0.1])
    cost = backfill_cost(4000, RATES)
    assert cost.as_json() == {
        "what": "embed 4,000 gallery images again",
        "estimated_seconds": pytest.approx(200 + 100),
        "parts": {"reading": pytest.approx(200), "new embeddings": pytest.approx(100)},
    }
