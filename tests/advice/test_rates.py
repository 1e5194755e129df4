import tempfile

import numpy as np

from tests.training.recipes import SMALL
from unibct.advice import rates
from unibct.advice.rates import (
    Rates,
    forward_rate,
    map_rate,
    read_sample,
    sample_of,
    trial_run,
)
from unibct.data.decoding import Frame
from unibct.data.readers.table import open_images


def test_a_sample_is_small_and_the_same_each_time(glyph_classes):
    sample = sample_of(glyph_classes, 10)
    assert len(sample) == 10
    assert sample.ids == sample_of(glyph_classes, 10).ids
    assert sample_of(glyph_classes, 1000) is glyph_classes


def test_rates_count_every_image_once(upgrade, monkeypatch):
    """With a clock that moves by one second at each look, a rate is the number of images."""
    seconds = iter(range(1000))
    monkeypatch.setattr(rates.time, "perf_counter", lambda: float(next(seconds)))
    sample = read_sample(upgrade.new_images, Frame(32, 32, 1))
    assert sample.rate == len(upgrade.new_images)
    assert forward_rate(upgrade.old_model, sample.pixels) == len(sample.pixels)
    assert map_rate(8, 4) == 2000


def test_unreadable_images_of_a_sample_are_left_out(tmp_path, photo_folder):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bad.png").write_bytes(b"no image")
        for path in sorted(photo_folder.rglob("*.png"))[:2]:
            (tmp_path / name / path.name).write_bytes(path.read_bytes())
    sample = read_sample(open_images(tmp_path), Frame(8, 8, 3))
    assert len(sample.images) == len(sample.pixels) == 4
    assert sample.pixels.shape[1:] == (8, 8, 3)


def test_a_trial_has_the_network_and_method_of_the_real_training(upgrade, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    recipe = SMALL.updated(steps=10_000, lr=1e3, dim=None, batch_size=500)
    images = upgrade.new_images.select(np.arange(40))
    rate, model = trial_run(images, recipe, old=upgrade.old_model, method="unibct", device="cpu")
    assert rate > 0
    assert model.architecture == recipe.architecture
    assert model.training["method"] == "unibct"
    assert model.training["recipe"]["epochs"] == 3
    assert model.old_fingerprint == upgrade.old_model.fingerprint
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_rates_are_plain_numbers():
    assert Rates(1, 2, 3, 4, 5, 6).as_json()["training"] == 5
