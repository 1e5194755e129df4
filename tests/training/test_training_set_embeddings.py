import numpy as np
import pytest
import torch

from tests.notes import Notes
from tests.training.runs import RECIPE, SMALL, small_context, stopped_before_epoch, train
from unibct import progress
from unibct.embedders import open_embedder
from unibct.embeddings.extraction import embed
from unibct.embeddings.forms import write_embeddings
from unibct.embeddings.store import Embeddings
from unibct.methods import MethodEntry
from unibct.models.model import Model
from unibct.training import training_set_embeddings


@pytest.mark.slow
def test_old_embeddings_are_computed_once(split_images, old_model, tmp_path, monkeypatch):
    calls = []
    real = Model.embed_pixels

    def counted(self, pixels):
        calls.append(self.fingerprint == old_model.fingerprint)
        return real(self, pixels)

    monkeypatch.setattr(Model, "embed_pixels", counted)
    train(split_images[1], RECIPE, tmp_path / "m", old=old_model, method="contrast")
    scored = 1  # a sample of the images, for the score scale of the finished model
    assert sum(calls) == -(-len(split_images[1]) // 256) + scored


@pytest.mark.slow
def test_bct_needs_no_old_embeddings(split_images, old_model, tmp_path, monkeypatch):
    monkeypatch.setattr(training_set_embeddings, "cached_embeddings", None)
    train(split_images[1], RECIPE, tmp_path / "m", old=old_model, method="bct")
    with pytest.raises(TypeError):
        train(split_images[1], RECIPE, tmp_path / "n", old=old_model, method="regress")


@pytest.mark.slow
def test_a_damaged_cache_is_made_again(split_images, old_model, tmp_path):
    out, options = tmp_path / "m", {"old": old_model}
    with stopped_before_epoch(0):
        train(split_images[1], RECIPE, out, **options)
    vectors = out / ".old_embeddings" / "plain" / "vectors-000000.npy"
    vectors.write_bytes(vectors.read_bytes()[:-4] + b"ruin")
    again = train(split_images[1], RECIPE, out, resume=True, **options)
    fresh = train(split_images[1], RECIPE, tmp_path / "n", **options)
    assert again.fingerprint == fresh.fingerprint


def test_a_refresh_and_the_score_scale_are_no_tasks_of_their_own(
    four_classes, four_classes_old, tmp_path
):
    class Tasks(Notes):
        def task(self, label, total, unit="images", *, done=0, weight=1.0):
            labels.append(label)
            return super().task(label, total, unit, done=done, weight=weight)

    labels: list[str] = []
    recipe = SMALL.updated(size=24, epochs=3, warmup_epochs=1, refresh_epochs=(2,))
    with progress.shown(Tasks()):
        train(four_classes, recipe, tmp_path / "m", old=four_classes_old, method="unibct")
    own = [label for label in labels if label != "reading images"]
    assert own == ["old embeddings", "training"]


@pytest.mark.parametrize("name", ["contrast", "unibct", "bct", "none"])
def test_only_bct_holds_the_old_classifier(name, four_classes, four_classes_old, monkeypatch):
    context = small_context(four_classes, SMALL, old=four_classes_old, method=name)
    given, make = [], MethodEntry.make
    monkeypatch.setattr(MethodEntry, "make", lambda *a: (given.append(a[1]), make(*a))[1])
    monkeypatch.setattr(
        training_set_embeddings, "_old_embeddings", lambda *_, **__: torch.zeros(24, 8)
    )
    training_set_embeddings.make_method(context, four_classes_old)
    assert (given[0].old_class_weights is not None) == (name == "bct")


@pytest.mark.slow
def test_stored_old_embeddings_train_the_same_model_as_their_model(
    four_classes, four_classes_old, tmp_path
):
    embeddings = embed(four_classes_old, four_classes)
    order = np.random.default_rng(0).permutation(len(four_classes))
    vectors, ids = np.asarray(embeddings.vectors)[order], [embeddings.ids[row] for row in order]
    shuffled = Embeddings(vectors, ids, np.full(len(ids), -1), (), embeddings.fingerprint)
    write_embeddings(shuffled, tmp_path / "old.npy", "npy")
    stored = open_embedder(tmp_path / "old.npy")
    recipe = SMALL.updated(seed=3, warm_start=False)
    prints = [
        train(four_classes, recipe, tmp_path / name, old=old).fingerprint
        for name, old in (("a", four_classes_old), ("b", stored))
    ]
    assert prints[0] == prints[1]
